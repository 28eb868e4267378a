"""A soak of judges: many streams at once, each with two calls whose judge takes seconds.

    python -m gateway.soak_policies STREAMS JUDGE_SECONDS        (from the folder tests)

Text before the calls must reach the client while the judge is still busy, every stream must end as its upstream or its verdicts
mean it, and the memory must be back where it was after the first wave."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of, understood
from gateway.scenarios import DONE, PARIS, UTC, called, calls, chunk, text_chunk, usage
from gateway.soak import SERVE, Watched, _parsed
from gateway.upstream import head, piece, sse
from ports import free_port
from streamglot.policies import FORWARD, Needs, Piece, Policy, block, refuse
from streamglot.policies.policy import Engine, JudgeContext
from streamglot.policies.verdicts import Verdict

TEXT = "Let me look. "
REFUSAL = "[no]"
KINDS = {"fine": 80, "cut": 10, "leaves": 10}
"""Shares of a hundred streams: proper ends, upstreams that break off after the first call, clients that disconnect."""
DIALECTS = tuple(name for name in CLIENT_DIALECTS if name != "openai_completions")  # which has no calls
WAVES = 3
SPREAD_SECONDS = 1.0
"""The streams of a wave begin within this time."""


class SlowJudge(Policy, frozen=True):
    """Waits, then forwards ``weather`` and refuses everything else."""

    wait: float = 2.0

    def needs(self) -> Needs:
        return block("tool_call")

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        await asyncio.sleep(self.wait)
        return FORWARD if piece.name == "weather" else refuse(REFUSAL)


# --- the upstream, in a process of its own


async def upstream(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    weather = sse(calls(called(0, "call_a", "weather", '{"city":"Paris"}')))
    other = sse(calls(called(1, "call_b", "time", '{"tz":"UTC"}')))
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = msgspec.json.decode(await reader.readexactly(length))
            writer.write(head(transfer_encoding="chunked") + piece(sse(text_chunk(TEXT))) + piece(weather + other))
            await writer.drain()
            if body["model"] == "cut":
                break
            writer.write(piece(sse(chunk({}, "tool_calls"), usage(5, 9), DONE)) + b"0\r\n\r\n")
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


# --- the clients


class Clients:
    """``ahead`` has for each stream the seconds by which its text came before what the judge released."""

    def __init__(self, port: int, wait: float) -> None:
        self._port = port
        self._wait = wait
        self.outcomes: Counter[str] = Counter()
        self.ahead: list[float] = []
        self.wrong: list[str] = []

    async def wave(self, streams: int) -> None:
        await asyncio.gather(*(self._one(number) for number in range(streams)))

    async def _one(self, number: int) -> None:
        chance = random.Random(number)
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        dialect = DIALECTS[number % len(DIALECTS)]
        await asyncio.sleep(chance.random() * SPREAD_SECONDS)
        try:
            self.outcomes[await self._ask(dialect, kind)] += 1
        except (OSError, AssertionError, ValueError, KeyError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.wrong.append(f"{dialect} {kind}: {type(error).__name__} {error}")

    async def _ask(self, dialect: str, kind: str) -> str:
        model = f"up/{kind}"
        body = msgspec.json.encode(body_of(dialect, model, tools=("weather", "time")))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**16)
        start = f"POST {path_of(dialect, model)} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        text_at = 0.0
        data = b""
        try:
            writer.write(start.encode() + body)
            async with asyncio.timeout(60 + self._wait):
                while got := await reader.read(2**16):
                    data += got
                    if not text_at and TEXT.strip().encode() in data:
                        text_at = time.monotonic()
                        assert b"weather" not in data.rpartition(TEXT.strip().encode())[2], "the call came with the text"
                        if kind == "leaves":
                            return kind
                    elif b"weather" in got:
                        self.ahead.append(time.monotonic() - text_at)
        finally:
            writer.transport.abort() if kind == "leaves" else writer.close()
        found = understood(dialect, _parsed(data))
        assert text_at, f"no text: {found}"
        if kind == "cut":
            assert found.error is not None, f"a stream that broke off looks whole: {found}"
            return kind
        assert (found.error, found.calls) == (None, [("weather", PARIS)]), found
        assert str(UTC) not in str(found), "a refused call left"
        assert REFUSAL in found.text + found.reasoning, found
        return kind


# --- all of it


async def soak(streams: int, wait: float) -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, hard), hard))
    port, behind = free_port(), free_port()
    here = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(here)}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "streamglot.toml"
        config.write_text(
            f"[server]\ndiscover = false\nport = {port}\n[store]\nurl = 'none'\n"
            f"[upstreams.up]\nbase_url = 'http://127.0.0.1:{behind}/v1'\nattempts = 1\nbreaker = {{ failures = 1000000 }}\n"
            f"[[policies]]\nuse = 'gateway.soak_policies:SlowJudge'\nwait = {wait}\nseconds = {wait + 60}\n"
        )
        source = [sys.executable, "-m", "gateway.soak_policies", "upstream", str(behind)]
        server = subprocess.Popen(source, cwd=here)
        log = (Path(folder) / "log").open("wb")
        command = [sys.executable, "-c", SERVE, "serve", "--config", str(config)]
        gateway = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            await _listening(port, behind)
            watched, clients = Watched(gateway.pid, port), Clients(port, wait)
            fresh, most = watched.megabytes(), 0.0
            after: list[float] = []
            for _ in range(WAVES):
                running = asyncio.ensure_future(clients.wave(streams))
                while not running.done():
                    await asyncio.sleep(0.1)
                    most = max(most, watched.megabytes())
                await running
                await watched.settled(1.0)
                after.append(watched.megabytes())
            still = watched.open_streams()
        finally:
            for process in (gateway, server):
                process.send_signal(signal.SIGTERM)
            gateway.wait(15)
            server.wait(15)
            log.close()
        lines = (Path(folder) / "log").read_text()
    return _report(clients, streams, wait, (fresh, most, after), still, "Traceback" in lines)


async def _listening(*ports: int) -> None:
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                break


def _report(
    clients: Clients, streams: int, wait: float, memory: tuple[float, float, list[float]], still: float, fault: bool
) -> int:
    fresh, most, after = memory
    print(f"{WAVES} waves of {streams} streams, each with two calls that a judge holds for {wait:g} s: {dict(clients.outcomes)}")
    quartiles = statistics.quantiles(clients.ahead, n=100)
    print(f"text came before the call by {min(clients.ahead):.2f} s at least, {quartiles[0]:.2f} s in 99 of 100 streams")
    each = (most - fresh) / streams * 1024
    print(
        f"memory in MB: fresh {fresh:.0f}, at most {most:.0f} ({each:.0f} KB a stream), after each wave {[round(one) for one in after]}"
    )
    for line in clients.wrong[:20]:
        print("WRONG:", line[:1000])
    delayed = sum(one < wait / 2 for one in clients.ahead)
    good = not clients.wrong and not fault and not still and not delayed and after[-1] <= after[0] * 1.15 + 10
    print(
        "all right"
        if good
        else f"NOT right: {len(clients.wrong)} wrong, {delayed} delayed, {still:.0f} open, fault in the log: {fault}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["upstream"]:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        asyncio.run(upstream(int(sys.argv[2])))
    sys.exit(asyncio.run(soak(int(sys.argv[1]), float(sys.argv[2]))))
