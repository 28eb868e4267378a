"""``streamglot approvals``: a person decides about held calls of a running gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.shell import Shell, chunk
from gateway.dialect_clients import Understood, body_of, understood
from gateway.running import Answer, Running, running
from response_server import serve_response
from streamglot.dialects import dialect
from streamglot.messages import ToolCallPart
from streamglot.stages import collect
from waiting import until

PATCH = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "shell", "input": "*** Begin Patch\n-rm\n*** End Patch\n"}}
CALL = {"index": 0, "id": "c1", "function": {"name": "shell", "arguments": '{"command":"rm"}'}}


class Waiting:
    """A gateway with one call that waits for a person. ``answer`` is what the client understood at the end."""

    def __init__(self, shell: Shell, gateway: Running) -> None:
        self.shell = shell
        self._gateway = gateway
        self._found: list[Answer] = []
        self._asking = threading.Thread(target=self._ask)
        self._asking.start()
        until(lambda: gateway.ask("/approvals", headers=self._headers).json()["approvals"])
        [self.asked] = gateway.ask("/approvals", headers=self._headers).json()["approvals"]

    @property
    def _headers(self) -> dict[str, str]:
        key = self.shell.environment.get("STREAMGLOT_KEY")
        return {"authorization": f"Bearer {key}"} if key else {}

    def _ask(self) -> None:
        body = body_of("openai_chat", "call", True, ("shell",))
        self._found.append(self._gateway.ask("/v1/chat/completions", body, self._headers))

    def answer(self) -> Understood:
        self._asking.join()
        return understood("openai_chat", self._found[0])

    def text_of_call(self) -> str:
        """The input of the call of a custom tool."""
        self._asking.join()
        reader = dialect("openai_chat").reader()
        response = collect([*reader.feed(self._found[0].body), *reader.close()])
        return "".join(part.arguments for part in response.choices[0].parts if isinstance(part, ToolCallPart))

    def run(self, *arguments: str, status: int = 0, stdin: bytes = b"", **more: str) -> str:
        done = self.shell.run("approvals", *arguments, "--url", self._gateway.url, stdin=stdin, environment=more)
        assert done.returncode == status, done
        return (done.stdout + done.stderr).decode()


@contextmanager
def held(tmp_path: Path, server: str = "", call: dict[str, Any] = CALL, **environment: str) -> Iterator[Waiting]:
    shell = Shell(tmp_path)
    shell.environment.update(environment)
    shell.add_recording("call", [chunk(content="one moment"), chunk(tool_calls=[call]), chunk("tool_calls"), "data: [DONE]\n\n"])
    config = tmp_path / "streamglot.toml"
    config.write_text(f'{config.read_text()}\n[[policies]]\nuse = "human_approval"\n{server}')
    with running(path=config, environment=shell.environment) as gateway:
        yield Waiting(shell, gateway)


def test_open_approvals_are_listed(tmp_path: Path) -> None:
    with held(tmp_path) as waiting:
        listed = waiting.run("list")
        assert listed.split()[:2] == ["id", "tool"]
        assert all(word in listed for word in (waiting.asked["id"], "shell", '{"command":"rm"}', "human_approval"))
        (line,) = waiting.run("list", "--json").splitlines()
        assert json.loads(line) == waiting.asked
        waiting.run("approve", waiting.asked["id"])
        assert waiting.answer().calls == [("shell", {"command": "rm"})]
        assert "nothing waits" in waiting.run("list")


@pytest.mark.parametrize(
    ("arguments", "calls", "text"),
    [
        (("approve", "ID"), [("shell", {"command": "rm"})], "one moment"),
        (("edit", "ID", '{"command":"ls"}'), [("shell", {"command": "ls"})], "one moment"),
        (("deny", "ID"), [], "one moment[refused by a person]"),
        (("deny", "ID", " Not on a Friday."), [], "one moment Not on a Friday."),
    ],
)
def test_a_decision_resumes_the_answer(tmp_path: Path, arguments: tuple[str, ...], calls: list[Any], text: str) -> None:
    with held(tmp_path) as waiting:
        beginning = waiting.asked["id"][:-1]
        done = waiting.run(*(beginning if word == "ID" else word for word in arguments))
        assert done == f"{waiting.asked['id']}: {'denied' if arguments[0] == 'deny' else 'approved'}\n"
        understood = waiting.answer()
    assert (understood.calls, understood.text, understood.error) == (calls, text, None)


def test_arguments_are_edited_in_an_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/rm/ls/ "$1"\n')
    editor.chmod(0o755)
    with held(tmp_path, EDITOR=str(editor)) as waiting:
        assert "nothing was decided" in waiting.run("edit", waiting.asked["id"], EDITOR="true", status=1)
        waiting.run("edit", waiting.asked["id"])
        assert waiting.answer().calls == [("shell", {"command": "ls"})]


def test_a_call_that_takes_text_is_edited_as_text(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ncase "$1" in *.txt) sed -i s/rm/ls/ "$1";; esac\n')
    editor.chmod(0o755)
    with held(tmp_path, call=PATCH, EDITOR=str(editor)) as waiting:
        waiting.run("edit", waiting.asked["id"])
        assert waiting.text_of_call() == "*** Begin Patch\n-ls\n*** End Patch\n"


def test_the_text_of_a_call_is_given_on_the_command_line(tmp_path: Path) -> None:
    with held(tmp_path, call=PATCH) as waiting:
        waiting.run("edit", waiting.asked["id"], "no JSON {")
        assert waiting.text_of_call() == "no JSON {"


def test_invalid_decisions_are_refused_with_the_reason(tmp_path: Path) -> None:
    with held(tmp_path) as waiting:
        assert "no open approval 'nothing'" in waiting.run("approve", "nothing", status=1)
        assert "not valid JSON" in waiting.run("edit", waiting.asked["id"], "{", status=2)
        assert "the id is empty" in waiting.run("approve", "", status=2)
        waiting.run("approve", waiting.asked["id"], http_proxy="http://127.0.0.1:9")
        waiting.answer()


def test_a_gateway_that_requires_a_key_is_reported(tmp_path: Path) -> None:
    server = '[[server.keys]]\nname = "me"\nkey_env = "STREAMGLOT_KEY"\n'
    with held(tmp_path, server, STREAMGLOT_KEY="the-key-of-the-gateway") as waiting:
        assert "key" in waiting.run("list", STREAMGLOT_KEY="another", status=1)
        waiting.run("approve", waiting.asked["id"])
        assert waiting.answer().error is None


def test_an_address_without_a_gateway_is_reported(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    config = tmp_path / "streamglot.toml"
    config.write_text(config.read_text().replace("[server]", '[server]\nport = 9\nhost = "0.0.0.0"'))
    done = shell.run("approvals", "list")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"no gateway answers at http://127.0.0.1:9: " in done.stderr
    assert b"streamglot serve" in done.stderr
    assert b"must begin with http" in shell.run("approvals", "list", "--url", "file:///etc").stderr
    with serve_response(b"<html>", "text/html") as url:
        assert b"no gateway answers" in shell.run("approvals", "list", "--url", url.replace("http:", "https:")).stderr
        assert b"is not a streamglot gateway" in shell.run("approvals", "list", "--url", url).stderr
