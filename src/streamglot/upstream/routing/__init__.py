"""Which upstream answers a request."""
