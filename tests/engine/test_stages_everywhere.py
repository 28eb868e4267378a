"""A stage and an observer that the configuration names work through the gateway, the client and the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import Shell, text_answer
from gateway.running import running
from streamglot import Client, Upstream, collect
from streamglot.config import load
from streamglot.errors import ConfigError

PLUGIN = """
from pathlib import Path
from msgspec.structs import replace
from streamglot.engine.observer import ExchangeResult, Observer
from streamglot.events import Event, TextDelta
from streamglot.messages import Request, TextPart
from streamglot.stages.stage import Output, Stage


class Shout(Stage):
    def request(self, request: Request) -> Request:
        request.messages[-1].parts.append(TextPart(" please"))
        return request

    def feed(self, events: list[Event]) -> list[Output]:
        return [TextDelta(event.text.upper()) if isinstance(event, TextDelta) else event for event in events]


class Watch(Observer):
    wants_response = True

    def finished(self, result: ExchangeResult) -> None:
        text = result.response.choices[0].text if result.response and result.response.choices else ""
        with Path(__file__).with_name("seen.txt").open("a") as file:
            file.write(f"{result.record.ending} {text} {result.request.messages[-1].text}\\n")


class Broken(Observer):
    def events(self, events: list[Event]) -> None:
        raise RuntimeError("an observer must not break a stream")
"""

BROKEN_STAGES = """
from streamglot.stages.stage import Stage

number = 3


class Broken(Stage):
    def __init__(self) -> None:
        1 / 0
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.add_recording("talk", text_answer("hello ", "world"))
    (tmp_path / "plugin_of_test.py").write_text(PLUGIN)
    config = tmp_path / "streamglot.toml"
    config.write_text(
        '[engine]\nstages = ["plugin_of_test:Shout"]\nobservers = ["plugin_of_test:Broken", "plugin_of_test:Watch"]\n'
        + config.read_text()
    )
    shell.environment["PYTHONPATH"] = str(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield shell
    sys.modules.pop("plugin_of_test", None)


def seen(shell: Shell) -> str:
    return (shell.home / "seen.txt").read_text()


def test_through_the_gateway(shell: Shell) -> None:
    with running(path=shell.home / "streamglot.toml", environment=shell.environment) as gateway:
        body = {"model": "talk", "messages": [{"role": "user", "content": "hi"}]}
        answer = gateway.ask("/v1/chat/completions", body)
        assert answer.json()["choices"][0]["message"]["content"] == "HELLO WORLD"
        streamed = gateway.ask("/v1/chat/completions", {**body, "stream": True})
        assert b"HELLO" in streamed.body
        gateway.log_line(lambda line: line.get("event") == "observer_failed")
    assert seen(shell) == "end HELLO WORLD hi please\n" * 2


def test_through_the_client(shell: Shell) -> None:
    loaded = load(shell.home / "streamglot.toml", shell.environment)
    with Client(config=loaded, environment=shell.environment) as client:
        answer = collect(client.stream(model="talk", messages="hi"))
    assert answer.choices[0].text == "HELLO WORLD"
    assert seen(shell) == "end HELLO WORLD hi please\n"


def test_through_the_command_line(shell: Shell) -> None:
    done = shell.run("query", "-m", "talk", "hi")
    assert (done.returncode, done.stdout.strip()) == (0, b"HELLO WORLD"), done.stderr
    assert seen(shell) == "end HELLO WORLD hi please\n"


def test_a_stage_that_ends_the_process_ends_only_its_request(shell: Shell) -> None:
    (shell.home / "plugin_of_test.py").write_text("def leave(*_):\n    raise SystemExit(3)\n")
    config = shell.home / "streamglot.toml"
    config.write_text(config.read_text().replace("plugin_of_test:Shout", "plugin_of_test:leave").replace("observers = ", "# "))
    with running(path=config, environment=shell.environment) as gateway:
        for stream in (False, True):
            body = {"model": "talk", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            assert gateway.ask("/v1/chat/completions", body).status == 500
        assert gateway.ask("/health").status == 200


def test_an_observer_that_ends_the_process_is_refused(shell: Shell) -> None:
    (shell.home / "plugin_of_test.py").write_text("def leave(*_):\n    raise SystemExit(3)\n")
    loaded = load(shell.home / "streamglot.toml", shell.environment)
    loaded.config.engine.stages, loaded.config.engine.observers = [], ["plugin_of_test:leave"]
    refused = pytest.raises(ConfigError, match="plugin_of_test:leave cannot be created: SystemExit: 3")
    with refused, Client(config=loaded, environment=shell.environment):
        pass


def test_a_stage_that_does_not_exist_is_refused_with_its_name(shell: Shell) -> None:
    loaded = load(shell.home / "streamglot.toml", shell.environment)
    loaded.config.engine.stages = ["plugin_of_test:Nothing"]
    with pytest.raises(Exception, match="has no 'Nothing'"), Client(config=loaded, upstreams=[Upstream(name="x")]):
        pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [("number", "is neither a subclass of Stage nor a function"), ("Broken", "cannot be created: ZeroDivisionError")],
)
def test_a_stage_that_cannot_be_created_is_refused(shell: Shell, name: str, reason: str) -> None:
    """A reload that names it would let every request fail."""
    (shell.home / "plugin_of_test.py").write_text(BROKEN_STAGES)
    loaded = load(shell.home / "streamglot.toml", shell.environment)
    loaded.config.engine.stages = [f"plugin_of_test:{name}"]
    with pytest.raises(ConfigError, match=reason), Client(config=loaded, upstreams=[Upstream(name="x")]):
        pass
