"""The tools of coding agents over the wire: namespaces, custom tools, searches, and tools that only a provider has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.scenarios import DONE
from gateway.upstream import HostileUpstream, sse, streamed, unfinished
from streamglot.framing.sse import Sse

PATCH = '*** Begin Patch\n+a "b"\n*** End Patch'
SCHEMA = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "name": "exec", "strict": False, "parameters": SCHEMA},
    {
        "type": "namespace",
        "name": "agents",
        "description": "",
        "tools": [{"type": "function", "name": "spawn", "strict": False, "parameters": SCHEMA}],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "",
        "format": {"type": "grammar", "syntax": "lark", "definition": "d"},
    },
    {"type": "tool_search", "execution": "client", "description": "", "parameters": SCHEMA},
    {"type": "web_search"},
]
BODY = {"input": "go", "tools": TOOLS, "stream": True, "store": False}


def calls(*named: tuple[str, str]) -> list[dict[str, Any]]:
    """Chunks of these calls, their arguments cut in two."""
    chunks: list[dict[str, Any]] = []
    for index, (name, arguments) in enumerate(named):
        half = len(arguments) // 2
        first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments[:half]}}
        second = {"index": index, "function": {"arguments": arguments[half:]}}
        chunks += [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in (first, second)]
    return chunks


FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


@pytest.fixture(scope="module")
def gateway(upstream: HostileUpstream) -> Iterator[Running]:
    frames = (
        ("agents__spawn", '{"a": 1}'),
        ("apply_patch", json.dumps({"input": PATCH})),
        ("tool_search", '{"query": "x"}'),
        ("exec", "{}"),
    )
    upstream.scripts["agent-tools"] = streamed(sse(*calls(*frames), FINISH, DONE))
    upstream.scripts["agent-cut"] = unfinished(sse(*calls(("exec", '{"cmd": "rm -rf'))))
    upstream.scripts["agent-broken"] = streamed(sse(*calls(("exec", '{"cmd": "l')), FINISH, DONE))
    chat = upstreams_at(upstream.url)["work"]
    words = {**chat, "tools": "prompt", "inband": "hermes"}
    with running({"upstreams": {"chat": chat, "words": words}}) as gateway:
        yield gateway


def frames(body: bytes) -> list[dict[str, Any]]:
    box = Sse()
    return [json.loads(frame.data) for frame in box.feed(body) + box.close() if frame.kind == "data"]


def test_calls_come_back_as_the_agent_declared_their_tools(gateway: Running, upstream: HostileUpstream) -> None:
    answer = gateway.ask("/v1/responses", {**BODY, "model": "chat/agent-tools"})
    assert answer.status == 200
    assert answer.headers["x-streamglot-dropped"] == "tools.apply_patch.format, tools.web_search"
    items = [frame["item"] for frame in frames(answer.body) if frame["type"] == "response.output_item.done"]
    assert [(item["type"], item.get("namespace"), item.get("name")) for item in items] == [
        ("function_call", "agents", "spawn"),
        ("custom_tool_call", None, "apply_patch"),
        ("tool_search_call", None, None),
        ("function_call", None, "exec"),
    ]
    assert items[1]["input"] == PATCH
    assert items[2]["arguments"] == {"query": "x"}
    sent = upstream.seen[-1].body
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["exec", "agents__spawn", "apply_patch", "tool_search"]
    whole = gateway.ask("/v1/responses", {**BODY, "model": "chat/agent-tools", "stream": False}).json()
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in items]
    assert whole["tools"] == TOOLS


def test_a_tool_that_only_a_provider_has_can_not_be_demanded(gateway: Running, upstream: HostileUpstream) -> None:
    before = len(upstream.seen)
    answer = gateway.ask("/v1/responses", {**BODY, "model": "chat/agent-tools", "tool_choice": {"type": "web_search"}})
    assert answer.status == 400
    message = answer.json()["error"]["message"]
    assert "requires the tool 'web_search'" in message
    assert "status 400" not in message, "no upstream said so"
    assert "chosen upstream 'chat', model 'agent-tools'" in message
    assert len(upstream.seen) == before


@pytest.mark.parametrize("model", ["chat/agent-cut", "chat/agent-broken"])
def test_half_a_call_is_never_reported_as_done(gateway: Running, model: str) -> None:
    kinds = [frame["type"] for frame in frames(gateway.ask("/v1/responses", {**BODY, "model": model}).body)]
    assert kinds[-1] == "response.failed"
    assert not [kind for kind in kinds if kind.endswith(".done")]
    body = {"model": model, "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "go"}]}
    kinds = [frame["type"] for frame in frames(gateway.ask("/v1/messages", body).body)]
    assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_delta", "error"]


def test_arguments_that_are_not_json_are_an_error_of_their_own(gateway: Running) -> None:
    failed = frames(gateway.ask("/v1/responses", {**BODY, "model": "chat/agent-broken"}).body)[-1]
    assert failed["response"]["error"]["code"] == "tool_call_parse_error"
    whole = gateway.ask("/v1/responses", {**BODY, "model": "chat/agent-broken", "stream": False})
    assert (whole.status, whole.json()["error"]["code"]) == (502, "tool_call_parse_error")


def test_custom_tools_are_sent_as_text(gateway: Running, upstream: HostileUpstream) -> None:
    expected = {"name": "apply_patch", "arguments": {"input": PATCH}}
    chunk = {"choices": [{"index": 0, "delta": {"content": f"<tool_call>\n{json.dumps(expected)}\n</tool_call>"}}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    upstream.scripts["agent-words"] = streamed(sse(chunk, end, DONE))
    answer = gateway.ask("/v1/responses", {**BODY, "model": "words/agent-words"})
    items = [frame["item"] for frame in frames(answer.body) if frame["type"] == "response.output_item.done"]
    assert [(item["type"], item["input"]) for item in items] == [("custom_tool_call", PATCH)]
    assert '"input":{"type":"string"}' in json.dumps(upstream.seen[-1].body).replace(" ", "").replace("\\", "")


def test_token_counts_and_other_side_requests_of_agents_are_answered(gateway: Running) -> None:
    contents = {"contents": [{"role": "user", "parts": [{"text": "How many tokens is this?"}]}]}
    counted = gateway.ask("/v1beta/models/chat/agent-tools:countTokens", contents)
    assert (counted.status, counted.json()["totalTokens"] > 4) == (200, True)
    counted = gateway.ask("/v1/responses/input_tokens", {"model": "chat/agent-tools", "input": "Hi"})
    assert (counted.status, counted.json()["object"]) == (200, "response.input_tokens")
    shown = gateway.ask("/api/show", {"model": "chat/agent-tools"})
    assert (shown.status, shown.json()["model_info"]["general.architecture"]) == (200, "chat")
    assert gateway.ask("/api/ps").status == 200
    assert gateway.ask("/v1beta/models/chat/agent-tools:countTokens", {"contents": 5}).status == 400
