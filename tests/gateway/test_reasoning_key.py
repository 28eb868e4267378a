"""``server.reasoning_key``: state that only the gateway can read, and that nobody can change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conftest import LONG_TIMEOUTS, PREFIX
from gateway.dialect_clients import body_of, path_of
from gateway.opaque import readable, strings
from gateway.running import Answer, Running, running
from gateway.scenarios import anthropic, block, gemini, stopped
from gateway.upstream import HostileUpstream, sse, streamed
from streamglot.config import ServerConfig
from streamglot.dialects.common.state import pack
from streamglot.errors import ConfigError
from streamglot.events import Echo
from streamglot.framing.sse import Sse
from streamglot.gateway.sealing import Sealer, sealer_for

KEY, OTHER = "0123456789abcdef" * 4, "f" * 64
STATE = "c2lnbmVk"
THINKING = (
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Hm."},
    {"type": "signature_delta", "signature": STATE},
)
TOOL_USE = (
    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
    {"type": "input_json_delta", "partial_json": "{}"},
)
WIRES = {
    "anthropic": anthropic(*block(0, *THINKING), *block(1, *TOOL_USE), *stopped("tool_use")),
    "gemini": sse(
        gemini({"text": "Hm.", "thought": True}),
        gemini({"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": STATE}, finish="STOP"),
    ),
}
NAMES = {"anthropic": "claude", "gemini": "google"}
"""The upstreams, named as people name them."""
CLIENTS = {
    "openai_chat": "anthropic",
    "openai_responses": "anthropic",
    "gemini": "anthropic",
    "anthropic": "gemini",
    "agui": "anthropic",
    "vercel_ui": "anthropic",
}
"""The clients, each with an upstream of another format."""


def config(url: str, key: Any, **server: Any) -> dict[str, Any]:
    upstreams = {
        NAMES[name]: {"dialect": name, "base_url": url + PREFIX.get(name, ""), "attempts": 1, "timeouts": LONG_TIMEOUTS}
        for name in WIRES
    }
    return {"server": {"reasoning_key": key, **server}, "upstreams": upstreams}


@pytest.fixture(scope="module")
def sealing(upstream: HostileUpstream) -> Iterator[Running]:
    """Without a store, which would restore the state that a client spoils."""
    with running({**config(upstream.url, KEY), "store": {"url": "none"}}) as started:
        yield started


def frames(answer: Answer) -> list[Any]:
    found = [frame.data for frame in Sse().feed(answer.body) if frame.kind == "data" and frame.data != b"[DONE]"]
    return [msgspec.json.decode(frame) for frame in found]


def turn(gateway: Running, client: str, model: str) -> tuple[Any, dict[str, Any]]:
    """The answer, and the next request of a client that returns all that it got."""
    streams = client in ("agui", "vercel_ui")
    first = body_of(client, model, streams, ("weather",))
    answer = gateway.ask(path_of(client, model, streams), first)
    assert answer.status == 200, answer.body
    body: Any = frames(answer) if streams else answer.json()
    match client:
        case "openai_chat":
            reply = body["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "sunny"}
            return body, {**first, "messages": [*first["messages"], reply, result]}
        case "openai_responses":
            made = next(item["call_id"] for item in body["output"] if item["type"] == "function_call")
            result = {"type": "function_call_output", "call_id": made, "output": "sunny"}
            return body, {**first, "input": [{"role": "user", "content": "q"}, *body["output"], result]}
        case "anthropic":
            made = next(part["id"] for part in body["content"] if part["type"] == "tool_use")
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made, "content": "sunny"}]}
            return body, {**first, "messages": [*first["messages"], {"role": "assistant", "content": body["content"]}, result]}
        case "gemini":
            content = body["candidates"][0]["content"]
            response = {"functionResponse": {"name": "weather", "response": {"result": "sunny"}}}
            return body, {**first, "contents": [*first["contents"], content, {"role": "user", "parts": [response]}]}
        case "agui":
            sealed = {
                event["entityId"]: event["encryptedValue"] for event in body if event["type"] == "REASONING_ENCRYPTED_VALUE"
            }
            thought = next(event["messageId"] for event in body if event["type"] == "REASONING_MESSAGE_START")
            call = next(event for event in body if event["type"] == "TOOL_CALL_START")
            reply = [
                {"id": thought, "role": "reasoning", "content": "Hm.", "encryptedValue": sealed[thought]},
                {
                    "id": "2",
                    "role": "assistant",
                    "toolCalls": [
                        {"id": call["toolCallId"], "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                    ],
                },
                {"id": "3", "role": "tool", "toolCallId": call["toolCallId"], "content": "sunny"},
            ]
            return body, {**first, "messages": [*first["messages"], *reply]}
        case _:
            thought = next(event for event in body if event["type"] == "reasoning-end")
            parts = [
                {"type": "reasoning", "text": "Hm.", "providerMetadata": thought["providerMetadata"]},
                {"type": "tool-weather", "toolCallId": "call_1", "state": "output-available", "input": {}, "output": "sunny"},
            ]
            return body, {**first, "messages": [*first["messages"], {"id": "2", "role": "assistant", "parts": parts}]}


def sent(upstream: HostileUpstream, gateway: Running, client: str, model: str, body: Any, name: str) -> tuple[str, str]:
    """What the upstream gets of this request, and what the gateway says that it dropped."""
    streams = client in ("agui", "vercel_ui")
    answer = gateway.ask(path_of(client, model, streams), body)
    assert answer.status == 200, answer.body
    return upstream.requests(name)[-1].raw.decode(), answer.headers.get("x-streamglot-dropped", "")


def replaced(value: Any, change: Any) -> Any:
    """The request with each opaque value changed."""
    if isinstance(value, dict):
        return {name: replaced(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, change) for inner in value]
    return change(value) if isinstance(value, str) and len(value) > 80 else value


@pytest.mark.parametrize("client", CLIENTS)
def test_state_is_readable_for_the_gateway_only_and_comes_back_exactly(
    sealing: Running, upstream: HostileUpstream, client: str
) -> None:
    via = CLIENTS[client]
    name = f"sealed-{client}"
    upstream.scripts[name] = streamed(WIRES[via])
    model = f"{NAMES[via]}/{name}"
    body, again = turn(sealing, client, model)
    assert STATE not in readable("\n".join(strings(body)))
    raw, dropped = sent(upstream, sealing, client, model, again, name)
    assert raw.count(f'"{STATE}"') == 1, raw
    assert "reasoning_state" not in dropped
    # an upstream without a key shows what it would have been
    with running(config(upstream.url, "")) as plain:
        assert STATE in readable("\n".join(strings(turn(plain, client, model)[0])))
        _, unsealed = turn(plain, client, model)
    with running(config(upstream.url, OTHER)) as other:
        _, foreign = turn(other, client, model)
    with running(config(upstream.url, [OTHER, KEY])) as rotated:
        assert STATE in sent(upstream, rotated, client, model, again, name)[0]
        assert STATE not in sent(upstream, sealing, client, model, turn(rotated, client, model)[1], name)[0]
    changed = replaced(again, lambda text: text[:60] + ("A" if text[60] != "A" else "B") + text[61:])
    assert changed != again
    for wrong in (unsealed, foreign, changed):
        raw, dropped = sent(upstream, sealing, client, model, wrong, name)
        assert STATE not in raw
        assert "reasoning_state=1" in dropped


def test_a_value_of_nobody_is_dropped_and_counted(sealing: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["foreign"] = streamed(WIRES["anthropic"])
    body = body_of("agui", "claude/foreign")
    forged = pack(Echo("claude", {"signature": STATE}))
    thoughts = [
        {"id": str(n), "role": "reasoning", "content": "x", "encryptedValue": value} for n, value in enumerate(("abc", forged))
    ]
    raw, dropped = sent(
        upstream, sealing, "agui", "claude/foreign", {**body, "messages": [*thoughts, *body["messages"]]}, "foreign"
    )
    assert (STATE in raw, "reasoning_state=2" in dropped) == (False, True)


def test_the_store_has_the_open_state_and_its_answers_the_sealed_one(upstream: HostileUpstream, tmp_path: Path) -> None:
    upstream.scripts["stored-state"] = streamed(WIRES["anthropic"])
    kept = {**config(upstream.url, KEY), "store": {"url": f"sqlite:///{tmp_path}/kept.db"}}
    with running(kept) as gateway:
        first = gateway.ask("/v1/responses", body_of("openai_responses", "claude/stored-state", False, ("weather",))).json()
        assert STATE not in readable("\n".join(strings(gateway.ask(f"/v1/responses/{first['id']}").json())))
        made = next(item["call_id"] for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": made, "output": "sunny"}
        body = {"model": "claude/stored-state", "previous_response_id": first["id"], "input": [result]}
        assert gateway.ask("/v1/responses", body).status == 200
        assert STATE in upstream.requests("stored-state")[-1].raw.decode()


def test_keys_are_a_text_a_variable_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    echo = Echo("claude", {"signature": STATE})
    sealed = Sealer([bytes.fromhex(KEY)]).seal(echo)
    for setting in (KEY, KEY.upper(), "MY_KEY", "$MY_KEY", "env:MY_KEY", str(file), f"file:{file}", [OTHER, str(file)]):
        sealer = sealer_for(setting, {"MY_KEY": KEY})
        assert sealer is not None
        assert sealer.open(sealed) == echo
    assert sealer_for("", {}) is sealer_for([], {}) is None
    for wrong in ("0" * 63, "MISSING", str(tmp_path / "none"), [KEY, "short"], "BAD"):
        with pytest.raises(ConfigError, match="64 hexadecimal digits") as error:
            sealer_for(wrong, {"BAD": "secret-value"})
        assert "secret-value" not in str(error.value)
    assert ServerConfig().reasoning_key == ""
    other = Sealer([bytes.fromhex(OTHER)])
    assert other.open(sealed) is None
    assert other.open(Echo("streamglot", {"sealed": 5})) is None
    assert other.open(Echo("streamglot", {"sealed": ""})) is None
    assert Sealer([bytes.fromhex(KEY)]).seal(echo) != sealed, "a nonce is used once"
