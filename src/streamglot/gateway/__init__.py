"""The gateway: an HTTP server that accepts any client dialect and forwards each request to any upstream."""
