"""Serves one answer over a real socket, for clients that must read bytes from a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve_response(body: bytes, media_type: str, status: int = 200, asked: list[bytes] | None = None) -> Iterator[str]:
    """The URL of a server that answers every POST with this body, in pieces of 40 bytes. ``asked`` collects the posted bodies."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            posted = self.rfile.read(int(self.headers.get("content-length", 0)))
            if asked is not None:
                asked.append(posted)
            self.send_response(status)
            self.send_header("content-type", media_type)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for place in range(0, len(body), 40):
                piece = body[place : place + 40]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
