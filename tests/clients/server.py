"""Serves given bytes over a real socket, as an upstream would: one address for each stream; a client may add any path.

with StreamServer() as server:
    url = server.serve(body, "text/event-stream")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class StreamServer:
    """Runs in a thread of its own. Each answer is chunked, one chunk for each piece, so that cuts reach the client."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._served: dict[str, tuple[int, str, list[bytes]]] = {}
        self._port = 0
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def serve(self, body: bytes | Iterable[bytes], media_type: str = "text/event-stream", status: int = 200) -> str:
        """The address at which this body, or these pieces of one, can be read as often as wanted."""
        key = f"s{len(self._served)}"
        pieces = [body] if isinstance(body, bytes) else [piece for piece in body if piece]
        self._served[key] = (status, media_type, pieces)
        return f"http://127.0.0.1:{self._port}/{key}"

    def forget(self) -> None:
        """Drops the bodies that were served so far, because a run may serve thousands of streams."""
        for key, (status, media_type, _) in self._served.items():
            self._served[key] = (status, media_type, [])

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
                path = head.split(b" ", 2)[1].decode("latin-1")
                status, media_type, pieces = self._served.get(
                    path.strip("/").split("/")[0], (404, "text/plain", [b"nothing here"])
                )
                writer.write(
                    f"HTTP/1.1 {status} OK\r\ncontent-type: {media_type}\r\ncache-control: no-cache\r\n"
                    f"transfer-encoding: chunked\r\n\r\n".encode()
                )
                for piece in pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
