"""Upstreams for tests of the client: recordings that are played, and servers that misbehave on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamglot import Upstream

CHUNK = 'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s}]}\n\n'
LAST = (
    'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m",'
    '"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


def text(*pieces: str) -> list[str]:
    from msgspec.json import encode

    return [CHUNK % encode({"content": piece}).decode() for piece in pieces]


def recording(folder: Path, name: str, chunks: list[str], gap: float = 0.0) -> Upstream:
    """An upstream that plays these chunks, with so many seconds between them."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(chunks))
    lines = (f"{number * gap} {len(chunk.encode())}\n" for number, chunk in enumerate(chunks))
    (folder / f"{name}.times").write_text("".join(lines))
    return Upstream(name="recorded", base_url=f"file:{folder}")


class ChunkServer:
    """Sends chunks until the client disconnects. ``gone`` tells that it noticed."""

    def __init__(self, gap: float) -> None:
        self.gone = threading.Event()
        self.sent = 0
        self._gap = gap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def upstream(self) -> Upstream:
        return Upstream(name="talker", base_url=self.url, attempts=1)

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        with peer:
            peer.recv(65_536)
            chunk = text("word ")[0].encode()
            try:
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                while True:
                    peer.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    self.sent += 1
                    if self._gap:
                        time.sleep(self._gap)
            except OSError:
                self.gone.set()


@contextmanager
def chunk_server(gap: float = 0.005) -> Iterator[ChunkServer]:
    server = ChunkServer(gap)
    try:
        yield server
    finally:
        server.close()
