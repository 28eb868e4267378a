"""Changes that the gateway makes to reasoning and to call ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of, understood
from gateway.running import Running, running
from gateway.scenarios import DONE, END, WEATHER, answer, calls, chunk, lines, text_chunk
from gateway.upstream import HostileUpstream, sse, streamed, whole
from streamglot import Client, Upstream, collect, reader
from streamglot.events import ReasoningDelta
from streamglot.messages import Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec

IN_TEXT = sse(text_chunk('<tool_call>{"name":"weather","arguments":{"city":"Paris"}}</tool_call>'), END, DONE)
OLLAMA_CALL = lines(
    {"message": {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}, "done": False},
    {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"},
)
SAME_ID = sse(calls(WEATHER), chunk({}, "tool_calls"), DONE)


def next_request(body: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """The request of a client that has run the calls of an answer."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in message["tool_calls"]]
    return {**body, "messages": [*body["messages"], message, *results]}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("upstream_name", "model", "script"),
    [("hermes", "again-in-text", IN_TEXT), ("box", "again-ollama", OLLAMA_CALL), ("work", "again", SAME_ID)],
)
def test_no_id_comes_twice_in_a_conversation(
    gateway: Running, upstream: HostileUpstream, upstream_name: str, model: str, script: bytes, stream: bool
) -> None:
    kind = "application/x-ndjson" if upstream_name == "box" else "text/event-stream"
    upstream.scripts[model] = streamed(script, media_type=kind)
    body = body_of("openai_chat", f"{upstream_name}/{model}", stream, ("weather",))
    ids: list[str] = []
    for _ in range(3):
        given = gateway.ask(path_of("openai_chat", body["model"]), body)
        if stream:
            box = reader("openai_chat")
            parts = collect(box.feed(given.body) + box.close()).choices[0].parts
            made = [part for part in parts if isinstance(part, ToolCallPart)]
            functions = [{"name": part.name, "arguments": part.arguments} for part in made]
            listed = [
                {"id": part.call_id, "type": "function", "function": function}
                for part, function in zip(made, functions, strict=True)
            ]
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": listed}
        else:
            message = given.json()["choices"][0]["message"]
        ids += [call["id"] for call in message["tool_calls"]]
        body = next_request(body, message)
    assert len(ids) == 3
    assert len(set(ids)) == 3
    assert all(len(one) <= 40 for one in ids)


def test_no_id_comes_twice_in_a_conversation_of_the_client(upstream: HostileUpstream) -> None:
    upstream.scripts["again"] = streamed(SAME_ID)
    tools = [ToolSpec("weather", parameters={"type": "object", "properties": {}})]
    messages = [Message("user", [TextPart("q")])]
    entry = upstreams_at(upstream.url)["work"]
    ids: list[str] = []
    with Client(upstreams=[Upstream(name="again", base_url=entry["base_url"])], environment={}) as client:
        for _ in range(3):
            with client.stream(model="again/again", messages=messages, tools=tools) as stream:
                parts = collect(stream).choices[0].parts
            made = [part for part in parts if isinstance(part, ToolCallPart)]
            ids += [part.call_id for part in made]
            results = [Message("tool", [ToolResultPart(part.call_id, [TextPart("sunny")])]) for part in made]
            messages = [*messages, Message("assistant", parts), *results]
    assert len(set(ids)) == 3
    assert ids[0] == "call_a"


# --- reasoning


THOUGHT = sse(
    *(chunk({"reasoning_content": piece}) for piece in ("Fir", "st. Sec", "ond one. Th", "ird")), text_chunk("Yes."), END, DONE
)


@pytest.fixture(scope="module")
def by_sentence(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"server": {"reasoning": "sentence"}, "upstreams": upstreams_at(upstream.url)}) as started:
        yield started


def reasoning_deltas(body: bytes) -> list[str]:
    box = reader("openai_chat")
    return [event.text for event in box.feed(body) + box.close() if isinstance(event, ReasoningDelta)]


def test_reasoning_leaves_by_the_sentence_where_the_setting_says_so(
    gateway: Running, by_sentence: Running, upstream: HostileUpstream
) -> None:
    upstream.scripts["thinker"] = streamed(THOUGHT)
    body = body_of("openai_chat", "work/thinker")
    path = path_of("openai_chat", "")
    assert reasoning_deltas(by_sentence.ask(path, body).body) == ["First. ", "Second one. ", "Third"]
    assert reasoning_deltas(gateway.ask(path, body).body) == ["Fir", "st. Sec", "ond one. Th", "ird"]
    found = understood("openai_chat", by_sentence.ask(path, {**body, "stream": False}), stream=False)
    assert (found.reasoning, found.text) == ("First. Second one. Third", "Yes.")


TAGGED = sse(text_chunk("<think>One."), text_chunk("</think>"), text_chunk("Two."), END, DONE)


@pytest.mark.parametrize(
    ("more", "reasoning", "text"),
    [
        ({}, "", "<think>One.</think>Two."),
        ({"thinking": False}, "", "<think>One.</think>Two."),
        ({"thinking": {"type": "disabled"}}, "", "<think>One.</think>Two."),
        ({"thinking": {"type": "adaptive"}}, "", "<think>One.</think>Two."),
        ({"thinking": True}, "One.", "Two."),
        ({"thinking": {"type": "enabled"}}, "One.", "Two."),
        ({"thinking": {"type": "enabled", "budget_tokens": 500}}, "One.", "Two."),
    ],
)
def test_the_flag_thinking_finds_reasoning_of_a_model_that_no_profile_knows(
    gateway: Running, upstream: HostileUpstream, more: dict[str, Any], reasoning: str, text: str
) -> None:
    upstream.scripts["unheard-of-tags"] = streamed(TAGGED)
    body = {**body_of("openai_chat", "work/unheard-of-tags"), **more}
    found = understood("openai_chat", gateway.ask(path_of("openai_chat", ""), body))
    assert (found.reasoning, found.text) == (reasoning, text)
    sent = upstream.requests("unheard-of-tags")[-1].body
    assert sent.get("thinking") == more.get("thinking")
    assert "reasoning_effort" not in sent


@pytest.mark.parametrize(
    ("upstream_name", "field", "on", "off"),
    [
        ("box", "think", True, False),
        ("claude", "thinking", {"type": "enabled", "budget_tokens": 8192}, {"type": "disabled"}),
        ("lab", "reasoning", {"effort": "medium", "summary": "auto"}, {"effort": "none"}),
    ],
)
def test_the_flag_thinking_reaches_upstreams_of_other_dialects(
    gateway: Running, upstream: HostileUpstream, upstream_name: str, field: str, on: Any, off: Any
) -> None:
    upstream.scripts["switched"] = streamed()
    for sent_by_client, expected in ((True, on), (False, off)):
        body = {**body_of("openai_chat", f"{upstream_name}/switched"), "max_tokens": 20_000, "thinking": sent_by_client}
        gateway.ask(path_of("openai_chat", ""), body)
        assert upstream.requests("switched")[-1].body[field] == expected


# --- extensions


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "openai_completions"])
def test_a_whole_answer_has_its_pieces_where_they_are_asked_for(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    details = [{"type": "reasoning.summary", "summary": "In short."}]
    call = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    upstream.scripts["extended"] = whole(answer(content="Yes.", reasoning_details=details, tool_calls=[call]))
    model = "work/extended"
    body = body_of(client, model, False)
    assert "extensions" not in gateway.ask(path_of(client, model, False), body).json()
    found = gateway.ask(path_of(client, model, False), {**body, "extensions": True}).json()["extensions"]
    assert found["reasoning_summaries"] == found["reasoning_chunks"] == ["In short."]
    assert [piece["type"] for piece in found["tool_call_chunks"]] == ["start", "args", "end"]
    assert "extensions" not in upstream.requests("extended")[-1].body
