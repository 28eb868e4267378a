"""Policies of the configuration judge exchanges of the gateway, the client and the command line."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cli.shell import Shell, chunk
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked
from gateway.running import Running, running
from streamglot import Client, collect
from streamglot.config import load
from streamglot.messages import ToolCallPart
from streamglot.policies import load_policy
from waiting import until

SECRET = "sk-proj-" + "a1B2" * 12
CALL = {"index": 0, "id": "c1", "function": {"name": "shell", "arguments": '{"command":"rm"}'}}
POLICIES = """
[[policies]]
use = "redact"
detectors = ["api_keys"]
apply_to = ["text", "tool_arguments", "request"]
"""


def shell_with(tmp_path: Path, policies: str) -> Shell:
    shell = Shell(tmp_path)
    pieces = [chunk(content=piece) for piece in ("the key is ", SECRET[:9], SECRET[9:30], SECRET[30:], " done")]
    shell.add_recording("leak", [*pieces, chunk("stop"), "data: [DONE]\n\n"])
    shell.add_recording("call", [chunk(content="one moment"), chunk(tool_calls=[CALL]), chunk("tool_calls"), "data: [DONE]\n\n"])
    config = tmp_path / "streamglot.toml"
    config.write_text(config.read_text() + policies)
    return shell


def serve(shell: Shell) -> Any:
    return running(path=shell.home / "streamglot.toml", environment=shell.environment)


@pytest.mark.parametrize("dialect", [name for name in CLIENT_DIALECTS if name != "openai_completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_secret_never_leaves_whatever_the_dialect(tmp_path: Path, dialect: str, stream: bool) -> None:
    if not stream and dialect in STREAMS_ONLY:
        stream = True
    with serve(shell_with(tmp_path, POLICIES)) as gateway:
        understood = asked(gateway, dialect, "leak", stream)
    assert "the key is [" in understood.text
    assert "done" in understood.text
    assert SECRET[9:20] not in understood.text


def test_the_client_and_the_command_line_are_judged_too(tmp_path: Path) -> None:
    shell = shell_with(tmp_path, POLICIES)
    done = shell.run("query", "-m", "leak", "hi")
    assert done.stdout.startswith(b"the key is [")
    with Client(config=load(shell.home / "streamglot.toml", shell.environment), environment=shell.environment) as client:
        assert SECRET not in collect(client.stream(model="leak", messages="hi")).choices[0].text


def test_a_stored_turn_shows_what_a_policy_changed(tmp_path: Path) -> None:
    shell = shell_with(tmp_path, '[[policies]]\nuse = "deny_tools"\ntools = ["shell"]\nmessage = "No."\n')
    shell.environment["STREAMGLOT_STORE__URL"] = f"sqlite:///{tmp_path}/turns.db"
    assert shell.run("query", "-m", "call", "hi").stdout == b"one momentNo.\n"
    shown = shell.run("logs", "show").stdout.decode()
    line = "deny_tools: refuse answer tool_call shell, the tool shell is not allowed"
    assert f"verdict   {line}" in shown
    assert f"\n{line}\n+ No.\n" in shown


def test_a_client_brings_policies_of_its_own(tmp_path: Path) -> None:
    shell = shell_with(tmp_path, "")
    loaded = load(shell.home / "streamglot.toml", shell.environment)
    deny = load_policy({"use": "deny_tools", "tools": ["shell"]})
    with Client(config=loaded, environment=shell.environment, policies=[deny]) as client:
        answer = collect(client.stream(model="call", messages="hi"))
    assert not [part for part in answer.choices[0].parts if isinstance(part, ToolCallPart)]
    assert answer.choices[0].stop_reason != "tool_calls"


def test_a_bad_policy_is_refused_with_its_place(tmp_path: Path) -> None:
    shell = shell_with(tmp_path, '[[policies]]\nuse = "redakt"\n')
    done = shell.run("query", "-m", "leak", "hi")
    assert done.returncode == 2
    assert b"policies[0]" in done.stderr
    assert b"redact" in done.stderr


def approve(gateway: Running, body: dict[str, Any]) -> int:
    until(lambda: gateway.ask("/approvals").json()["approvals"])
    [asked] = gateway.ask("/approvals").json()["approvals"]
    assert (asked["tool"], asked["policy"]) == ("shell", "human_approval")
    return gateway.ask(f"/approvals/{asked['id']}", body).status


@pytest.mark.parametrize("approved", [True, False])
def test_a_person_decides_through_the_api(tmp_path: Path, approved: bool) -> None:
    shell = shell_with(tmp_path, '[[policies]]\nuse = "human_approval"\n')
    found: list[Any] = []
    with serve(shell) as gateway:
        asking = threading.Thread(target=lambda: found.append(asked(gateway, "openai_chat", "call", tools=("shell",))))
        asking.start()
        assert approve(gateway, {"approved": approved}) == 200
        asking.join()
        assert gateway.ask("/approvals").json() == {"approvals": []}
        assert {"/approvals", "/approvals/{id}"} <= set(gateway.ask("/openapi.json").json()["paths"])
        assert gateway.ask("/approvals/nothing", {"approved": True}).status == 404
        assert gateway.ask("/approvals/nothing", {"approve": "yes"}).status == 400
    assert bool(found[0].calls) == approved
    assert found[0].text.startswith("one moment")
