"""Tools that no model calls: items of a batch and calls of an MCP client pass the policies as a call of a model does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as MCPClient
from mcp import StdioServerParameters

import streamglot
from cli.shell import PROGRAM, Shell
from gateway.running import Running, running
from streamglot.batch import RequestBatch
from streamglot.client import Client
from streamglot.policies import JudgeContext, Needs, Piece, Policy, Verdict, block, load_policy, retry
from streamglot.upstream import Upstream
from waiting import until

TOOLS = '''
from pathlib import Path
from streamglot import tool

@tool(name="files.delete")
def delete(path: str) -> str:
    """Deletes a file."""
    Path(path).unlink()
    return f"deleted {path}"

@tool
def look(name: str) -> str:
    """Looks somebody up."""
    return f"{name}: TCK-123456"

@tool
def fail() -> str:
    """Fails."""
    raise ValueError("the ticket TCK-123456 is unknown")
'''
DENY = {"use": "deny_tools", "tools": ["files.*"]}
HOLD = {"use": "human_approval", "tools": ["files.*"], "seconds": 60.0}
REDACT = {"use": "redact", "patterns": {"ticket": "TCK-[0-9]{6}"}, "apply_to": ["tool_results"]}


@contextmanager
def serving(tmp_path: Path, *policies: Mapping[str, Any], **config: Any) -> Iterator[Running]:
    (tmp_path / "things.py").write_text(TOOLS)
    tools = {"python": [str(tmp_path / "things.py")], "enabled": ["*"]}
    with running({"tools": tools, "policies": list(policies), **config}) as gateway:
        yield gateway


def call(id: int, tool: str, **params: Any) -> dict[str, Any]:
    return {"id": id, "type": "tool_call", "payload": {"tool": tool, "params": params}}


def results(gateway: Running, *items: dict[str, Any], headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    answer = gateway.ask("/v1/batch", {"requests": items}, headers)
    assert answer.status == 200, answer.body
    return list(answer.json()["responses"])


def victim(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("x")
    return file


@pytest.mark.parametrize("store", ["on", "none"])
def test_a_denied_tool_is_not_run(tmp_path: Path, store: str) -> None:
    file = victim(tmp_path)
    more = {} if store == "on" else {"store": {"url": "none"}}
    with serving(tmp_path, DENY, **more) as gateway:
        denied, ran = results(gateway, call(1, "files.delete", path=str(file)), call(2, "look", name="Ann"))
    assert file.exists()
    assert denied["result"] is None
    assert (denied["error"]["code"], denied["error"]["type"]) == ("policy_refused", "permission_error")
    assert "'deny_tools'" in denied["error"]["message"]
    assert "files.delete" in denied["error"]["message"]
    assert (ran["result"], ran["error"]) == ("Ann: TCK-123456", None)


def test_each_call_is_stored_as_a_turn_with_its_verdicts(tmp_path: Path) -> None:
    file = victim(tmp_path)
    with serving(tmp_path, DENY) as gateway:
        results(gateway, call(1, "files.delete", path=str(file)), call(2, "look", name="Ann"), headers={"x-request-id": "r"})
        until(lambda: all(turn["ending"] for turn in gateway.ask("/turns").json()["data"]))
        turns = {turn["request_id"]: turn["id"] for turn in gateway.ask("/turns").json()["data"]}
        denied, ran = (gateway.ask(f"/turns/{turns[name]}").json() for name in ("r-1", "r-2"))
    [verdict] = denied["verdicts"]
    assert (verdict["policy"], verdict["verdict"], verdict["tool"]) == ("deny_tools", "refuse", "files__delete")
    made, result = ran["response"]["choices"][0]["parts"]
    assert (made["type"], made["name"], made["arguments"]) == ("tool_call", "look", '{"name":"Ann"}')
    assert (result["type"], result["content"][0]["text"]) == ("tool_result", "Ann: TCK-123456")
    assert [step["kind"] for step in ran["steps"]][-1:] == ["tool"]


@pytest.mark.parametrize("approved", [True, False])
def test_a_held_tool_waits_for_a_person(tmp_path: Path, approved: bool) -> None:
    file = victim(tmp_path)
    with serving(tmp_path, HOLD) as gateway:
        found: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: found.extend(results(gateway, call(1, "files.delete", path=str(file)))))
        asking.start()
        until(lambda: bool(gateway.ask("/approvals").json()["approvals"]))
        [asked] = gateway.ask("/approvals").json()["approvals"]
        assert (asked["tool"], asked["policy"]) == ("files__delete", "human_approval")
        assert file.exists()
        gateway.ask(f"/approvals/{asked['id']}", {"approved": approved, "message": "not on a Friday"})
        asking.join()
    assert file.exists() is not approved
    if approved:
        assert found[0]["result"] == f"deleted {file}"
    else:
        assert found[0]["error"]["code"] == "policy_refused"
        assert "not on a Friday" in found[0]["error"]["message"]


def test_results_and_errors_are_judged(tmp_path: Path) -> None:
    with serving(tmp_path, REDACT) as gateway:
        looked, failed = results(gateway, call(1, "look", name="Ann"), call(2, "fail"))
    assert looked["result"].startswith("Ann: ")
    assert "TCK-123456" not in looked["result"]
    assert failed["error"]["code"] == "tool_error"
    assert "TCK-123456" not in failed["error"]["message"]
    assert "ValueError" in failed["error"]["message"]


class Again(Policy, frozen=True):
    """Asks for another answer in place of every call."""

    use = "again"

    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        return retry("use another tool")


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (load_policy(DENY), "'deny_tools'"),
        (load_policy(HOLD), "nobody can be asked"),
        (Again(), "could not be asked again"),
    ],
)
def test_a_batch_in_a_program_passes_the_policies_of_its_client(tmp_path: Path, policy: Policy, why: str) -> None:
    file, asked = victim(tmp_path), []

    @streamglot.tool(name="files.delete")
    def delete(path: str) -> str:
        asked.append(path)
        return path

    upstream = Upstream(name="up", base_url="http://127.0.0.1:9/v1", models=["*"])
    with Client(upstreams=[upstream], tools=[delete], policies=[policy]) as client, RequestBatch(client=client) as batch:
        batch.add_tool_call("files.delete", {"path": str(file)})
        [response] = batch.flush()
    assert not asked
    assert response["error"]["code"] == "policy_refused"
    assert why in response["error"]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("command", [["mcp"], ["tools", "serve"]])
@pytest.mark.parametrize(("policy", "why"), [(DENY, "'deny_tools'"), (HOLD, "nobody can be asked")])
async def test_mcp_clients_pass_the_policies(tmp_path: Path, command: list[str], policy: dict[str, Any], why: str) -> None:
    shell, file = Shell(tmp_path), victim(tmp_path)
    (tmp_path / "things.py").write_text(TOOLS)
    rows = "".join(f"{name} = {_toml(value)}\n" for name, value in policy.items())
    config = f'[tools]\nenabled = ["*"]\npython = ["{tmp_path / "things.py"}"]\n[[policies]]\n{rows}'
    settings = tmp_path / "streamglot.toml"
    settings.write_text(f"{config}\n{settings.read_text() if settings.exists() else ''}")
    server = StdioServerParameters(command=PROGRAM, args=command, env=shell.environment, cwd=shell.home)
    async with MCPClient(server, read_timeout_seconds=60) as client:
        denied: Any = await client.call_tool("files__delete", {"path": str(file)})
        ran: Any = await client.call_tool("look", {"name": "Ann"})
    assert file.exists()
    assert denied.is_error
    assert why in denied.content[0].text
    assert (ran.is_error, ran.content[0].text) == (False, "Ann: TCK-123456")


def _toml(value: object) -> str:
    written: dict[type, Callable[[Any], str]] = {
        str: lambda text: f'"{text}"',
        list: lambda many: f"[{', '.join(map(_toml, many))}]",
    }
    return written.get(type(value), str)(value)
