"""``streamglot launch``: a program in place of a coding agent, on a gateway that is started for it or runs already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cli.shell import Shell, text_answer
from gateway.running import running
from gateway.upstream import hostile, whole
from streamglot.cli.commands.launch import AGENTS, Place, is_gateway
from waiting import WAIT_SECONDS, until

AGENT = """\
#!{python}
import json, os, signal, sys, urllib.request
address = os.environ["ANTHROPIC_BASE_URL"]
print(address, flush=True)
if "wait" in sys.argv:
    awaited = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # a handler could run before a sleep begins, which would then go on
    print("waiting", flush=True)
    sys.exit(100 + signal.sigwait(awaited))
body = {{"model": os.environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"], "max_tokens": 9, "messages": [{{"role": "user", "content": "hi"}}]}}
request = urllib.request.Request(address + "/v1/messages", json.dumps(body).encode(), {{"content-type": "application/json"}})
print(json.load(urllib.request.urlopen(request))["content"][0]["text"], sys.argv[1:], "ANTHROPIC_API_KEY" in os.environ)
sys.exit(7)
"""


@pytest.fixture
def agent(shell: Shell) -> Shell:
    """A shell with a program ``claude``."""
    program = shell.home / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    shell.environment |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "STREAMGLOT_SERVER__PORT": "1"}
    return shell


def test_an_agent_runs_on_a_gateway_of_its_own(agent: Shell) -> None:
    model = agent.add_recording("hello", text_answer("Hello", " world"))
    before = {path for path in agent.home.rglob("*") if path.is_file()}
    done = agent.run("launch", "claude", "-m", f"recorded/{model}", "--", "-p", "x", environment={"ANTHROPIC_API_KEY": "mine"})
    address, answer = done.stdout.decode().splitlines()
    assert answer == "Hello world ['-p', 'x'] False"
    assert done.returncode == 7, "the status is that of the agent"
    assert not is_gateway(address), "the gateway ended with it"
    left = {path for path in agent.home.rglob("*") if path.is_file()} - before
    assert {path.name for path in left} == {"streamglot.db"}, "no file stays but the store"


def test_a_gateway_that_runs_is_used(agent: Shell) -> None:
    agent.add_recording("hello", text_answer("Hello"))
    upstreams = {"recorded": {"base_url": f"file:{agent.recordings}", "models": ["hello"]}}
    with running({"upstreams": upstreams}) as gateway:
        done = agent.run("launch", "claude-code", environment={"STREAMGLOT_SERVER__PORT": str(gateway.port)})
        assert done.stdout.decode().splitlines() == [gateway.url, "Hello [] False"]
        until(lambda: is_gateway(gateway.url), lambda: "it ended")


def test_interrupts_are_for_the_agent(agent: Shell) -> None:
    with agent.terminal("launch", "claude", "-m", "recorded/x", "wait") as terminal:
        terminal.until(b"waiting")
        terminal.type("\x03")
        assert terminal.end() == 100 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_is_passed_on_to_the_agent(agent: Shell, number: signal.Signals) -> None:
    with agent.started("launch", "claude", "-m", "recorded/x", "wait") as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        assert launcher.stdout.readline() == b"waiting\n"
        launcher.send_signal(number)
        assert launcher.wait(WAIT_SECONDS) == 100 + number


LAUNCHER = """\
import os, signal, subprocess, sys, threading, time
from streamglot.cli.commands import launch

agent = "import signal, sys; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]); sys.stdin.read()"
{before}
print(launch._run([sys.executable, "-c", agent], os.environ))
"""

TO_ANOTHER_THREAD = """\
def terminate():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    time.sleep(0.2)  # the wait has begun; if it has not, the order is the other one that is tested
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Thread(target=terminate).start()
"""

BEFORE_THE_AGENT = """\
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(*arguments, **options)


subprocess.Popen = Popen
"""


@pytest.mark.parametrize("before", [TO_ANOTHER_THREAD, BEFORE_THE_AGENT], ids=["another thread", "before the agent"])
def test_a_signal_that_does_not_interrupt_the_wait_for_the_agent_is_passed_on(before: str) -> None:
    script = LAUNCHER.format(before=before)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        try:
            launcher.wait(WAIT_SECONDS)
        finally:
            launcher.kill()
        assert launcher.stdout.read() == b"143\n"


def test_a_signal_that_the_launcher_ignores_is_ignored_by_the_agent() -> None:
    """As with ``nohup``."""
    script = """\
import os, signal, sys
from streamglot.cli.commands import launch

signal.signal(signal.SIGHUP, signal.SIG_IGN)
launch._run([sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGHUP).name)"], os.environ)
"""
    assert subprocess.check_output([sys.executable, "-c", script], timeout=WAIT_SECONDS).split() == [b"SIG_IGN"]


def test_the_gateway_ends_with_a_launcher_that_is_killed(agent: Shell) -> None:
    with agent.started("launch", "claude", "-m", "recorded/x", "wait") as launcher:
        assert launcher.stdout is not None
        address = launcher.stdout.readline().decode().strip()
        assert launcher.stdout.readline() == b"waiting\n"
        until(lambda: is_gateway(address))
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        launcher.kill()
        until(lambda: not is_gateway(address))
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("nobody",), "choose one of: codex, claude, gemini, opencode, qwen"),
        (("gemini",), "npm install -g @google/gemini-cli"),
        (("claude",), "name one with -m"),
    ],
)
def test_a_launch_that_is_not_possible_is_refused_with_the_reason(agent: Shell, arguments: tuple[str, ...], why: str) -> None:
    path = f"{agent.home / 'bin'}:/usr/bin:/bin"
    settings = {"PATH": path, "STREAMGLOT_UPSTREAMS__MORE": '{"base_url": "file:/x", "models": ["a", "b"]}'}
    done = agent.run("launch", *arguments, environment=settings)
    assert done.returncode == 2
    assert why in done.stderr.decode()


def test_another_server_at_the_port_is_not_taken_for_a_gateway() -> None:
    with hostile() as other:
        other.scripts[""] = whole({"status": "ok"})
        assert not is_gateway(other.url)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_gets_address_model_and_key(name: str, tmp_path: Path) -> None:
    place = Place("http://127.0.0.1:7", "some-model", "some-key", tmp_path)
    given = str([AGENTS[name].environment(place), AGENTS[name].options(place)])
    for word in ("http://127.0.0.1:7", "some-model", "some-key"):
        assert word in given
