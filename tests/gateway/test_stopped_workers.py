"""``streamglot serve`` with several workers: what happens to connections when processes are signalled, stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gateway import test_gateway_serve
from gateway.dialect_clients import body_of
from gateway.raw import RawClient, raw
from gateway.scenarios import DONE, END, text_chunk
from gateway.test_gateway_serve import CHAT, COMMAND, Process, children_of, refuses, serving, settings
from gateway.upstream import HostileUpstream, Until, sse, streamed
from streamglot.config import Config, LoadedConfig
from streamglot.gateway.supervisor import _Supervisor, listen
from waiting import WAIT_SECONDS, until

CLIENTS = 30
FILES = 128
"""Open files that a process may have."""
WORKERS = ["1", "2", "3"]


def processes_of(served: Process, workers: str) -> list[int]:
    """The processes that answer requests."""
    if workers == "1":
        return [served.process.pid]
    until(lambda: len(children_of(served.process.pid)) == int(workers))
    return children_of(served.process.pid)


def accepting(process: int) -> bool:
    """Whether this process has its event loop: it watches the listening socket."""
    return any("eventpoll" in link for link in links(process))


def links(process: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # the process has closed it
            found.append(os.readlink(path))
    return found


def status_of(client: RawClient) -> bytes:
    """The status of the answer; empty where the connection ended without one."""
    try:
        return client.read_until(b"}]").partition(b"\r\n")[0][9:12]
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_connections_that_no_worker_has_accepted_yet_are_answered(tmp_path: Path, workers: str, number: signal.Signals) -> None:
    with serving(tmp_path, "", "--workers", workers) as served, ExitStack() as opened:
        processes = processes_of(served, workers)
        until(lambda: all(map(accepting, processes)))
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        clients = [opened.enter_context(raw(served.port)) for _ in range(CLIENTS)]
        for client in clients:
            client.post(CHAT, body_of("openai_chat", "replay", False))
        served.process.send_signal(number)
        for process in processes:
            os.kill(process, signal.SIGCONT)
        statuses = {status_of(client) for client in clients}
    assert statuses <= {b"200", b"503"}
    assert number == signal.SIGTERM or statuses == {b"200"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_more_connections_than_files_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    """A process that has no file left for a connection does not accept it."""
    monkeypatch.setattr(test_gateway_serve, "COMMAND", ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *COMMAND])
    with serving(tmp_path, "", "--workers", workers) as served, ExitStack() as opened:
        clients = [opened.enter_context(raw(served.port)) for _ in range(FILES * 3)]
        for client in clients:
            client.post(CHAT, body_of("openai_chat", "replay", False), {"connection": "close"})
        statuses: Counter[bytes] = Counter()
        for client in clients:
            statuses[status_of(client)] += 1
            client.hang_up()
    assert set(statuses) <= {b"200", b"503"}
    assert statuses[b"200"]


def test_nobody_can_connect_while_the_last_streams_end(upstream: HostileUpstream, tmp_path: Path) -> None:
    """The supervisor has the listening socket, too. A connection that no worker accepts would wait and then be reset."""
    go_on = threading.Event()
    upstream.scripts["last-stream"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    config = settings(upstream, server="shutdown_seconds = 600")
    with serving(tmp_path, config, "--workers", "2") as served, raw(served.port) as one:
        processes_of(served, "2")
        one.post(CHAT, body_of("openai_chat", "last-stream"))
        one.read_until(b"Hello")
        served.process.terminate()
        until(lambda: refuses(served.port))
        assert served.process.poll() is None
        go_on.set()
        assert b" world" in one.read_until(b"[DONE]")
        assert served.process.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("stores", [False, True], ids=["no store", "a store"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_hang_up_signal_does_not_change_how_a_stopping_gateway_ends(tmp_path: Path, workers: str, stores: bool) -> None:
    """A store has threads, which can get the signal too."""
    store = f"sqlite:///{tmp_path / 'store.db'}" if stores else "none"
    with serving(tmp_path, "", "--workers", workers, store=store) as served:
        processes_of(served, workers)
        assert served.ask(CHAT, body_of("openai_chat", "replay", False))[0] == 200  # a store has its threads by now
        served.process.terminate()
        while served.process.poll() is None:
            served.process.send_signal(signal.SIGHUP)
        assert served.process.returncode == 0


def test_the_last_of_several_hang_up_signals_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal comes while the supervisor still reads the configuration because of the first."""
    configs = [LoadedConfig(Config()), LoadedConfig(Config())]
    read: list[LoadedConfig] = []

    def load(*_: object, **__: object) -> LoadedConfig:
        found = configs[len(read)]
        read.append(found)
        if len(read) == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        return found

    monkeypatch.setattr("streamglot.gateway.lifecycle.load", load)
    with listen("127.0.0.1", 0) as listener:
        supervisor = _Supervisor(LoadedConfig(Config()), listener)
        before = signal.signal(signal.SIGHUP, supervisor._pass_on)
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: len(read) == 2)
        finally:
            signal.signal(signal.SIGHUP, before)
    assert supervisor._loaded is configs[1]


WAITING = """\
import os, signal, threading
from streamglot.gateway.supervisor import ended_child
from streamglot.tasks import woken_by_signals

ended, lives = os.pipe()
child = os.fork()
if not child:
    os.close(lives)
    os._exit(len(os.read(ended, 1)))  # with its parent at the latest
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def terminate():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


with woken_by_signals() as woken:
    threading.Timer(0.2, terminate).start()  # after the wait has begun; the order does not matter
    assert ended_child(woken) == child
"""


def test_a_signal_that_does_not_interrupt_the_wait_for_a_worker_is_handled() -> None:
    """Another thread gets it, so the thread that waits is not interrupted. The same happens to a signal just before the wait."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
