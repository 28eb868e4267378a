"""The HTTP server: parser, connections, responses, ASGI, CORS and host checks, processes."""
