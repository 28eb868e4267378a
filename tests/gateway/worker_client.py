"""A client that knows which process answers it: connections that stay open, hundreds at once in one thread."""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from waiting import WAIT_SECONDS


def asked(port: int, path: str, body: Any = None) -> tuple[int, bytes]:
    """One request, its answer read to the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else msgspec.json.encode(body))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Line:
    """One connection, one request after the other. ``status`` and ``headers`` are of the last answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.worker = 0
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def to(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        """The whole body of the answer."""
        await self.send(path, body, headers)
        return b"".join([piece async for piece in self.pieces()])

    async def send(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Sends a request and reads the head of its answer."""
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes; it ends as HTTP says, or an IncompleteReadError is raised."""
        if "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def hang_up(self) -> None:
        self._writer.close()

    @property
    def port(self) -> int:
        """Our end of it."""
        number: int = self._writer.get_extra_info("sockname")[1]
        return number


def answered_by(port: int, processes: Iterable[int]) -> dict[int, int]:
    """Which of these processes took a connection to this port, by the port of its other end."""
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = {f"socket:[{row[9]}]": int(row[2][-4:], 16) for row in rows if row[1].endswith(f":{port:04X}")}
    found = {}
    for process in processes:
        for descriptor in os.scandir(f"/proc/{process}/fd"):
            with suppress(OSError):  # it was closed meanwhile
                end = ends.get(os.readlink(descriptor.path))
                if end is not None:
                    found[end] = process
    return found


def at_once(work: Callable[[], Awaitable[None]], seconds: float = 3 * WAIT_SECONDS) -> None:
    """Runs this, and fails if it never ends."""

    async def within() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(within())
