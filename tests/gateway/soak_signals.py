"""A soak of signals: clients of every kind ask while the configuration changes, workers are killed and the gateway stops.

    python -m gateway.soak_signals SECONDS [WORKERS]        (from the folder tests)

The gateway must answer every connection that the system has accepted, except those of a worker that was killed: with the whole
answer or with a typed error. After the gateway has been told to stop, connections are refused.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from gateway.scenarios import DONE, END, text_chunk, usage
from gateway.signal_clients import CHUNKS, KEY, STALE, WORD, SignalClients
from gateway.soak import SERVE, Watched, _listens
from gateway.upstream import head, piece, sse
from ports import free_port
from streamglot.gateway.auth.authenticator import digest_of
from waiting import soon

PEOPLE = 200
RELOADS = ("same", "burst", "bad", "removed", "one worker", "same", "keys", "policies", "burst", "one worker", "same")
KILLS = ("same", "kill", "burst", "kill", "same")
SHUTDOWN_SECONDS = 3.0


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
            gap = int(body["model"].rpartition("-")[2]) / 1000
            writer.write(head(transfer_encoding="chunked"))
            for _ in range(CHUNKS):
                writer.write(piece(sse(text_chunk(WORD))))
                await asyncio.sleep(gap)
            writer.write(piece(sse(END, usage(5, CHUNKS), DONE)) + b"0\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


class GatewayProcess:
    """A gateway whose configuration changes."""

    def __init__(self, folder: str, port: int, behind: int, workers: int) -> None:
        self.port = port
        self._workers = workers
        self._path = Path(folder) / "streamglot.toml"
        self._server = f"discover = false\nport = {port}\nworkers = {workers}\nshutdown_seconds = {SHUTDOWN_SECONDS}"
        self._upstream = f'base_url = "http://127.0.0.1:{behind}/v1"\nmodels = ["*"]\n'
        self._store = f'[store]\nurl = "sqlite:///{folder}/soak.db"\n'
        self.write()
        self.log = Path(folder) / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", SERVE, "serve", "--config", str(self._path)], stderr=log)

    def write(self, upstreams: tuple[str, ...] = ("up", "two"), key: str = KEY, more: str = "") -> None:
        keys = f'[[server.keys]]\nname = "a"\nhash = "{digest_of(key)}"\n'
        listed = "".join(f"[upstreams.{name}]\n{self._upstream}" for name in upstreams)
        new = self._path.with_suffix(".new")
        new.write_text(f"[server]\n{self._server}\n{keys}{listed}{more}{self._store}")
        os.replace(new, self._path)

    async def started(self) -> None:
        await soon(lambda: _listens(self.port), lambda: self.log.read_text())
        await soon(lambda: self._workers == 1 or len(self.workers()) == self._workers)

    def workers(self) -> list[int]:
        return Watched(self.process.pid, self.port).workers() if self._workers > 1 else [self.process.pid]

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def act(self, name: str, clients: SignalClients) -> None:
        match name:
            case "burst":
                for _ in range(5):
                    self.reload()
                    await asyncio.sleep(0.003)
            case "bad":
                self._path.write_text("[server")
                self.reload()
                await asyncio.sleep(0.5)
                self.write()
            case "removed":
                self.write(upstreams=("up",))
            case "keys":
                self.write(key="another")
                self.reload()
                await asyncio.sleep(0.3)
                self.write()
            case "policies":
                self.write(more='[[policies]]\nuse = "redact"\npatterns = { ticket = "TCK-[0-9]{6}" }\n')
            case "one worker":
                self.write()
                os.kill(random.choice(self.workers()), signal.SIGHUP)
            case "kill":
                clients.killed.append(time.monotonic())
                os.kill(random.choice(self.workers()), signal.SIGKILL)
        if name not in ("burst", "one worker", "kill"):
            self.reload()


async def _phase(name: str, gateway: GatewayProcess, seconds: float, acts: tuple[str, ...]) -> list[str]:
    """Lets clients ask for this time and acts meanwhile. Without acts the gateway is stopped in the middle."""
    clients = SignalClients(gateway.port)
    running = asyncio.ensure_future(clients.run(PEOPLE))
    for act in acts:
        await asyncio.sleep(seconds / (len(acts) + 1))
        await gateway.act(act, clients)
    await asyncio.sleep(seconds / (len(acts) + 1))
    if not acts:
        gateway.process.terminate()
        status = await asyncio.to_thread(gateway.process.wait, 60)
        clients.wrong += [f"the gateway ended with status {status}"] if status else []
    clients.over = True
    await running
    if acts and clients.outcomes[STALE]:
        clients.wrong.append(f"{clients.outcomes[STALE]} connections were closed although the gateway goes on")
    print(f"{name}: {sum(clients.outcomes.values())} requests: {dict(clients.outcomes)}")
    return clients.wrong


async def soak(seconds: float, workers: int = 2) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    port, behind = free_port(), free_port()
    source = subprocess.Popen(
        [sys.executable, "-m", "gateway.soak_signals", "upstream", str(behind)], cwd=Path(__file__).parents[1]
    )
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        await soon(lambda: _listens(behind), lambda: "the upstream did not start")
        phases = {"reloads": RELOADS, "kills": KILLS if workers > 1 else ("same",), "stop": ()}
        for name, acts in phases.items():
            gateway = GatewayProcess(folder, port, behind, workers)
            try:
                await gateway.started()
                wrong += await _phase(name, gateway, seconds / len(phases), acts)
            finally:
                if gateway.process.poll() is None:
                    gateway.process.terminate()
                    gateway.process.wait(30)
        lines = gateway.log.read_text()
    source.terminate()
    source.wait()
    events = Counter(
        mark for mark in ("reloaded", "reload_failed", "fault", "task_failed") for _ in range(lines.count(f'"{mark}"'))
    )
    print(f"{workers} workers, log: {dict(events)}")
    wrong += [lines[lines.find("Traceback") :][:1500]] if "Traceback" in lines or events["fault"] else []
    for line in wrong[:20]:
        print("WRONG:", line)
    print("NOT right" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["upstream"]:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        asyncio.run(upstream(int(sys.argv[2])))
    sys.exit(asyncio.run(soak(float(sys.argv[1]), *map(int, sys.argv[2:]))))
