"""Inspection of streams: from recorded bytes to rows that are linked by number. Pure: no async, clock or socket."""
