"""Looking into a stream: from recorded bytes to rows that are linked by number. Pure: no async, clock or socket."""
