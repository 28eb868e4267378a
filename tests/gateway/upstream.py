"""A hostile upstream: a raw socket server that plays a script of bytes, pauses, cuts and resets, and notes what it saw."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from waiting import WAIT_SECONDS, soon, until

UPSTREAM_NAMES = {
    "openai_chat": "work",
    "openai_responses": "lab",
    "anthropic": "claude",
    "gemini": "google",
    "ollama": "box",
    "openai_completions": "old-work",
    "cohere": "north",
    "bedrock_converse": "aws",
}
"""What the tests call the upstream of each dialect, as people do: no upstream has the name of its dialect. A product that takes one
for the other would work in tests and nowhere else."""


class Pause(Struct, frozen=True):
    seconds: float


class Until(Struct, frozen=True):
    """Says no more until the test lets it."""

    event: threading.Event


class Cut(Struct, frozen=True):
    """Hangs up, politely."""


class Reset(Struct, frozen=True):
    """Resets the connection."""


class Hang(Struct, frozen=True):
    """Says no more, until the other side hangs up."""


Step = bytes | Pause | Until | Cut | Reset | Hang
Script = Sequence[Step]


class Seen(Struct):
    """One request. ``closed`` is when the other side hung up, before the script was over; ``sent`` counts bytes; ``raw`` is the
    body as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    at: float
    closed: float = 0.0
    sent: int = 0
    over: bool = False
    raw: bytes = b""


def head(status: int = 200, media_type: str = "text/event-stream", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Words", f"content-type: {media_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def piece(data: bytes) -> bytes:
    """A chunk of an answer. An empty one would be its end, and what follows would belong to the next answer."""
    assert data
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(*pieces: bytes | Step, media_type: str = "text/event-stream", status: int = 200, **headers: str) -> Script:
    """A whole answer, chunk by chunk."""
    script: list[Step] = [head(status, media_type, transfer_encoding="chunked", **headers)]
    script += [piece(one) if isinstance(one, bytes) else one for one in pieces if one != b""]
    return [*script, b"0\r\n\r\n"]


def unfinished(*pieces: bytes | Step, end: Step | None = None, media_type: str = "text/event-stream") -> Script:
    """An answer whose stream ends in the middle. Without a length or chunks, a hang-up is the end that HTTP allows."""
    return [head(200, media_type, connection="close"), *pieces, end or Cut()]


def whole(body: bytes | object, status: int = 200, media_type: str = "application/json", **headers: str) -> Script:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return [head(status, media_type, content_length=str(len(data)), **headers) + data]


def sse(*payloads: object) -> bytes:
    """Each payload as the data of one event; text and bytes as they are."""
    return b"".join(
        b"data: "
        + (one.encode() if isinstance(one, str) else one if isinstance(one, bytes) else msgspec.json.encode(one))
        + b"\n\n"
        for one in payloads
    )


class HostileUpstream:
    """Scripts are found by the model's name; ``scripts[name]`` may be a list of scripts, one for each request in turn."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.scripts: dict[str, Any] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        self._context = context
        self._turns: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [seen.body for seen in self.seen]

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    def requests(self, model: str) -> list[Seen]:
        return [one for one in self.seen if model in (one.body.get("model"), _model_in(one.path))]

    def wait_for(self, model: str, what: Callable[[Seen], object] = lambda seen: True) -> Seen:
        """The first request for this model of which ``what`` becomes true."""
        until(lambda: any(map(what, self.requests(model))), lambda: f"it did not happen for {model}: {self.requests(model)}")
        return next(filter(what, self.requests(model)))

    # --- the server

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS), "the upstream did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self._context, limit=2**26)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._converse(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while (seen := await _request(reader, number)) is not None:
                self.seen.append(seen)
                if not await self._play(self.script_for(seen), seen, reader, writer):
                    return
                seen.over = True
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def script_for(self, seen: Seen) -> Script:
        """What a model that computes its answers overrides."""
        name = seen.body.get("model") or _model_in(seen.path)
        script = self.scripts.get(name)
        if script is None:
            return whole({"error": {"message": f"no script for {name!r}"}}, 404)
        if callable(script):
            made: Script = script(seen)
            return made
        if script and isinstance(script[0], list):
            turn = self._turns.get(name, 0)
            self._turns[name] = turn + 1
            script = script[min(turn, len(script) - 1)]
        chosen: Script = script
        return chosen

    async def _play(self, script: Script, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Plays it; False if the connection is over. Meanwhile it checks whether the other side disconnects."""
        watcher = asyncio.ensure_future(self._watch(reader, seen))
        try:
            for step in script:
                if isinstance(step, bytes):
                    writer.write(step)
                    seen.sent += len(step)
                    await writer.drain()
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Until):
                    await soon(step.event.is_set)
                elif isinstance(step, Hang):
                    await watcher
                    return False
                else:
                    if isinstance(step, Reset):
                        raw: socket.socket = writer.get_extra_info("socket")
                        await soon(partial(_was_read, raw))  # what was sent before must not be lost with it
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        writer.transport.abort()
                    return False
        except OSError:
            seen.closed = seen.closed or time.monotonic()
            raise
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        return not seen.closed

    async def _watch(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        while not reader.at_eof() and reader.exception() is None:
            await asyncio.sleep(0.001)
        seen.closed = time.monotonic()


def _was_read(connection: socket.socket) -> bool:
    """Whether the other side has read all that was sent to it. Both sides are on this machine."""
    ours, theirs = (f"0100007F:{port:04X}" for _, port in (connection.getsockname(), connection.getpeername()))
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    unread = [row[4].partition(":")[2] for row in rows if (row[1], row[2]) == (theirs, ours)]
    return all(int(count, 16) == 0 for count in unread)


def _model_in(path: str) -> str:
    """The model in a path of Gemini or Bedrock."""
    return path.partition("models/")[2].partition(":")[0] or path.partition("/model/")[2].partition("/")[0]


async def _request(reader: asyncio.StreamReader, number: int) -> Seen | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = lines[0].split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method, path, headers, msgspec.json.decode(body) if body else {}, number, time.monotonic(), raw=body)


@contextmanager
def hostile(context: ssl.SSLContext | None = None) -> Iterator[HostileUpstream]:
    server = HostileUpstream(context)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def byte_by_byte(data: bytes) -> Iterable[bytes]:
    return (data[place : place + 1] for place in range(len(data)))
