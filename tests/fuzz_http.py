"""Broken HTTP requests for any time: ``python -m fuzz_http SECONDS [SEED]`` in the directory tests. Stops at the first fault."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of
from hostile.responses import Malformed, parse_responses
from hostile.targets import HEALTH, HOST, chunks
from waiting import WAIT_SECONDS, until

CONCURRENT: Final = 128
"""Simultaneous connections: most of them wait for a deadline."""
MAX_BYTES: Final = 12_000
"""Bytes of one input: below the pipelining limit, so that the number of reads does not matter."""
MAX_RESPONSES: Final = 24
"""Inputs with more responses are not compared: the number of queued requests depends on timing."""
TRIES: Final = 3
"""A difference that may come from a gateway without CPU must show itself so often."""
GROWTH: Final = 1.25
SPARE_BYTES: Final = 16 * 2**20
"""The allowed growth of the process in bytes from the first third to the end."""
SECONDS: Final = 0.4
"""The deadlines for heads, bodies and idle connections of the gateway under test, in seconds."""
SERVE: Final = """
import sys
from streamglot.cli import main
from streamglot.gateway.http.protocol import HTTPProtocol

HTTPProtocol.head_seconds = HTTPProtocol.keep_alive_seconds = HTTPProtocol.discard_seconds = {seconds}
sys.argv[1:] = ["serve", "--port", "0"]
main()
"""
LISTENS: Final = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")

TOKENS: Final = [
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b";", b"\xff", b"%00", b"%", b"#", b"?", b"0", b"-1", b"/"),
    *(b"9" * 25, b"f" * 20, b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"GET ", b"POST ", b"CONNECT ", b"OPTIONS * ", b"DELETE "),
    *(b"content-length: 5\r\n", b"content-length: 0\r\n", b"content-length: 99999999\r\n", b"transfer-encoding: chunked\r\n"),
    *(
        b"transfer-encoding: gzip\r\n",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"upgrade: websocket\r\n",
    ),
    *(b"expect: 100-continue\r\n", b"host: evil.example\r\n", b"host:\r\n", b"origin: http://localhost\r\n", b"origin: null\r\n"),
    *(
        b"http://localhost:1/",
        b"0\r\n\r\n",
        b"0\r\nx: y\r\n\r\n",
        b"1;a=b\r\nx\r\n",
        b"x-request-id: \xe9\r\n",
        b"\r\n folded\r\n",
    ),
    *(b"{}", b"[" * 2000, b'"\\ud800"', b'"stream":true', b"x-large: " + b"y" * 9000 + b"\r\n", b"x: y\r\n" * 250),
    *(b"last-event-id: 9" + b"9" * 30 + b"\r\n", b"key=", b"&after=-1", b"x-streamglot-keep: 1\r\n"),
]


class Fault(AssertionError):
    """The gateway violated one of its rules."""


# --- inputs


def seeds() -> list[bytes]:
    found = [
        HEALTH,
        b"OPTIONS /ui HTTP/1.1\r\n" + HOST + b"origin: http://localhost\r\naccess-control-request-method: POST\r\n\r\n",
    ]
    for client in CLIENT_DIALECTS:
        for stream in (False, True):
            body = msgspec.json.encode(body_of(client, "replay", stream))
            line = f"POST {path_of(client, 'replay', stream)} HTTP/1.1\r\n".encode() + HOST
            found.append(line + b"content-length: %d\r\n\r\n" % len(body) + body)
            found.append(line + b"transfer-encoding: chunked\r\n\r\n" + chunks(body[:20], body[20:]))
    for path in ("/", "/v1/models", "/v1beta/models/replay", "/ready", "/turns?limit=2", "/v1/streams/x?after=1", "/nowhere"):
        found.append(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"accept: */*\r\n\r\n")
    for path in ("/v1/messages/count_tokens", "/v1/embeddings", "/v1/responses/x/cancel", "/v1/streams/x/stop"):
        found.append(f"POST {path} HTTP/1.1\r\n".encode() + HOST + b'content-length: 18\r\n\r\n{"model":"replay"}')
    return found


def mutated(data: bytes, others: list[bytes], source: random.Random) -> bytes:
    for _ in range(source.choice((0, 1, 1, 2, 3, 6))):
        place = source.randrange(len(data) + 1)
        match source.randrange(8):
            case 0 | 1:
                data = data[:place] + source.choice(TOKENS) + data[place:]
            case 2:
                data = data[:place] + data[place + source.randrange(40) :]
            case 3:
                data = data[: max(1, place)]
            case 4:
                data = data[:place] + data[max(0, place - source.randrange(300)) :]
            case 5:
                other = source.choice(others)
                data = data[:place] + other[source.randrange(len(other) + 1) :]
            case 6:
                data += source.choice(others)
            case _:
                lines = data.split(b"\r\n")
                line = source.randrange(len(lines))
                lines.insert(source.randrange(len(lines)), lines[line])
                data = b"\r\n".join(lines)
    return data[:MAX_BYTES] or b"\n"


def cut(data: bytes, source: random.Random) -> list[bytes]:
    pieces, place = [], 0
    while place < len(data):
        size = source.choice((1, 3, 20, 200, 5000))
        pieces.append(data[place : place + size])
        place += size
    return pieces if len(pieces) < 200 else [data[:100], data[100:]]


# --- one connection


async def outcome(port: int, pieces: list[bytes]) -> list[int] | None:
    """The statuses of all responses, read to the end of the connection, which must come."""
    data, late = bytearray(), False
    async with asyncio.timeout(WAIT_SECONDS):
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                if writer.transport.is_closing():
                    break  # refused before it was complete
                writer.write(piece)
                if len(pieces) > 1:
                    await asyncio.sleep(0.001)
            late = time.monotonic() - began > SECONDS / 2
            while piece := await reader.read(2**16):
                data += piece
        except ConnectionError:
            pass  # closed while sending: the responses so far count
        finally:
            writer.close()
    found = parse_responses(bytes(data))
    if late:
        return None
    if not found:
        raise Fault("no response")
    return [response.status for response in found]


async def tried(port: int, data: bytes, source: random.Random) -> None:
    """HEAD is left out: the form of its response depends on how the server read it."""
    if b"HEAD" in data:
        return
    pieces = cut(data, source)
    for _ in range(TRIES):
        try:
            whole, again = await outcome(port, [data]), await outcome(port, pieces)
        except TimeoutError:
            raise Fault("the connection was not closed") from None
        except Malformed as error:
            raise Fault(str(error)) from error
        if whole is None or again is None or whole == again or len(whole) >= MAX_RESPONSES:
            return
        if 408 not in (*whole, *again):
            break
    raise Fault(f"{whole} as a whole, {again} in pieces")


# --- the gateway


class Gateway:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def check(self) -> None:
        if self.process.poll() is not None:
            raise Fault(f"the gateway ended with {self.process.returncode}")
        log = self._log.read_text(errors="replace")
        for mark in ('"event":"fault"', "Traceback"):
            if mark in log:
                raise Fault(log[log.index(mark) - 100 :][:3000])

    def check_connections(self) -> None:
        """All connections must have been closed by the gateway."""
        until(lambda: not self._connections(), lambda: f"{self._connections()} connections are still open")

    def _connections(self) -> int:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] in ("01", "08") for row in rows)


@contextmanager
def serving() -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
        settings = {
            "STREAMGLOT_SERVER__DISCOVER": "false",
            "STREAMGLOT_SERVER__BODY_SECONDS": str(SECONDS),
            "STREAMGLOT_STORE__URL": f"sqlite:///{folder}/fuzz.db",
            "HOME": folder,
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(seconds=SECONDS)], stderr=sink, env={**kept, **settings}, cwd=folder
            )
        try:
            until(lambda: LISTENS.search(log.read_text()) or process.poll() is not None)
            listening = LISTENS.search(log.read_text())
            assert listening, log.read_text()
            gateway = Gateway(process, int(listening[1]), log)
            until(lambda: _answers(gateway.port))
            yield gateway
        finally:
            process.terminate()
            process.wait(WAIT_SECONDS)


def _answers(port: int) -> bool:
    try:
        return asyncio.run(outcome(port, [HEALTH])) == [200]
    except OSError:
        return False


class Run:
    """A number of clients that send inputs until the time is over or a fault occurs."""

    def __init__(self, gateway: Gateway, seconds: float, seed: int) -> None:
        self.count = 0
        self._gateway = gateway
        self._seed = seed
        self._seconds = seconds
        self._began = time.monotonic()
        self._samples = seeds()

    async def fuzz(self) -> None:
        gateway, settled = self._gateway, 0
        clients = [asyncio.ensure_future(self._client(number)) for number in range(CONCURRENT)]
        waiting = set(clients)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
                for client in done:
                    client.result()
                gateway.check()
                if not settled and self._passed() > self._seconds / 3:
                    settled = gateway.resident_bytes()
        finally:
            for client in clients:
                client.cancel()
        gateway.check_connections()
        now = gateway.resident_bytes()
        if now > settled * GROWTH + SPARE_BYTES:
            raise Fault(f"it grew from {settled} to {now} bytes")

    async def _client(self, number: int) -> None:
        source = random.Random(self._seed * CONCURRENT + number)
        while True:
            data = mutated(source.choice(self._samples), self._samples, source)
            try:
                await tried(self._gateway.port, data, source)
            except Exception:
                fault = Path(f"fuzz-http-{self._seed}-{number}.bin")
                fault.write_bytes(data)
                print(f"the input is in {fault}: {data[:300]!r}", file=sys.stderr)
                raise
            self.count += 1
            if self._passed() >= self._seconds:
                return

    def _passed(self) -> float:
        return time.monotonic() - self._began


def run(seconds: float, seed: int) -> int:
    with serving() as gateway:
        found = Run(gateway, seconds, seed)
        asyncio.run(found.fuzz())
        return found.count


if __name__ == "__main__":
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    print(f"seed {chosen}", flush=True)
    print(f"{run(limit, chosen)} requests, seed {chosen}: all answered")
