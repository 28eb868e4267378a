"""Reasoning: its five encodings, its opaque state, and clients that take the fields of the specification only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

import streamglot
from agents.turns import Turn
from agents.wires import streamed as wire
from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, in_turn, path_of
from gateway.running import Answer, Running, running
from gateway.scenarios import DONE, END, anthropic, block, called, calls, chunk, gemini, responses, stopped, text_chunk
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, sse, streamed
from streamglot import Limits, StreamError
from streamglot.framing.sse import Sse

WITH_REASONING = tuple(name for name in CLIENT_DIALECTS if name != "openai_completions")


def _detail(text: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": f"reasoning.{kind}", kind: text, "index": 0, **more}


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


ENCODINGS: dict[str, list[dict[str, Any]]] = {
    "reasoning_content": [{"reasoning_content": "Hm, "}, {"reasoning_content": "well."}],
    "reasoning": [{"reasoning": "Hm, "}, {"reasoning": "well."}],
    "details": [{"reasoning_details": [_detail("Hm, ")]}, {"reasoning_details": [_detail("well.")]}],
    "summaries": [{"reasoning_details": [_detail("Hm, ", "summary")]}, {"reasoning_details": [_detail("well.", "summary")]}],
    "list_parts": [{"content": [_thinking("Hm, ")]}, {"content": [_thinking("well.")]}],
    "tags": [{"content": "<think>Hm, "}, {"content": "well.</think>"}],
    "two_fields": [{"reasoning": text, "reasoning_content": text} for text in ("Hm, ", "well.")],
    "field_and_details": [{"reasoning": text, "reasoning_details": [_detail(text)]} for text in ("Hm, ", "well.")],
    "three_fields": [
        {"reasoning": text, "reasoning_content": text, "reasoning_details": [_detail(text)]} for text in ("Hm, ", "well.")
    ],
    "field_and_summary": [{"reasoning": text, "reasoning_details": [_detail(text, "summary")]} for text in ("Hm, ", "well.")],
    "empty_content_beside": [{"content": "", "reasoning_content": text} for text in ("Hm, ", "well.")],
    "null_fields_beside": [{"content": None, "reasoning": None, "reasoning_content": text} for text in ("Hm, ", "well.")],
}


@pytest.mark.parametrize(("name", "client"), in_turn(ENCODINGS, WITH_REASONING))
def test_reasoning_in_any_field_is_one_block_and_never_doubled(
    gateway: Running, upstream: HostileUpstream, name: str, client: str
) -> None:
    """OpenRouter sends the same words in two fields; Mistral sends them as parts of the content."""
    model = f"thinking-encoded-{name}"  # the name of a model whose text may have tags
    upstream.scripts[model] = streamed(sse(*map(chunk, ENCODINGS[name]), text_chunk("Hello"), END, DONE))
    found = asked(gateway, client, f"work/{model}")
    assert (found.error, found.reasoning, found.text) == (None, "Hm, well.", "Hello")


@pytest.mark.parametrize("client", WITH_REASONING)
def test_thought_and_text_in_turns_keep_their_order(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    """litellm#13834: thought, text, thought, text became one thought and one text."""
    words = ("one.", "two.", "three.", "four.")
    pieces = [
        piece
        for index, word in enumerate(words)
        for piece in block(
            index,
            {"type": "text", "text": ""} if index % 2 else {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "text_delta", "text": word} if index % 2 else {"type": "thinking_delta", "thinking": word},
        )
    ]
    upstream.scripts["in-turns"] = streamed(anthropic(*pieces, *stopped("end_turn")))
    body = gateway.ask(path_of(client, "claude/in-turns"), body_of(client, "claude/in-turns")).body
    places = [body.index(word.encode()) for word in words]
    assert places == sorted(places)


# --- opaque state


def _signed_call(field: str, value: Any) -> dict[str, Any]:
    return {**called(0, "call_1", "weather", '{"city":"Paris"}'), field: value}


TOOL_USE = block(
    2, {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}, {"type": "input_json_delta", "partial_json": "{}"}
)
THOUGHT = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Hm."},
    {"type": "signature_delta", "signature": "c2lnbmVk"},
)
HIDDEN = block(1, {"type": "redacted_thinking", "data": "aGlkZGVu"})
ENCRYPTED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5jcnlwdGVk"}
FUNCTION = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "weather",
    "arguments": "{}",
    "status": "completed",
}
COMPLETED = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
STATES: dict[str, tuple[str, bytes, list[str]]] = {
    "signature": ("anthropic", anthropic(*THOUGHT, *TOOL_USE, *stopped("tool_use")), ["c2lnbmVk"]),
    "redacted_thinking": ("anthropic", anthropic(*THOUGHT, *HIDDEN, *TOOL_USE, *stopped("tool_use")), ["c2lnbmVk", "aGlkZGVu"]),
    "encrypted_content": (
        "openai_responses",
        responses(
            ("response.output_item.added", {"output_index": 0, "item": {**ENCRYPTED, "encrypted_content": ""}}),
            ("response.output_item.done", {"output_index": 0, "item": ENCRYPTED}),
            ("response.output_item.added", {"output_index": 1, "item": {**FUNCTION, "arguments": ""}}),
            ("response.output_item.done", {"output_index": 1, "item": FUNCTION}),
            ("response.completed", {"response": {**COMPLETED, "output": [ENCRYPTED, FUNCTION]}}),
        ),
        ["ZW5jcnlwdGVk"],
    ),
    "thought_signature": (
        "gemini",
        sse(
            gemini({"text": "Hm.", "thought": True}),
            gemini({"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": "dGhvdWdodA=="}, finish="STOP"),
        ),
        ["dGhvdWdodA=="],
    ),
    "extra_content": (
        "openai_chat",
        sse(
            calls(_signed_call("extra_content", {"google": {"thought_signature": "ZXh0cmE="}})),
            chunk({}, "tool_calls"),
            DONE,
        ),
        ["ZXh0cmE="],
    ),
    "reasoning_details": (
        "openai_chat",
        sse(
            chunk({"reasoning_details": [_detail("Hm.", signature="ZGV0YWls")]}),
            chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "aW5uZXI=", "index": 1}]}),
            calls(_signed_call("type", "function")),
            chunk({}, "tool_calls"),
            DONE,
        ),
        ["ZGV0YWls", "aW5uZXI="],
    ),
}
KEEPERS = ("openai_chat", "openai_responses", "anthropic", "gemini")
ELSEWHERE = {"anthropic": "gemini", "gemini": "anthropic", "openai_responses": "anthropic", "openai_chat": "anthropic"}


def _continued(client: str, first: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The next request of a client that keeps all that it got, with the result of the call."""
    match client:
        case "openai_chat":
            reply = answer["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "sunny"}
            return {**first, "messages": [*first["messages"], reply, result]}
        case "openai_responses":
            made = next(item["call_id"] for item in answer["output"] if item["type"] == "function_call")
            result = {"type": "function_call_output", "call_id": made, "output": "sunny"}
            return {**first, "input": [{"role": "user", "content": "q"}, *answer["output"], result]}
        case "anthropic":
            made = next(part["id"] for part in answer["content"] if part["type"] == "tool_use")
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made, "content": "sunny"}]}
            return {**first, "messages": [*first["messages"], {"role": "assistant", "content": answer["content"]}, result]}
        case _:
            content = answer["candidates"][0]["content"]
            response = {"functionResponse": {"name": "weather", "response": {"result": "sunny"}}}
            return {**first, "contents": [*first["contents"], content, {"role": "user", "parts": [response]}]}


@pytest.mark.parametrize("client", KEEPERS)
@pytest.mark.parametrize("kind", STATES)
def test_state_of_a_provider_returns_to_it_and_goes_to_no_other(
    gateway: Running, upstream: HostileUpstream, kind: str, client: str
) -> None:
    """CLIProxyAPI#1584, pi#9444, bifrost#5887: state was lost on the way, and the next turn failed with 400."""
    via, body, states = STATES[kind]
    name, other = f"state-{kind}-{client}", f"state-other-{kind}-{client}"
    upstream.scripts[name] = streamed(body)
    turn = Turn(text="Fine.")
    upstream.scripts[other] = streamed(b"".join(wire(ELSEWHERE[via], turn, "m")))
    first = body_of(client, f"{UPSTREAM_NAMES[via]}/{name}", False, ("weather",))
    answer = gateway.ask(path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", False), first).json()
    again = _continued(client, first, answer)
    assert gateway.ask(path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", False), again).status == 200
    sent = upstream.requests(name)[-1].raw.decode()
    for state in states:
        assert sent.count(f'"{state}"') == 1, sent
    away = f"{UPSTREAM_NAMES[ELSEWHERE[via]]}/{other}"
    assert gateway.ask(path_of(client, away, False), {**again, **({} if client == "gemini" else {"model": away})}).status == 200
    sent = upstream.requests(other)[-1].raw.decode()
    assert not [state for state in states if state in sent], sent


# --- strict clients


@pytest.fixture(scope="module")
def strict_gateway(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"server": {"output": "strict"}, "upstreams": upstreams_at(upstream.url)}) as started:
        yield started


RICH = sse(
    chunk({"reasoning": "Hm.", "reasoning_details": [_detail("Hm.", signature="c2ln")]}, provider="p", timings={"n": 1}),
    chunk({"content": "Hello", "executed_tools": [1]}),
    calls({**_signed_call("extra_content", {"google": {"thought_signature": "x"}})}),
    {**chunk({}, "tool_calls"), "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cost": 0.1}},
    DONE,
)


def _extras(value: Any) -> Iterator[str]:
    """The fields that the vendor's own types do not know."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for field in value.model_fields_set & set(type(value).model_fields):
            yield from _extras(getattr(value, field))
    elif isinstance(value, list):
        for one in value:
            yield from _extras(one)


def _unknown_fields(gateway: Running, headers: dict[str, str]) -> tuple[set[str], set[str]]:
    """The fields outside of the specification, in a stream and in a whole answer."""
    found: set[str] = set()
    answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/rich", True, ("weather",)), headers)
    box = Sse()
    for frame in box.feed(answer.body) + box.close():
        if frame.kind == "data" and frame.data != b"[DONE]":
            found |= set(_extras(ChatCompletionChunk.model_validate_json(frame.data)))
    whole = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/rich", False, ("weather",)), headers)
    return found, set(_extras(ChatCompletion.model_validate_json(whole.body)))


def test_strict_output_has_the_fields_of_the_specification_only(
    gateway: Running, strict_gateway: Running, upstream: HostileUpstream
) -> None:
    """bifrost#3138: strict clients break at fields that are in no specification. A setting or a header leaves them out."""
    upstream.scripts["rich"] = streamed(RICH)
    rich = _unknown_fields(gateway, {})
    assert {"reasoning_content", "reasoning_details"} <= rich[0] & rich[1]
    assert _unknown_fields(gateway, {"x-streamglot-output": "strict"}) == (set(), set())
    assert _unknown_fields(strict_gateway, {}) == (set(), set())
    assert _unknown_fields(strict_gateway, {"x-streamglot-output": "rich"}) == rich


FIELDS = {"reasoning", "reasoning_content", "reasoning_details"}


def _thoughts(answer: Answer, stream: bool) -> tuple[dict[str, str], list[str]]:
    """The text of the reasoning by its field, and the opaque state."""
    found: dict[str, str] = {}
    state: list[str] = []
    frames = [frame.data for frame in Sse().feed(answer.body) if frame.kind == "data" and frame.data != b"[DONE]"]
    for body in [msgspec.json.decode(frame) for frame in frames] if stream else [answer.json()]:
        for choice in body["choices"]:
            message = choice["delta"] if stream else choice["message"]
            for field in FIELDS & message.keys():
                entries = message[field] if field == "reasoning_details" else [{"text": message[field]}]
                state += [entry["signature"] for entry in entries if "signature" in entry]
                text = "".join(entry.get("text") or "" for entry in entries)
                if text:
                    found[field] = found.get(field, "") + text
    return found, state


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("field", "fields"),
    [*((field, {field}) for field in sorted(FIELDS)), ("all", FIELDS), ("", {"reasoning_content"})],
)
def test_reasoning_is_in_the_field_that_the_client_reads(
    upstream: HostileUpstream, field: str, fields: set[str], stream: bool
) -> None:
    """A client that reads two fields printed every thought twice. The state is there with every value."""
    upstream.scripts["thinking"] = streamed(RICH)
    asked_for = body_of("openai_chat", "work/thinking", stream, ("weather",))
    server = {"reasoning_field": field} if field else {}
    with (
        running({"server": server, "upstreams": upstreams_at(upstream.url)}) as by_setting,
        running({"upstreams": upstreams_at(upstream.url)}) as by_header,
    ):
        for gateway, headers in ((by_setting, {}), (by_header, {"x-streamglot-reasoning-field": field} if field else {})):
            answer = gateway.ask("/v1/chat/completions", asked_for, headers)
            assert _thoughts(answer, stream) == (dict.fromkeys(fields, "Hm."), ["c2ln"])
        wrong = by_header.ask("/v1/chat/completions", asked_for, {"x-streamglot-reasoning-field": "thoughts"})
        assert (wrong.status, "reasoning or reasoning_content or" in wrong.body.decode()) == (400, True)


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_every_dialect_has_strict_output(strict_gateway: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["rich-too"] = streamed(RICH)
    for stream in (True, False) if client not in ("agui", "vercel_ui") else (True,):
        found = asked(strict_gateway, client, "work/rich-too", stream, ("weather",))
        assert (found.error, found.text.strip()) == (None, "Hello")
        if client != "openai_completions":
            assert found.calls == [("weather", {"city": "Paris"})]


def test_an_unknown_form_of_output_is_refused(gateway: Running) -> None:
    body = body_of("openai_chat", "work/rich", False)
    answer = gateway.ask("/v1/chat/completions", body, {"x-streamglot-output": "loose"})
    assert answer.status == 400
    assert "must be rich or strict, not 'loose'" in answer.json()["error"]["message"]


# --- bounds


ENDLESS: dict[str, tuple[str, bytes, bytes]] = {
    "reasoning_content": ("openai_chat", b"", sse(chunk({"reasoning_content": "x" * 100}))),
    "details": ("openai_chat", b"", sse(chunk({"reasoning_details": [_detail("x" * 100)]}))),
    "tags": ("openai_chat", sse(text_chunk("<think>")), sse(text_chunk("x" * 100))),
    "thinking": (
        "anthropic",
        anthropic(("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": ""}})),
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"%b"}}\n\n' % (b"x" * 100),
    ),
    "signature": (
        "anthropic",
        anthropic(("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": ""}})),
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"%b"}}\n\n' % (b"x" * 100),
    ),
    "thought": ("gemini", b"", sse(gemini({"text": "x" * 100, "thought": True}))),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_reasoning_without_an_end_meets_a_limit(name: str) -> None:
    """Buffers of reasoning grew to 2.5 GB elsewhere."""
    dialect, beginning, piece = ENDLESS[name]
    box = streamglot.reader(dialect, limits=Limits(block_chars=10_000, response_bytes=200_000))
    events = box.feed(beginning)
    for _ in range(2_000):
        events += box.feed(piece)
        if events and isinstance(events[-1], StreamError):
            break
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.code in ("limit_block_chars", "limit_response_bytes")
