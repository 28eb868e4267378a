"""``streamglot serve`` as a process of its own: signals, several workers on one socket, refusals at the start."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import warm
from gateway.dialect_clients import body_of
from gateway.raw import raw
from gateway.scenarios import DONE, END, PLAIN, text_chunk
from gateway.upstream import Hang, HostileUpstream, Until, head, sse, streamed
from streamglot.gateway.auth.authenticator import digest_of
from waiting import WAIT_SECONDS, until

LISTENS = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")
COMMAND = [sys.executable, "-c", "from streamglot.cli import main; main()", "serve"]
CHAT = "/v1/chat/completions"


class Process:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait_for(self, words: str) -> None:
        until(lambda: words in self.log.read_text(), lambda: f"{words!r} was not logged: {self.log.read_text()}")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
    return {**kept, "STREAMGLOT_SERVER__DISCOVER": "false", "STREAMGLOT_STORE__URL": "none"}


@contextmanager
def serving(
    tmp_path: Path, config: str, *options: str, signalled: bool = False, discover: bool = False, store: str = "none"
) -> Iterator[Process]:
    """``signalled``: it receives SIGHUP repeatedly until it answers."""
    found = {
        "STREAMGLOT_SERVER__DISCOVER": str(discover).lower(),
        "STREAMGLOT_LOCAL": "off",
        "STREAMGLOT_STORE__URL": store,
    }
    path = tmp_path / "streamglot.toml"
    path.write_text(config)
    log = tmp_path / "log"
    with log.open("wb") as sink:
        command = [*COMMAND, "--config", str(path), "--port", "0", *options]
        process = warm.Popen(command, stderr=sink, env={**environment(), **found}, start_new_session=True)
    try:
        until(
            lambda: LISTENS.search(log.read_text()) or process.poll() is not None,
            lambda: f"it did not start: {log.read_text()}",
        )
        listening = LISTENS.search(log.read_text())
        assert listening, f"it ended: {log.read_text()}"
        served = Process(process, int(listening[1]), log)
        while signalled and process.poll() is None and refuses(served.port):
            process.send_signal(signal.SIGHUP)
        until(lambda: not refuses(served.port))
        assert served.ask("/health")[0] == 200
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def settings(upstream: HostileUpstream, models: str = '["*"]', server: str = "") -> str:
    limits = "timeouts = { idle = 120.0 }"
    return f'[server]\n{server}\n[upstreams.mine]\nbase_url = "{upstream.url}/v1"\nmodels = {models}\n{limits}\n'


def test_a_hang_up_signal_reads_the_configuration_again(upstream: HostileUpstream, tmp_path: Path) -> None:
    go_on = threading.Event()
    upstream.scripts["hup-a"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    upstream.scripts["hup-b"] = streamed(PLAIN)
    with serving(tmp_path, settings(upstream, '["hup-a"]')) as served:
        with raw(served.port) as one:
            one.post(CHAT, body_of("openai_chat", "hup-a"))
            data = one.read_until(b"Hello")
            (tmp_path / "streamglot.toml").write_text(settings(upstream, '["hup-b"]'))
            served.process.send_signal(signal.SIGHUP)
            served.wait_for('"reloaded"')
            assert served.ask(CHAT, body_of("openai_chat", "hup-b"))[0] == 200
            (tmp_path / "streamglot.toml").write_text("[server")
            served.process.send_signal(signal.SIGHUP)
            served.wait_for('"reload_failed"')
            assert served.ask(CHAT, body_of("openai_chat", "hup-b"))[0] == 200
            go_on.set()
            data += one.read_until(b"[DONE]")
        assert b" world" in data
        assert served.process.poll() is None


def test_it_says_where_the_page_is_and_which_keys_it_looked_for(tmp_path: Path) -> None:
    with serving(tmp_path, "", discover=True) as served:
        served.wait_for("More: streamglot setup CLIENT")
        words = served.log.read_text()
    assert re.search(rf"chat and inspector +http://127\.0\.0\.1:{served.port}/\n", words)
    assert re.search(r"replay +found", words)
    assert "openai (OPENAI_API_KEY)" in words
    assert "gemini (GEMINI_API_KEY)" in words  # a line does not end inside a pair
    assert "ollama (127.0.0.1:11434)" in words or re.search(r"ollama +found", words)
    assert len(words.splitlines()) < 35  # the beginning is still on the screen


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_hang_up_signal_before_it_can_be_handled_ends_nothing(tmp_path: Path, workers: str) -> None:
    """From the moment in which it says that it listens, and for workers that start later as well."""
    with serving(tmp_path, "", "--workers", workers, signalled=True) as served:
        assert served.process.poll() is None
        if workers == "2":
            until(lambda: len(children_of(served.process.pid)) == 2)
            first, second = children_of(served.process.pid)
            os.kill(first, signal.SIGKILL)
            until(lambda: first not in children_of(served.process.pid))

            def replaced() -> list[int]:
                served.process.send_signal(signal.SIGHUP)
                return [child for child in children_of(served.process.pid) if child != second]

            until(replaced)
            (third,) = replaced()
            lines = served.log.read_text().count('"reloaded"')
            until(lambda: replaced() == [third] and served.log.read_text().count('"reloaded"') > lines + 20)
            assert sorted(children_of(served.process.pid)) == sorted((second, third))
        assert served.ask("/health")[0] == 200


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "bad",
    [
        "[server]\nredact = ['a{99999999999999999999}']\n",
        "[server]\nx = " + "[" * 20_000 + "]" * 20_000,
        "[server]\nkeys = [{ name = 'a', key_env = 'NOT_SET' }]\n",
        "[[routes]]\nmodels = ['x']\nto = [{ upstream = 'nobody' }]\n",
        "\xff\xfe",
    ],
    ids=["pattern", "depth", "key", "route", "bytes"],
)
def test_a_bad_configuration_ends_no_process(tmp_path: Path, bad: str, workers: str) -> None:
    """Not the supervisor, not a worker, and not a worker that starts later."""
    with serving(tmp_path, "[server]\n", "--workers", workers) as served:
        supervised = workers == "2"
        until(lambda: len(children_of(served.process.pid)) == (2 if supervised else 0))
        before = children_of(served.process.pid)
        (tmp_path / "streamglot.toml").write_bytes(bad.encode("latin-1"))
        served.process.send_signal(signal.SIGHUP)
        until(lambda: served.log.read_text().count('"reload_failed"') == (3 if supervised else 1))
        assert served.process.poll() is None
        assert children_of(served.process.pid) == before
        for child in before:
            os.kill(child, signal.SIGKILL)
        until(lambda: len(children_of(served.process.pid)) == len(before) and not {*children_of(served.process.pid)} & {*before})
        assert served.ask(CHAT, body_of("openai_chat", "replay", False))[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_stops_the_gateway(upstream: HostileUpstream, tmp_path: Path, number: signal.Signals) -> None:
    upstream.scripts["term"] = [head(), sse(text_chunk("Hello")), Hang()]
    with serving(tmp_path, settings(upstream, server="shutdown_seconds = 0.3")) as served, raw(served.port) as one:
        one.post(CHAT, body_of("openai_chat", "term"))
        one.read_until(b"Hello")
        served.process.send_signal(number)
        until(lambda: refuses(served.port))
        rest = one.read_until(b"[DONE]")
        assert b"shutting down" in rest
        assert b"shutting_down" in rest
        assert served.process.wait(WAIT_SECONDS) in (0, -number, 128 + number)


def test_a_terminal_stops_all_workers_properly(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Ctrl-C goes to every process of the terminal's group at once, and still each stream ends properly."""
    upstream.scripts["ctrl"] = [head(), sse(text_chunk("Hello")), Hang()]
    with serving(tmp_path, settings(upstream, server="shutdown_seconds = 0.3"), "--workers", "2") as served, ExitStack() as open:
        until(lambda: len(children_of(served.process.pid)) == 2)
        clients = [open.enter_context(raw(served.port)) for _ in range(8)]
        for client in clients:
            client.post(CHAT, body_of("openai_chat", "ctrl"))
            client.read_until(b"Hello")
        os.killpg(served.process.pid, signal.SIGINT)
        for client in clients:
            assert b"shutting_down" in client.read_until(b"[DONE]")
        assert served.process.wait(WAIT_SECONDS) == 0


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return True
    return False


def test_an_idle_gateway_stops_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "[server]\nshutdown_seconds = 3600\n") as served:
        served.process.terminate()
        served.process.wait(WAIT_SECONDS)


def test_workers_share_one_socket(upstream: HostileUpstream, tmp_path: Path) -> None:
    upstream.scripts["worked"] = streamed(PLAIN)
    with serving(tmp_path, settings(upstream), "--workers", "2") as served:
        until(lambda: len(children_of(served.process.pid)) == 2)
        children = children_of(served.process.pid)
        for _ in range(20):
            status, body = served.ask(CHAT, body_of("openai_chat", "worked", False))
            assert status == 200
            assert b"Hello world" in body
        until(lambda: counted(served) == 20, lambda: "any worker tells the sum")
        os.kill(children[0], signal.SIGKILL)
        until(
            lambda: len(children_of(served.process.pid)) == 2 and children[0] not in children_of(served.process.pid),
            lambda: "one that dies is replaced",
        )
        served.process.send_signal(signal.SIGHUP)
        served.wait_for('"reloaded"')
        assert served.ask(CHAT, body_of("openai_chat", "worked", False))[0] == 200
        children = children_of(served.process.pid)
        served.process.terminate()
        assert served.process.wait(WAIT_SECONDS) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def counted(served: Process) -> float:
    page = served.ask("/metrics")[1].decode()
    lines = (line for line in page.splitlines() if line.startswith("streamglot_requests_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def children_of(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    if not path.exists():
        return []
    return [int(word) for word in path.read_text().split()]


def refused(tmp_path: Path, config: str, *options: str) -> str:
    path = tmp_path / "streamglot.toml"
    path.write_text(config)
    done = subprocess.run(
        [*COMMAND, "--config", str(path), *options], capture_output=True, env=environment(), timeout=WAIT_SECONDS
    )
    assert done.returncode == 2, done
    assert b"Traceback" not in done.stderr
    return done.stderr.decode()


def test_it_refuses_to_start_outside_loopback_without_keys(tmp_path: Path) -> None:
    assert "without keys" in refused(tmp_path, "", "--host", "0.0.0.0", "--port", "0")


def test_it_refuses_a_bad_configuration(tmp_path: Path) -> None:
    assert "prot" in refused(tmp_path, "[server]\nprot = 1\n")


def test_it_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert "cannot listen" in refused(tmp_path, "", "--port", str(one.getsockname()[1]))


def test_workers_count_together(tmp_path: Path) -> None:
    """A key's requests per minute are the same, however many processes there are: twelve, and one every five seconds."""
    keys = f'keys = [{{ name = "a", hash = "{digest_of("sesame")}", requests_per_minute = 12 }}]'
    with serving(tmp_path, f"[server]\n{keys}\n", "--workers", "2") as served:
        began = time.monotonic()

        def ask(times: int) -> list[bytes]:
            statuses = []
            for _ in range(times):
                with raw(served.port) as one:
                    one.post(CHAT, body_of("openai_chat", "replay", False), {"x-api-key": "sesame", "connection": "close"})
                    statuses.append(one.read_all().split(b" ")[1])
            return statuses

        statuses = ask(20)
        served.process.send_signal(signal.SIGHUP)
        served.wait_for('"reloaded"')
        statuses += ask(10)
        allowed = 13 + int((time.monotonic() - began) / 5)
        assert set(statuses) == {b"200", b"429"}
        assert 12 <= statuses.count(b"200") <= allowed
