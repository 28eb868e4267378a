"""A soak: many streams at once for minutes, with slow readers, clients that hang up and an upstream full of faults.

    python -m gateway.soak SECONDS STREAMS [WORKERS]        (from the folder tests)

Some upstreams are hostile: they count tokens below zero, send trailers and chunk extensions without end, or very large answers.
Every stream must end with its proper end or with the error that the upstream's fault means. At the end nothing may be
open, and the memory must be back where it was after the first wave.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec

from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of, understood
from gateway.running import Answer
from gateway.scenarios import DONE, END, text_chunk, usage
from gateway.upstream import head, piece, sse
from ports import free_port
from streamglot.store import Database
from waiting import soon

CHUNKS = 16
GAP = 0.4
IDLE = 6.0
WORDS = "word " * 8
LARGE_WORDS = "word " * 2000
LARGE_CHUNKS = 100
"""A large answer has a megabyte."""
FLOOD = b"x" * 2**16
FINE, ERROR = "fine", "error"
KINDS = {
    "fine": FINE,
    "burst": FINE,
    "no_done": FINE,
    "negative": FINE,
    "large": FINE,
    "trailers": FINE,
    "extensions": ERROR,
    "cut": ERROR,
    "reset": ERROR,
    "fault": ERROR,
    "hang": ERROR,
    "silent": ERROR,
    "busy": ERROR,
    "empty": ERROR,
}
SHARES = [40, 5, 5, 6, 2, 3, 2, 5, 5, 5, 2, 2, 5, 2]
READERS = {"quick": 70, "slow": 15, "leaves_early": 7, "leaves_late": 8}
SERVE = "from streamglot.cli import main; main()"
RELOADS = 4
"""Signals to read the configuration again in the second wave. No stream may notice them."""
SETTLE_SECONDS = 55.0
"""Connections to the upstream wait up to 45 seconds for their next request; then they must be gone."""


# --- the upstream, in a process of its own


async def upstream(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = msgspec.json.decode(await reader.readexactly(length))
            if not await _play(body["model"], writer):
                break
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _play(kind: str, writer: asyncio.StreamWriter) -> bool:
    """False where the connection is over."""
    if kind == "busy":
        writer.write(head(503, "application/json", content_length="0"))
        return True
    if kind == "empty":
        writer.write(head(content_length="0"))
        return True
    if kind == "silent":
        await asyncio.sleep(IDLE * 3)
        return False
    writer.write(head(transfer_encoding="chunked"))
    if kind == "large":
        return await _play_large(writer)
    for number in range(CHUNKS):
        writer.write(piece(sse(text_chunk(WORDS))))
        await writer.drain()
        if number == CHUNKS // 2 and kind == "extensions":
            await _flood(writer, b"5;")
        if number == CHUNKS // 2 and kind in ("cut", "reset", "fault", "hang"):
            if kind == "fault":
                writer.write(piece(sse({"error": {"message": "on fire", "code": 500}})) + b"0\r\n\r\n")
                return True
            if kind == "hang":
                await asyncio.sleep(IDLE * 3)
            elif kind == "reset":
                writer.transport.abort()
            return False
        if kind != "burst":
            await asyncio.sleep(GAP)
    counts = usage(-5, -CHUNKS) if kind == "negative" else usage(5, CHUNKS)
    last = sse(END, counts) if kind == "no_done" else sse(END, counts, DONE)
    if kind == "trailers":
        writer.write(piece(last))
        await _flood(writer, b"0\r\nx: ")
    writer.write(piece(last) + b"0\r\n\r\n")
    await writer.drain()
    return True


async def _play_large(writer: asyncio.StreamWriter) -> bool:
    """As fast as it is taken."""
    for _ in range(LARGE_CHUNKS):
        writer.write(piece(sse(text_chunk(LARGE_WORDS))))
        await writer.drain()
    writer.write(piece(sse(END, usage(5, LARGE_CHUNKS), DONE)) + b"0\r\n\r\n")
    await writer.drain()
    return True


async def _flood(writer: asyncio.StreamWriter, start: bytes) -> None:
    """Until the other side hangs up."""
    writer.write(start)
    while True:
        writer.write(FLOOD)
        await writer.drain()
        await asyncio.sleep(0)


# --- the clients


class LoadClients:
    def __init__(self, port: int) -> None:
        self.port = port
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.over = False

    async def run(self, streams: int, seconds: float) -> None:
        self.over = False
        people = [asyncio.ensure_future(self._person(number)) for number in range(streams)]
        await asyncio.sleep(seconds)
        self.over = True
        await asyncio.gather(*people)

    async def _person(self, number: int) -> None:
        chance = random.Random(number)
        await asyncio.sleep(chance.random() * CHUNKS * GAP)
        while not self.over:
            kind = chance.choices(list(KINDS), SHARES)[0]
            habit = chance.choices(list(READERS), list(READERS.values()))[0]
            client = chance.choice(CLIENT_DIALECTS)
            try:
                outcome = await self._ask(client, kind, habit, chance)
            except (OSError, AssertionError, ValueError, KeyError, TimeoutError, asyncio.IncompleteReadError) as error:
                outcome = "wrong"
                self.wrong.append(f"{client} {kind} {habit}: {type(error).__name__} {error}")
            self.outcomes[outcome] += 1

    async def _ask(self, client: str, kind: str, habit: str, chance: random.Random) -> str:
        model = f"up/{kind}"
        body = msgspec.json.encode(body_of(client, model))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**16)
        try:
            start = f"POST {path_of(client, model)} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(start.encode() + body)
            if habit == "leaves_early":
                await asyncio.sleep(chance.random() * 0.2)
                return "left"
            pieces: list[bytes] = []
            async with asyncio.timeout(60):
                while got := await reader.read(2**16):
                    pieces.append(got)
                    if habit == "leaves_late" and len(pieces) > 3:
                        return "left"
                    if habit == "slow":
                        await asyncio.sleep(chance.random() * GAP * 2)
            found = understood(client, _parsed(b"".join(pieces)))
        finally:
            writer.transport.abort() if habit.startswith("leaves") else writer.close()
        expected = KINDS[kind]
        got_it = ERROR if found.error is not None else FINE
        words = LARGE_WORDS * LARGE_CHUNKS if kind == "large" else WORDS * CHUNKS
        if got_it != expected or (expected == FINE and found.text != words):
            self.wrong.append(f"{client} {kind} {habit}: {str(found)[-1000:]}")
            return "wrong"
        return expected


def _parsed(data: bytes) -> Answer:
    start, _, rest = data.partition(b"\r\n\r\n")
    lines = start.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        pieces = []
        while True:
            size, _, rest = rest.partition(b"\r\n")
            count = int(size, 16)
            if not count:
                break
            pieces.append(rest[:count])
            rest = rest[count + 2 :]
        rest = b"".join(pieces)
    return Answer(int(lines[0].split(" ")[1]), headers, rest)


# --- the gateway, watched from outside


class Watched:
    """The process of a gateway and its workers, if it has some."""

    def __init__(self, process: int, port: int) -> None:
        self._process = process
        self._port = port

    def workers(self) -> list[int]:
        return [int(word) for word in Path(f"/proc/{self._process}/task/{self._process}/children").read_text().split()]

    def megabytes(self) -> float:
        statistics = [Path(f"/proc/{process}/statm").read_text().split() for process in (self._process, *self.workers())]
        return sum(int(words[1]) for words in statistics) * resource.getpagesize() / 2**20

    def files(self) -> int:
        """The open files, without those of the database: the store opens connections as it needs them, and keeps a few."""
        links = [path for process in (self._process, *self.workers()) for path in Path(f"/proc/{process}/fd").iterdir()]
        return sum(".db" not in str(link.readlink()) for link in links if link.is_symlink())

    def open_streams(self) -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics").read().decode()
        return float(next(line.rpartition(" ")[2] for line in page.splitlines() if line.startswith("streamglot_streams_open ")))

    async def settled(self, seconds: float) -> None:
        """Waits until nothing is open any more."""
        await asyncio.sleep(1)
        until = time.monotonic() + 30
        while await asyncio.to_thread(self.open_streams) and time.monotonic() < until:
            await asyncio.sleep(0.5)
        await asyncio.sleep(seconds)


async def _turns(url: str) -> Counter[str]:
    """All turns in the store, by their ending."""
    database = await Database.open(url)
    try:
        rows = await database.fetch("SELECT ending, count(*) AS turns FROM endings GROUP BY ending")
        (started,) = await database.fetch("SELECT count(*) AS turns FROM turns")
    finally:
        await database.close()
    endings = Counter({row.ending: row.turns for row in rows})
    endings["without an ending"] = started.turns - sum(endings.values())
    return endings


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


async def soak(seconds: float, streams: int, workers: int = 1) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 20_000), hard), hard))
    port, behind = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "streamglot.toml"
        config.write_text(
            f'[server]\ndiscover = false\nport = {port}\nworkers = {workers}\nkeep_alive_seconds = 2.0\n[upstreams.up]\nbase_url = "http://127.0.0.1:{behind}/v1"\n'
            f"attempts = 2\npause = 0.05\nbreaker = {{ failures = 1000000 }}\ntimeouts = {{ first_byte = {IDLE}, idle = {IDLE}, connect = 10.0 }}\n"
            f'[store]\nurl = "sqlite:///{folder}/soak.db"\n'
        )
        here = Path(__file__).parents[1]
        source = [sys.executable, "-m", "gateway.soak", "upstream", str(behind)]
        server = subprocess.Popen(source, cwd=here)
        log = (Path(folder) / "log").open("wb")
        gateway = subprocess.Popen([sys.executable, "-c", SERVE, "serve", "--config", str(config)], stderr=log)
        try:
            await soon(lambda: _listens(port) and _listens(behind), lambda: "gateway or upstream did not start")
            watched = Watched(gateway.pid, port)
            await soon(lambda: workers == 1 or len(watched.workers()) == workers, lambda: "a worker did not start")
            started = watched.workers()
            crowd = LoadClients(port)
            fresh = watched.megabytes()
            await crowd.run(streams, seconds / 4)
            await watched.settled(SETTLE_SECONDS)
            warm, files = watched.megabytes(), watched.files()
            running = asyncio.ensure_future(crowd.run(streams, seconds * 3 / 4))
            most, reloads = 0.0, [(place + 1) * seconds * 3 / 4 / (RELOADS + 1) for place in range(RELOADS)]
            began = time.monotonic()
            while not running.done():
                await asyncio.sleep(0.5)
                most = max(most, watched.megabytes())
                if reloads and time.monotonic() - began >= reloads[0]:
                    reloads.pop(0)
                    gateway.send_signal(signal.SIGHUP)
            await running
            await watched.settled(SETTLE_SECONDS)
            left, open_files = watched.megabytes(), watched.files()
            still = watched.open_streams()
            replaced = watched.workers() != started
        finally:
            for process in (gateway, server):
                process.send_signal(signal.SIGTERM)
            gateway.wait(15)
            server.wait(15)
            log.close()
        lines = (Path(folder) / "log").read_text()
        kept = await _turns(f"sqlite:///{folder}/soak.db")
    print(f"{sum(crowd.outcomes.values())} streams, {streams} at once, {workers} workers: {dict(crowd.outcomes)}")
    print(f"turns kept: {dict(kept)}")
    print(f"memory in MB: fresh {fresh:.0f}, after the first wave {warm:.0f}, at most {most:.0f}, at the end {left:.0f}")
    print(f"open files: {files} after the first wave, {open_files} at the end; open streams: {still:.0f}")
    places = [lines.find(mark) for mark in ("Traceback", '"event":"fault"', '"event":"task_failed"')]
    faults = [lines[max(0, place - 200) : place + 1500] for place in places if place >= 0]
    for line in [*crowd.wrong[:20], *faults[:5]]:
        print("WRONG:", line[:1700])
    good = not crowd.wrong and not faults and not still and open_files <= files + 5 and left <= warm * 1.15 + 10
    good = good and not kept["without an ending"] and lines.count('"event":"reloaded"') == RELOADS * workers and not replaced
    print("all right" if good else "NOT right")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["upstream"]:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        asyncio.run(upstream(int(sys.argv[2])))
    sys.exit(asyncio.run(soak(float(sys.argv[1]), *map(int, sys.argv[2:]))))
