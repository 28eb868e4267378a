"""Broken answers of upstreams for as long as you like: ``python -m fuzz_upstream SECONDS [SEED]`` in the folder tests.

An upstream takes recorded answers of every dialect apart and sends them wrongly: hostile framing, headers, trailers, lengths,
numbers and bodies, cut anywhere and ended in every way. Clients of every dialect ask for them through a gateway in a process of
its own. Every request must be answered by one well-formed HTTP response in the client's dialect, within the deadlines; requests
to an upstream that behaves must succeed all the time; no secret may come out; the gateway must not crash, log a fault, hang or
grow.

A case is made of the seed and its number alone. It stops at the first fault and says how to run that case again.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from dialects.test_invalid_numbers import ODD, STREAMS
from fuzz import mutated
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, body_of, path_of, understood
from gateway.running import Answer
from ports import free_port
from recordings import recordings

CONCURRENT: Final = 32
"""Requests at once: many of them wait for a deadline."""
DEADLINES: Final = {"connect": 10.0, "first_byte": 1.5, "idle": 0.8, "total": 5.0}
WAIT_SECONDS: Final = 90.0
"""Seconds for one answer: far more than its deadlines, as the machine may be busy."""
LARGEST_BYTES: Final = 3 * 2**20
"""Bytes of one answer. A few large ones are enough to see memory grow."""
GROWTH: Final = 1.3
SPARE_MEGABYTES: Final = 64
"""The process may be so many times as large, and so much larger, at the end as after the first third."""
KEY: Final = "zq-9f8e7d6c5b4a-0123456789"
GONE_RIGHT: Final = "This upstream behaves."
DIALECTS: Final = tuple(STREAMS)
NUMBER: Final = re.compile(rb"(?<=[:\[,])\s*-?\d+(?:\.\d+)?(?=\s*[,}\]])")
STATUSES: Final = (200, 200, 200, 200, 200, 201, 204, 206, 300, 302, 304, 400, 401, 404, 408, 413, 429, 500, 503, 529, 600, 999)
ODD_STATUSES: Final = (b"099", b"000", b"1", b"-20", b"20", b"2000", b"abc", b"", b"100", b"101", b"103", b"\xff\xff\xff")
RETRIES: Final = (
    "inf",
    "1e400",
    "-5",
    "nan",
    "0",
    "9" * 400,
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Mon, 99 Jan 99999 99:99:99 +9999",
    ",",
)


class Case(Struct):
    """The bytes that an upstream sends, and how it ends. ``cut``: the size of a write, 0 for all in one. ``general``: read by the
    client for proxies, and not by our own."""

    dialect: str
    general: bool
    client: str
    stream: bool
    data: bytes
    cut: int
    pause: float
    end: str


# --- cases


def samples() -> dict[str, list[bytes]]:
    """Answers of each dialect that are as they should be."""
    found: dict[str, list[bytes]] = {name: [STREAMS[name].replace(b"@", b"1")] for name in DIALECTS}
    for one in recordings():
        if one.dialect in found:
            found[one.dialect].append(one.body[:30_000])
    return found


def case_of(seed: int, number: int, known: dict[str, list[bytes]]) -> Case:
    """The case of this number."""
    chance = random.Random(f"{seed} {number}")
    dialect = chance.choice(DIALECTS)
    client = chance.choice(CLIENT_DIALECTS)
    stream = client in STREAMS_ONLY or chance.random() < 0.6
    body = _body(dialect, known, chance)
    data = _message(body, chance)
    if chance.random() < 0.1:
        data = mutated(data[:20_000], [body or b"x", b"HTTP/1.1 200 OK\r\n\r\n"], chance)
    cut = chance.choice((0, 0, 0, 1, 7, 100, 4096)) if len(data) < 5000 else chance.choice((0, 4096, 65536))
    end = chance.choices(("close", "keep", "reset", "hang", "more"), (50, 20, 10, 4, 6))[0]
    return Case(dialect, chance.random() < 0.15, client, stream, data, cut, chance.choice((0.0, 0.0, 0.001)), end)


def _body(dialect: str, known: dict[str, list[bytes]], chance: random.Random) -> bytes:
    others = known[chance.choice(DIALECTS)]
    body = chance.choice(known[dialect])
    match chance.randrange(9):
        case 0:
            return body
        case 1:
            return NUMBER.sub(lambda found: chance.choice(ODD) if chance.random() < 0.3 else found[0], body)
        case 2:
            return chance.choice(others)
        case 3:
            error = {
                "message": f"no: {KEY}",
                "code": chance.choice((KEY, "²", 999, -1, None)),
                "type": "x" * chance.randrange(200),
            }
            error_body = msgspec.json.encode({"error": error, "retry_after": 10**30})
            return chance.choice(
                (
                    error_body,
                    b"data: " + error_body + b"\n\n",
                    error_body + b"\n",
                    body[: len(body) // 2] + b"\n\ndata: " + error_body,
                )
            )
        case 4:
            depth = chance.choice((10, 500, 900, 5000))
            return b'{"error":' * depth + b'"\\ud800"' + b"}" * depth
        case 5:
            return (body + b"\n\n") * chance.randint(2, 20)
        case 6 if chance.random() < 0.1:
            return (body * (LARGEST_BYTES // len(body)))[:LARGEST_BYTES]
        case _:
            return mutated(body, others, chance)


def _message(body: bytes, chance: random.Random) -> bytes:
    """The body as an HTTP message, right or wrong."""
    headers = [b"content-type: " + chance.choice((b"text/event-stream", b"application/json", b"", b"text/html; charset=\xff"))]
    if chance.random() < 0.12:
        encoding = chance.choice((b"gzip", b"deflate", b"x-gzip", b"br", b"identity", b"gzip, gzip", b"GZIP "))
        headers.append(b"content-encoding: " + encoding)
        packed = zlib.compress(body) if encoding == b"deflate" else gzip.compress(body)
        body = chance.choice((packed, packed[:-5], packed + b"x" * 5000, body, mutated(packed, [body or b"x"], chance)))
    if chance.random() < 0.15:
        headers.append(b"retry-after: " + chance.choice(RETRIES).encode())
    if chance.random() < 0.1:
        headers += [_odd_header(number, chance) for number in range(chance.choice((1, 3, 200, 3000)))]
    start = _start(chance)
    match chance.randrange(6):
        case 0:
            lengths = (len(body), len(body) - 1, len(body) + 5, -1, 2**63, 2**64, "0x10", "1e3", "", f"{len(body)}, {len(body)}")
            headers.append(b"content-length: " + str(chance.choice((len(body), *lengths))).encode())
        case 1:
            headers.append(b"connection: close")
        case 2:
            headers += [b"transfer-encoding: chunked", b"content-length: %d" % chance.choice((0, len(body), 10**9))]
            body = _chunked(body, chance)
        case 3:
            odd = (b"gzip, chunked", b"chunked, chunked", b"identity", b" chunked", b"CHUNKED", b"chunked\x0b", b"xchunked")
            headers.append(b"transfer-encoding: " + chance.choice(odd))
            body = _chunked(body, chance)
        case _:
            headers.append(b"transfer-encoding: chunked")
            body = _chunked(body, chance)
    chance.shuffle(headers)
    end = chance.choice((b"\r\n",) * 8 + (b"\n", b"\r"))
    return start + end + end.join([*headers, b"", b""]) + body


def _start(chance: random.Random) -> bytes:
    version = chance.choice((b"HTTP/1.1",) * 12 + (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"http/1.1", b"ICY", b"SSH-2.0"))
    status = chance.choice(ODD_STATUSES) if chance.random() < 0.05 else str(chance.choice(STATUSES)).encode()
    reason = chance.choice(
        (b"OK", b"", b"\xff" * 20, b"x" * chance.choice((10, 70_000, 200_000)) if chance.random() < 0.1 else b"Fine")
    )
    before = (
        b"HTTP/1.1 103 Hints\r\nlink: </x>\r\n\r\n" * chance.choice((0, 0, 0, 0, 0, 1, 5000)) if chance.random() < 0.2 else b""
    )
    return before + version + b" " + status + b" " + reason


def _odd_header(number: int, chance: random.Random) -> bytes:
    name = chance.choice(
        (b"x-%d" % number, b"x", b"set-cookie", b"", b" x", b"x y", b"\xff", b"x\0", b"content-length", b"connection")
    )
    value = chance.choice((b"y", b"y" * 500, b"\xff\xfe", b"\0", b"a\r\n folded", b"upgrade", b"close", KEY.encode(), b"\t"))
    return name + chance.choice((b": ", b":", b" : ", b"")) + value


def _chunked(body: bytes, chance: random.Random) -> bytes:
    pieces: list[bytes] = []
    place, wrong = 0, chance.random() < 0.2
    size = chance.choice((1, 5, 100, 5000, 70_000)) if len(body) < 20_000 else 70_000
    while place < len(body):
        piece = body[place : place + size]
        place += size
        length = b"%x" % len(piece)
        if wrong and chance.random() < 0.1:
            length = chance.choice(
                (b"0" * 50 + length, length.upper(), b"-1", b"0x5", b"", b"zz", b"f" * 17, b"f" * 30, length + b" ")
            )
        more = (
            chance.choice((b"", b"", b"", b";a=b", b';q="\r\n"', b";" + b"e" * chance.choice((10, 3000, 150_000))))
            if wrong
            else b""
        )
        pieces.append(length + more + b"\r\n" + piece + (b"\r\n" if not wrong or chance.random() < 0.97 else b""))
    if chance.random() < 0.9:
        count = chance.choice((0, 0, 0, 1, 3, 500, 4000)) if wrong else 0
        trailers = b"".join(b"x-%d: %b\r\n" % (number, b"t" * chance.randrange(100)) for number in range(count))
        pieces.append(b"0\r\n" + trailers + (b"\r\n" if chance.random() < 0.95 else b""))
    return b"".join(pieces)


# --- the upstream


class FuzzedUpstream:
    """Answers a request for the model ``case-N`` with the bytes of case N; any other with an answer that is right."""

    def __init__(self, seed: int) -> None:
        self.cases: dict[str, Case] = {}
        self.known = samples()
        self._seed = seed

    def make(self, number: int) -> Case:
        case = self.cases[f"case-{number}"] = case_of(self._seed, number, self.known)
        return case

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.I)
                body = await reader.readexactly(int(length[1]) if length else 0)
                found = re.search(rb"case-\d+", head.partition(b"\r\n")[0]) or re.search(rb"case-\d+", body)
                case = self.cases.get(found[0].decode()) if found else None
                if case is None:
                    writer.write(_right())
                    await writer.drain()
                elif not await _play(case, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def _right() -> bytes:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": GONE_RIGHT}, "finish_reason": None}]}
    end = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in (chunk, end)) + b"data: [DONE]\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _play(case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """False where the connection is over."""
    step = case.cut or len(case.data) or 1
    for place in range(0, len(case.data), step):
        writer.write(case.data[place : place + step])
        await writer.drain()
        await asyncio.sleep(case.pause if place < 2000 else 0)
    match case.end:
        case "keep":
            return True
        case "more":
            writer.write(case.data[:2000])
            await writer.drain()
        case "hang":
            async with asyncio.timeout(2 * DEADLINES["total"]):
                while await reader.read(2**16):
                    pass
        case "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
    return False


# --- the clients


class Fault(Exception):
    """An outcome that must not happen."""


async def _ask(port: int, client: str, model: str, stream: bool) -> Answer:
    """One request, and its answer, which must be one whole HTTP message."""
    body = msgspec.json.encode(body_of(client, model, stream))
    lines = (
        f"POST {path_of(client, model, stream)} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {len(body)}"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(lines.encode() + b"\r\n\r\n" + body)
        pieces = []
        while piece := await reader.read(2**18):
            pieces.append(piece)
    finally:
        writer.close()
    return _parsed(b"".join(pieces))


def _parsed(data: bytes) -> Answer:
    start, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        raise Fault(f"no answer, but {data[:200]!r}")
    lines = start.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        pieces, place = [], 0
        while True:
            end = rest.find(b"\r\n", place)
            if end < 0:
                raise Fault("the answer was cut off")
            size = int(rest[place:end], 16)
            if not size:
                break
            pieces.append(rest[end + 2 : end + 2 + size])
            place = end + 4 + size
        rest = b"".join(pieces)
    elif len(rest) != int(headers.get("content-length", len(rest))):
        raise Fault(f"an answer of {len(rest)} bytes, and a content-length of {headers['content-length']}")
    return Answer(int(lines[0].split(" ")[1]), headers, rest)


def _check(case: Case, answer: Answer) -> None:
    if not (answer.status == 200 or 400 <= answer.status < 600):
        raise Fault(f"status {answer.status}")
    if answer.status == 500 and b"internal error of the gateway" in answer.body:
        raise Fault(f"internal error of the gateway: {answer.body[:300]!r}")
    try:
        found = understood(case.client, answer, case.stream)
    except Exception as error:
        raise Fault(f"no answer of this dialect: {type(error).__name__}: {error}: {answer.body[:300]!r}") from error
    if found.error is not None and KEY in found.error:
        raise Fault(f"the key: {found.error[:500]}")


# --- the gateway, watched from outside


class Gateway:
    """``right`` is the port of the upstream that behaves: what another one sends too late can be taken for the next answer."""

    def __init__(self, folder: Path, wrong: int, right: int) -> None:
        deadlines = ", ".join(f"{name} = {value}" for name, value in DEADLINES.items())
        lines = ["[server]", "discover = false", "keep_alive_seconds = 0.3", "shutdown_seconds = 1.0", "[store]"]
        lines += [f'url = "sqlite:///{folder}/store.db"', "raw = true"]
        patient = "timeouts = { first_byte = 80.0, idle = 80.0 }"
        for name, dialect, more in (
            *((name, name, f"timeouts = {{ {deadlines} }}") for name in DIALECTS),
            *((f"general_{name}", name, f'timeouts = {{ {deadlines} }}\nheaders = {{ host = "x" }}') for name in DIALECTS),
            ("right", "openai_chat", patient),
        ):
            lines += [f"[upstreams.{name}]", f'dialect = "{dialect}"', f'key = "{KEY}"', more]
            lines += [
                f'base_url = "http://127.0.0.1:{right if name == "right" else wrong}/{name}"',
                "attempts = 1",
                "breaker = { failures = 1000000000 }",
            ]
        config = folder / "streamglot.toml"
        config.write_text("\n".join(lines))
        self.log = folder / "log"
        self.port = free_port()
        code = "from streamglot.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--config", str(config), "--port", str(self.port)]
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(command, stderr=sink, env=kept)

    async def ready(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while b"streamglot listens on" not in self.log.read_bytes() or not await self._answers():
                self.check()
                await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            return (await _ask(self.port, "openai_chat", "replay", False)).status == 200
        except OSError:
            return False

    def check(self) -> None:
        if self.process.poll() is not None:
            raise Fault(
                f"the gateway ended with status {self.process.returncode}: {self.log.read_text(errors='replace')[-2000:]}"
            )
        if self.faults():
            raise Fault("the log tells of a fault")

    def faults(self) -> str:
        """The forbidden lines of the log."""
        log = self.log.read_text(errors="replace")
        places = [log.find(mark) for mark in ("Traceback", '"event":"fault"', '"event":"task_failed"', KEY)]
        return "\n".join(log[max(0, place - 300) : place + 2500].replace("\\n", "\n") for place in places if place >= 0)

    def megabytes(self) -> float:
        words = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(words[1]) * resource.getpagesize() / 2**20

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


class Run:
    """``most`` cases from the one numbered ``first``, for some ``seconds``."""

    def __init__(self, seed: int, seconds: float, first: int = 0, most: int = 10**9) -> None:
        self.seed = seed
        self.end = time.monotonic() + seconds
        self.next, self.last = first, first + most
        self.tried = 0
        self.under_way: dict[int, Case] = {}

    async def run(self) -> int:
        upstream = FuzzedUpstream(self.seed)
        servers = [await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**26) for _ in range(2)]
        with tempfile.TemporaryDirectory() as folder:
            gateway = Gateway(Path(folder), *(server.sockets[0].getsockname()[1] for server in servers))
            try:
                await gateway.ready()
                began, warm = time.monotonic(), 0.0
                workers = [asyncio.ensure_future(self._work(gateway, upstream)) for _ in range(CONCURRENT)]
                while not all(worker.done() for worker in workers):
                    await asyncio.wait(workers, timeout=2.0, return_when=asyncio.FIRST_EXCEPTION)
                    for worker in workers:
                        if worker.done():
                            worker.result()
                    gateway.check()
                    if not warm and time.monotonic() - began > (self.end - began) / 3:
                        warm = gateway.megabytes()
                await self._settle(gateway, warm)
            except Fault as fault:
                await asyncio.sleep(0.5)  # the log is written a moment later
                raise Fault(f"{fault}\n{gateway.faults()}") from None
            except TimeoutError:
                raise Fault(f"no answer to the cases {sorted(self.under_way)} within {WAIT_SECONDS:g} s") from None
            finally:
                gateway.stop()
                for server in servers:
                    server.close()
        return self.tried

    async def _work(self, gateway: Gateway, upstream: FuzzedUpstream) -> None:
        while time.monotonic() < self.end and self.next < self.last:
            number, self.next = self.next, self.next + 1
            case = self.under_way[number] = upstream.make(number)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    _check(case, await self._ask(gateway, case, number))
                    if number % 10 == 0:
                        fine = understood(case.client, await _ask(gateway.port, case.client, "right/m", case.stream), case.stream)
                        if fine.error is not None or fine.text != GONE_RIGHT:
                            raise Fault(f"the answer of the correct upstream is wrong: {fine}")
            except Fault as fault:
                file = Path(f"fuzz-upstream-{self.seed}-{number}.bin")
                file.write_bytes(case.data)
                again = f"python -m fuzz_upstream 60 {self.seed} {number}"
                shape = f"{case.dialect} to {case.client}, stream {case.stream}, cut {case.cut}, end {case.end}"
                raise Fault(f"case {number} ({shape}; its bytes are in {file}; again: {again}): {fault}") from None
            del self.under_way[number], upstream.cases[f"case-{number}"]
            self.tried += 1

    async def _ask(self, gateway: Gateway, case: Case, number: int) -> Answer:
        upstream = f"general_{case.dialect}" if case.general else case.dialect
        return await _ask(gateway.port, case.client, f"{upstream}/case-{number}", case.stream)

    async def _settle(self, gateway: Gateway, warm: float) -> None:
        """Nothing is open any more, and the memory is back."""
        until = time.monotonic() + WAIT_SECONDS
        most = max(warm * GROWTH, warm + SPARE_MEGABYTES)
        while True:
            gateway.check()
            page = (await _metrics(gateway.port)).decode()
            still = [
                line for line in page.splitlines() if line.startswith("streamglot_streams_open ") and not line.endswith(" 0.0")
            ]
            size = gateway.megabytes()
            if not still and (size <= most or not warm):
                return
            if time.monotonic() > until:
                raise Fault(f"{warm:.0f} MB became {size:.0f} MB; still open: {still}")
            await asyncio.sleep(0.5)


async def _metrics(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        return await reader.read(-1)
    finally:
        writer.close()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    first, most = (int(sys.argv[3]), 1) if len(sys.argv) > 3 else (0, 10**9)
    try:
        tried = asyncio.run(Run(seed, seconds, first, most).run())
    except Fault as fault:
        print(f"seed {seed}: {fault}", file=sys.stderr)
        return 1
    print(f"{tried} answers of upstreams, seed {seed}: every request was answered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
