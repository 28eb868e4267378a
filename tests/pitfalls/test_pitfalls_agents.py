"""Coding agents as clients: their tools, their ids, their side models and the fields that they send to everybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agents.turns import Call, Turn
from agents.wires import streamed as wire
from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import PLAIN
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, streamed, unfinished
from streamglot.framing.sse import Sse

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
MEDIA = {"ollama": "application/x-ndjson"}
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
PATCH = '*** Begin Patch\n+a "b" \\ c\n*** End Patch'
TOOLS = [
    {"type": "function", "name": "exec", "strict": False, "parameters": SCHEMA},
    {
        "type": "namespace",
        "name": "agents",
        "description": "",
        "tools": [{"type": "function", "name": "spawn", "strict": False, "parameters": SCHEMA}],
    },
    {"type": "custom", "name": "apply_patch", "description": "", "format": {"type": "text"}},
    {"type": "web_search"},
    {"type": "image_generation"},
]


def media(via: str) -> str:
    return MEDIA.get(via, "text/event-stream")


def frames(body: bytes) -> list[dict[str, Any]]:
    box = Sse()
    found = [frame.data for frame in box.feed(body) + box.close() if frame.kind == "data"]
    return [json.loads(data) for data in found if data != b"[DONE]"]


def items_of(body: bytes) -> list[dict[str, Any]]:
    return [frame["item"] for frame in frames(body) if frame["type"] == "response.output_item.done"]


# --- tools of one vendor at another's model


@pytest.mark.parametrize("via", [name for name in WIRES if name != "openai_responses"])
def test_tools_of_one_vendor_are_taken_to_another_and_back(gateway: Running, upstream: HostileUpstream, via: str) -> None:
    """Codex declares hosted tools and namespaces, which other upstreams refuse, and free-text tools, whose calls it drops
    silently if they come back as functions."""
    calls = [
        Call("c1", "agents__spawn", {"cmd": "x"}),
        Call("c2", "apply_patch", {"input": PATCH}),
        Call("c3", "exec", {"cmd": "ls"}),
    ]
    name = f"vendor-tools-{via}"
    upstream.scripts[name] = streamed(b"".join(wire(via, Turn(text="On it.", calls=calls), "m")), media_type=media(via))
    body = {"model": f"{UPSTREAM_NAMES[via]}/{name}", "input": "go", "tools": TOOLS, "stream": True, "store": False}
    answer = gateway.ask("/v1/responses", body)
    assert answer.status == 200
    dropped = answer.headers["x-streamglot-dropped"]
    assert "tools.web_search" in dropped
    assert "tools.image_generation" in dropped
    sent = upstream.requests(name)[-1].raw
    assert b"web_search" not in sent
    assert b"namespace" not in sent
    assert b'"custom"' not in sent
    made = [item for item in items_of(answer.body) if item["type"] != "message"]
    assert [(item["type"], item.get("namespace"), item["name"]) for item in made] == [
        ("function_call", "agents", "spawn"),
        ("custom_tool_call", None, "apply_patch"),
        ("function_call", None, "exec"),
    ]
    assert made[1]["input"] == PATCH
    results = [
        {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
        if item["type"] == "custom_tool_call"
        else {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
        for item in made
    ]
    upstream.scripts[name] = streamed(b"".join(wire(via, Turn(text="Fine."), "m")), media_type=media(via))
    again = gateway.ask("/v1/responses", {**body, "input": [{"role": "user", "content": "go"}, *items_of(answer.body), *results]})
    assert again.status == 200, again.body
    assert upstream.requests(name)[-1].raw.count(b"agents__spawn") >= 2


@pytest.mark.parametrize("via", ["openai_chat", "openai_responses", "anthropic"])
def test_nothing_says_done_about_a_call_that_broke_off(gateway: Running, upstream: HostileUpstream, via: str) -> None:
    """An agent runs half a call, or does not try again, if the end of a block is written before the error."""
    pieces = wire(via, Turn(calls=[Call("c1", "exec", {"cmd": "rm -rf /tmp/some/folder"})]), "m")
    first = next(number for number, piece in enumerate(pieces) if b"cmd" in piece)
    inside = b"".join(pieces[: first + 1])
    name = f"half-done-{via}"
    upstream.scripts[name] = unfinished(inside)
    answer = gateway.ask(
        "/v1/responses", {"model": f"{UPSTREAM_NAMES[via]}/{name}", "input": "go", "tools": TOOLS[:1], "stream": True}
    )
    kinds = [frame["type"] for frame in frames(answer.body)]
    assert kinds[-1] == "response.failed"
    assert not [kind for kind in kinds if kind.endswith(".done")]
    messages = body_of("anthropic", f"{UPSTREAM_NAMES[via]}/{name}", True, ("exec",))
    kinds = [frame["type"] for frame in frames(gateway.ask("/v1/messages", messages).body)]
    assert kinds[-1] == "error"
    assert "content_block_stop" not in kinds
    assert "message_delta" not in kinds


# --- ids


def next_turn(client: str, body: dict[str, Any], answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The id of the call in an answer, and the request with its result."""
    match client:
        case "openai_chat":
            reply = answer["choices"][0]["message"]
            made = reply["tool_calls"][0]["id"]
            result = {"role": "tool", "tool_call_id": made, "content": "sunny"}
            return made, {**body, "messages": [*body["messages"], reply, result]}
        case "openai_responses":
            made = next(item["call_id"] for item in answer["output"] if item["type"] == "function_call")
            before = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": "q"}]
            result = {"type": "function_call_output", "call_id": made, "output": "sunny"}
            return made, {**body, "input": [*before, *answer["output"], result]}
        case _:
            made = next(part["id"] for part in answer["content"] if part["type"] == "tool_use")
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made, "content": "sunny"}]}
            messages = [*body["messages"], {"role": "assistant", "content": answer["content"]}, result]
            return made, {**body, "messages": messages}


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic"])
@pytest.mark.parametrize("via", WIRES)
def test_no_call_has_an_id_of_an_earlier_one(gateway: Running, upstream: HostileUpstream, via: str, client: str) -> None:
    """An upstream that counts its calls from one in each answer: the agent takes the second call for the first, and loops."""
    name = f"same-ids-{via}-{client}"
    script = wire(via, Turn(calls=[Call("call_1", "weather", {"city": "Paris"})]), "m")
    upstream.scripts[name] = streamed(b"".join(script), media_type=media(via))
    body = body_of(client, f"{UPSTREAM_NAMES[via]}/{name}", False, ("weather",))
    ids: list[str] = []
    for _ in range(3):
        answer = gateway.ask(path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", False), body)
        assert answer.status == 200, answer.body
        made, body = next_turn(client, body, answer.json())
        ids.append(made)
    assert len(set(ids)) == 3


# --- side models and connections


@pytest.fixture(scope="module")
def two_models(upstream: HostileUpstream) -> Iterator[Running]:
    upstream.scripts["agent-main"] = streamed(PLAIN)
    mine = {**upstreams_at(upstream.url)["work"], "models": ["agent-main", "agent-other"]}
    with running({"server": {"fallback_model": "agent-main"}, "upstreams": {"mine": mine}}) as started:
        yield started


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_side_models_are_answered_by_the_fallback(two_models: Running, client: str) -> None:
    """Agents ask for small models by names that are written into them; a 404 made them ask again without a pause."""
    for model in ("claude-3-5-haiku-20241022", "gpt-5-nano", "gemini-2.5-flash-lite"):
        answer = two_models.ask(path_of(client, model), body_of(client, model))
        assert answer.status == 200
        assert answer.headers["x-streamglot-model"] == "agent-main"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models", "/nothing"])
def test_an_upgrade_that_is_not_served_is_answered_once(gateway: Running, path: str) -> None:
    """Codex tries a WebSocket first: a 404 made it try seven times. Responses are served, other paths answer in HTTP."""
    lines = [f"GET {path} HTTP/1.1", "host: localhost", "connection: Upgrade", "upgrade: websocket"]
    lines += ["sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    with raw(gateway.port) as one:
        one.send("\r\n".join(lines).encode())
        status = int(one.read_until(b"\r\n\r\n").split(b" ")[1])
    assert status == 426 if path == "/v1/chat/completions" else status != 101


# --- fields that the next server refuses


def test_fields_that_other_servers_refuse_are_cleaned(gateway: Running, upstream: HostileUpstream) -> None:
    """A ``user`` of more than 64 characters, ``developer``, ``system`` between other messages, and ``cache_control``."""
    upstream.scripts["cleaned"] = streamed(PLAIN)
    cached = {"type": "ephemeral"}
    body = {
        "model": "work/cleaned",
        "max_tokens": 9,
        "stream": True,
        "metadata": {"user_id": "u" * 200},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cached}],
        "tools": [{"name": "exec", "input_schema": SCHEMA, "cache_control": cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "q", "cache_control": cached}]}],
    }
    assert gateway.ask("/v1/messages", body).status == 200
    sent = upstream.requests("cleaned")[-1]
    assert b"cache_control" not in sent.raw
    assert len(sent.body.get("user", "")) <= 64
    turns = [("developer", "Be brief."), ("user", "one"), ("assistant", "two"), ("system", "Be kind."), ("user", "three")]
    chat = {**body_of("openai_chat", "work/cleaned"), "user": "u" * 200}
    chat["messages"] = [{"role": role, "content": text} for role, text in turns]
    assert gateway.ask("/v1/chat/completions", chat).status == 200
    sent = upstream.requests("cleaned")[-1]
    roles = [message["role"] for message in sent.body["messages"]]
    assert "developer" not in roles
    assert "system" not in roles[1:]
    assert all(text in sent.raw.decode() for _, text in turns), "nothing is lost"
    assert len(sent.body.get("user", "")) <= 64
    whole = {"model": "work/cleaned", "input": chat["messages"], "stream": True, "safety_identifier": "u" * 200}
    assert gateway.ask("/v1/responses", whole).status == 200
    roles = [message["role"] for message in upstream.requests("cleaned")[-1].body["messages"]]
    assert "developer" not in roles
    assert "system" not in roles[1:]
