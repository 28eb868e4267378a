"""A model whose process dies is restarted at the same address; until then requests get an error that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.running import Answer, running
from local.model import needed
from local.serving import awaited, serving
from ports import free_port
from streamglot.upstream.local import LocalServer
from streamglot.upstream.local.supervisor import _exit_reason
from streamglot.upstream.local.weights import chosen

QUESTION = {"model": "local", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")


def children(process: int) -> list[int]:
    """The child processes of all threads."""
    found: list[int] = []
    for place in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, place.read_text().split())
    return found


def named(processes: list[int], module: str) -> list[int]:
    found = []
    for process in processes:
        with suppress(OSError):  # the process has ended
            if module.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server with weights that can be removed."""
    needed()
    weights = chosen()
    assert weights is not None
    place = tmp_path / weights.name
    place.symlink_to(weights)
    server = LocalServer(place)
    server._port = free_port()  # while the server is dead, nobody else may get its port
    try:
        yield server
    finally:
        server.stop()


def test_requests_get_an_error_until_the_model_is_back(server: LocalServer) -> None:
    upstream = server.start()
    assert server.process is not None
    weights = server.weights.readlink()
    settings = {"base_url": upstream.base_url, "key": upstream.key, "models": upstream.models, "attempts": 1}
    with running({"upstreams": {"local": {**settings, "breaker": {"failures": 10_000}}}}) as gateway:
        ask: Callable[[], Answer] = lambda: gateway.ask("/v1/chat/completions", QUESTION)
        assert ask().status == 200
        server.weights.unlink()
        [first] = children(server.process)
        os.kill(first, signal.SIGKILL)
        refused = awaited(
            lambda: (answer := ask()).status == 503 and b"starting it again failed" in answer.body and answer, "no word"
        )
        assert b"the process of the local model was ended by SIGKILL" in refused.body
        assert b"it is being started again" in refused.body
        assert int(refused.headers["retry-after"]) >= 1
        server.weights.symlink_to(weights)
        awaited(lambda: ask().status == 200, "it did not come back")
    assert server.start().base_url == upstream.base_url
    [second] = children(server.process)
    assert second != first


def test_a_dead_supervisor_is_replaced_at_the_same_address(server: LocalServer) -> None:
    before = server.start()
    assert server.process is not None
    [model] = children(server.process)
    os.kill(server.process, signal.SIGKILL)
    awaited(lambda: not server.running and not alive(model), "the model outlived its supervisor")
    assert server.start() == before


def test_nothing_outlives_a_process_that_was_killed() -> None:
    needed()
    code = (
        "import time\nfrom streamglot.upstream.local import local_server\nserver = local_server()\nserver.start()\n"
        "print(server.process, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        supervisor = int(parent.stdout.readline())
        [model] = children(supervisor)
        parent.send_signal(signal.SIGKILL)
    awaited(lambda: not alive(supervisor) and not alive(model), "the model is still there")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_gateway_gets_its_model_back(tmp_path: Path, workers: str) -> None:
    needed()
    with serving(tmp_path, "--workers", workers, STREAMGLOT_LOCAL="on") as gateway:
        mine = gateway.process.pid
        [supervisor] = named(children(mine), "streamglot.upstream.local.supervisor")
        awaited(lambda: gateway.ask()[0] == 200, "it never answered")
        [model] = children(supervisor)
        os.kill(model, signal.SIGKILL)
        awaited(lambda: gateway.ask()[0] == 200, "it did not come back")
        events = awaited(lambda: len(found := _events(gateway.log_text())) > 1 and found, "it did not say so")
        assert events == ["local_model_ended", "local_model_back"]
        assert len(children(supervisor)) == 1
        assert len(children(mine)) == (1 if workers == "1" else 3)
        [model] = children(supervisor)
    awaited(lambda: not alive(supervisor) and not alive(model), "something was left behind")


def _events(output: str) -> list[str]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line["event"] for line in lines if str(line.get("event", "")).startswith("local_model")]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_exit_reasons() -> None:
    assert _exit_reason(3) == "ended with status 3"
    assert _exit_reason(-9) == "was ended by SIGKILL"
    assert _exit_reason(-63) == "was ended by signal 63"
