"""Clients for ``soak_signals``: they connect in every way a client can, and classify what becomes of each request."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import time
from collections import Counter
from itertools import pairwise

import msgspec
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Ping, TextMessage

from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, body_of, path_of, understood
from gateway.running import Answer

CHUNKS = 12
WORD = "word "
GAPS = (0, 10, 50, 100, 300)
"""Milliseconds between two chunks of an answer. The longest answers last for several signals."""
KEY = "sesame"
HABITS = ("fresh", "burst", "reused", "reused", "pipelined", "halved", "preconnected", "websocket")
WHOLE, ERROR, REFUSED, STALE, UNANSWERED, CUT, WRONG = (
    "whole answer",
    "typed error",
    "connection refused",
    "closed while idle",
    "closed without a byte",
    "cut",
    "wrong",
)
"""``STALE``: a connection that had been used was closed before its next request was read. Clients repeat such a request."""
FAULTS = (UNANSWERED, CUT, WRONG)
ANSWER_SECONDS = 120.0
"""Seconds after which a request counts as not answered."""


class _NoByte(Exception):
    """The connection ended before the answer began."""


class SignalClients:
    """``killed``: when a worker was killed. What was under way at such a moment is counted apart."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.killed: list[float] = []
        self.over = False

    async def run(self, people: int) -> None:
        """Asks until ``over`` is set."""
        self.over = False
        await asyncio.gather(*(self._person(number) for number in range(people)))

    async def _person(self, number: int) -> None:
        chance = random.Random(number)
        await asyncio.sleep(chance.random())
        while not self.over:
            habit = chance.choice(HABITS)
            began = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await getattr(self, f"_{habit}")(chance)
            except ConnectionRefusedError:
                self._note(REFUSED, habit, began)
                await asyncio.sleep(0.05)
            except (OSError, ValueError, KeyError, AssertionError) as error:
                self._note(WRONG, habit, began, f"{type(error).__name__} {error}")

    def _note(self, outcome: str, habit: str, began: float, detail: str = "") -> None:
        if outcome in (*FAULTS, STALE) and any(began <= moment + 0.1 for moment in self.killed if moment <= time.monotonic()):
            outcome = "killed with its worker"
        self.outcomes[outcome] += 1
        if outcome in FAULTS:
            self.wrong.append(f"{outcome}: {habit}, {time.monotonic() - began:.2f} s: {detail}"[:700])

    # --- habits

    async def _fresh(self, chance: random.Random) -> None:
        await self._ask("fresh", chance, "close")

    async def _burst(self, chance: random.Random) -> None:
        await asyncio.gather(*(self._ask("burst", chance, "close", 0) for _ in range(5)))

    async def _preconnected(self, chance: random.Random) -> None:
        await self._ask("preconnected", chance, "close", wait=1.0)

    async def _halved(self, chance: random.Random) -> None:
        await self._ask("halved", chance, "close", pieces=4)

    async def _ask(
        self, habit: str, chance: random.Random, connection: str, gap: int | None = None, wait: float = 0.0, pieces: int = 1
    ) -> None:
        """Sends one request over a connection of its own."""
        request = _Request(chance, connection, gap)
        began = time.monotonic()
        try:
            reader, writer = await self._open()
        except ConnectionRefusedError:
            self._note(REFUSED, habit, began)
            await asyncio.sleep(0.05)
            return
        try:
            await asyncio.sleep(chance.random() * wait)
            cuts = [0, *sorted(chance.sample(range(1, len(request.data)), pieces - 1)), len(request.data)]
            for start, end in pairwise(cuts):
                writer.write(request.data[start:end])
                await asyncio.sleep(chance.random() * 0.6 if end < len(request.data) else 0)
            await self._answer(habit, reader, request, began, UNANSWERED)
        finally:
            writer.close()

    async def _reused(self, chance: random.Random) -> None:
        began = time.monotonic()
        reader, writer = await self._open()
        unanswered = UNANSWERED
        try:
            for _ in range(chance.randint(2, 6)):
                request = _Request(chance)
                writer.write(request.data)
                if not await self._answer("reused", reader, request, began, unanswered):
                    return
                unanswered = STALE
                await asyncio.sleep(chance.choice((0.0, chance.random() * 0.5)))
        finally:
            writer.close()

    async def _pipelined(self, chance: random.Random) -> None:
        """Sends two requests together and the third in a packet of its own."""
        requests = [_Request(chance, gap=chance.choice((0, 20))) for _ in range(3)]
        began = time.monotonic()
        reader, writer = await self._open()
        unanswered = UNANSWERED
        try:
            writer.write(requests[0].data + requests[1].data)
            await asyncio.sleep(0.05)
            writer.write(requests[2].data)
            for request in requests:
                if not await self._answer("pipelined", reader, request, began, unanswered):
                    return
                unanswered = STALE
        finally:
            writer.close()

    async def _websocket(self, chance: random.Random) -> None:
        began = time.monotonic()
        reader, writer = await self._open()
        try:
            token = base64.b64encode(os.urandom(16)).decode()
            writer.write(
                f"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
                f"sec-websocket-version: 13\r\nsec-websocket-key: {token}\r\n\r\n".encode()
            )
            try:
                answer = await _read_answer(reader)
            except _NoByte:
                self._note(UNANSWERED, "websocket", began)
                return
            if answer.status != 101:
                self._note(ERROR, "websocket", began)
                return
            frames = Connection(ConnectionType.CLIENT)
            for _ in range(3):
                create = {"type": "response.create", "model": f"up/m-{chance.choice(GAPS)}", "input": "q"}
                writer.write(frames.send(TextMessage(data=msgspec.json.encode(create).decode())))
                outcome, closed = await _read_response(frames, reader, writer)
                self._note(outcome, "websocket", began)
                if closed:
                    return
        finally:
            writer.close()

    # --- answers

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)

    async def _answer(self, habit: str, reader: asyncio.StreamReader, request: _Request, began: float, unanswered: str) -> bool:
        """Classifies one answer. Returns whether the connection can be used for another request."""
        try:
            answer = await _read_answer(reader)
        except _NoByte as error:
            self._note(unanswered, habit, began, str(error))
            return False
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self._note(CUT, habit, began, f"{request.dialect}: {type(error).__name__}")
            return False
        try:
            found = understood(request.dialect, answer, request.stream)
            fine = found.error is not None or found.text.strip() == (WORD * CHUNKS).strip()
        except (AssertionError, ValueError, KeyError):
            fine = b"shutting_down" in answer.body  # a request that was not read whole is refused in no dialect
            found = None
        if not fine:
            self._note(WRONG, habit, began, f"{request.dialect}: {answer.status} {answer.body[-300:]!r}")
        else:
            self._note(WHOLE if found is not None and found.error is None else ERROR, habit, began)
        return answer.headers.get("connection") != "close"


class _Request:
    """A request of any dialect. ``gap`` is the pause between two chunks of its answer."""

    def __init__(self, chance: random.Random, connection: str = "keep-alive", gap: int | None = None) -> None:
        self.dialect = chance.choice(CLIENT_DIALECTS)
        self.stream = self.dialect in STREAMS_ONLY or chance.random() < 0.8
        model = f"{chance.choice(('up', 'two'))}/m-{chance.choice(GAPS) if gap is None else gap}"
        body = msgspec.json.encode(body_of(self.dialect, model, self.stream))
        path = path_of(self.dialect, model, self.stream)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nconnection: {connection}\r\n"
        self.data = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    try:
        data = await reader.readexactly(1)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise _NoByte(type(error).__name__) from None
    data += await reader.readuntil(b"\r\n\r\n")
    lines = data.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(lines[0].split(" ")[1])
    if status == 101:
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))
    pieces = []
    while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return Answer(status, headers, b"".join(pieces))


async def _read_response(frames: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, bool]:
    """Returns the outcome of one response over a WebSocket, and whether the connection is over."""
    text = message = outcome = ""
    closed = False
    while not outcome and not closed:
        try:
            data = await reader.read(65_536)
        except ConnectionError:
            data = b""
        if not data:
            return CUT if text else STALE, True
        frames.receive_data(data)
        for event in frames.events():
            if isinstance(event, Ping):
                writer.write(frames.send(event.response()))
            elif isinstance(event, CloseConnection):
                closed = True
            elif isinstance(event, TextMessage):
                message += event.data
                if event.message_finished:
                    found, message = msgspec.json.decode(message), ""
                    text += found["delta"] if found["type"] == "response.output_text.delta" else ""
                    if found["type"] == "response.completed":
                        outcome = WHOLE if text.strip() == (WORD * CHUNKS).strip() else WRONG
                    elif found["type"] in ("error", "response.failed"):
                        outcome = ERROR
    return outcome or (CUT if text else ERROR), closed
