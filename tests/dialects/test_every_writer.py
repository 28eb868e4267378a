"""Properties that the writers of all dialects have."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from streamglot import DIALECTS, collect
from streamglot.framing.sse import Sse
from vocabulary import *

WRITERS = sorted(name for name, entry in DIALECTS.items() if entry.has_writer)
BOTH = sorted(name for name in WRITERS if DIALECTS[name].has_reader)
SIGNED = Echo("elsewhere", {"signature": "opaque"})
START = StreamStart("a-1", "m-1", 7)


def text(content: str) -> list[Event]:
    return [TextStart(), TextDelta(content), TextEnd()]


def thought(content: str, echo: Echo | None = None) -> list[Event]:
    return [ReasoningStart(), ReasoningDelta(content), ReasoningEnd(echo)]


def call(call_id: str, echo: Echo | None = None) -> list[Event]:
    return [ToolCallStart(call_id, "tides"), ToolCallDelta('{"port":'), ToolCallDelta('"Oslo"}'), ToolCallEnd(echo)]


def written(dialect: str, events: list[Event]) -> bytes:
    """Writes event by event, as in a live stream."""
    box = streamglot.writer(dialect)
    return b"".join([*(box.feed([event]) for event in events), box.close()])


def read(dialect: str, body: bytes) -> list[Event]:
    box = streamglot.reader(dialect)
    return box.feed(body) + box.close()


def frames(body: bytes) -> list[bytes]:
    """The data of every server-sent event."""
    box = Sse()
    return [frame.data for frame in box.feed(body) + box.close() if frame.kind == "data"]


def content_of(response: Response) -> list[tuple[str, Any]]:
    parts = [part for choice in response.choices for part in choice.parts]
    return [
        (type(part).__name__, part.arguments if isinstance(part, ToolCallPart) else getattr(part, "text", None)) for part in parts
    ]


@pytest.mark.parametrize("dialect", WRITERS)
def test_separators_that_some_clients_split_at_come_through(dialect: str) -> None:
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    body = written(dialect, [START, *text(odd), StreamEnd()])
    if dialect == "gemini":
        assert body.decode().splitlines() == body.decode().split("\n")[:-1]
    if dialect in BOTH:
        assert ("TextPart", odd) in content_of(collect(read(dialect, body)))
    else:
        assert any(odd in json.loads(frame).values() for frame in frames(body) if frame != b"[DONE]")


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_keep_alive_at_any_place_changes_nothing(dialect: str) -> None:
    events = [START, *thought("hm"), *text("yes"), *call("c-1"), Usage(3, 2), StreamEnd("tool_calls")]
    plain = written(dialect, events)
    for place in range(len(events)):
        box = streamglot.writer(dialect)
        before = box.feed(events[:place])
        kept = box.feed([KeepAlive()])
        body = before + kept + box.feed(events[place:]) + box.close()
        assert not kept or kept.endswith(b"\n")
        assert not before or before.endswith(b"\n")
        if dialect in BOTH:
            assert content_of(collect(read(dialect, body))) == content_of(collect(read(dialect, plain)))
        else:
            assert frames(body) == frames(plain)


@pytest.mark.parametrize("dialect", WRITERS)
def test_nothing_is_written_after_the_end(dialect: str) -> None:
    for end in (StreamEnd(), StreamError("x", "it broke")):
        box = streamglot.writer(dialect)
        assert box.feed([START, *text("yes"), end])
        assert box.feed([*text("more"), KeepAlive(), StreamEnd()]) == b""
        assert box.close() == b""


@pytest.mark.parametrize("dialect", sorted(set(WRITERS) - {"openai_completions"}))
def test_reasoning_between_texts_keeps_its_order(dialect: str) -> None:
    body = written(dialect, [START, *thought("one"), *text("two"), *thought("three"), *text("four"), StreamEnd()])
    places = [body.index(f'"{word}"'.encode()) for word in ("one", "two", "three", "four")]
    assert places == sorted(places)
    if dialect in BOTH:
        parts = content_of(collect(read(dialect, body)))
        assert [part for part in parts if part[1]] == [
            ("ReasoningPart", "one"),
            ("TextPart", "two"),
            ("ReasoningPart", "three"),
            ("TextPart", "four"),
        ]


USAGES: dict[str, dict[str, Any]] = {
    "openai_chat": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1, "odd": 1}},
    "openai_completions": {"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": None},
    "openai_responses": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    "anthropic": {"input_tokens": 3, "output_tokens": 2, "cache_creation": {"ephemeral_1h_input_tokens": 0, "odd": 1}},
    "gemini": {"promptTokenCount": 3, "candidatesTokenCount": 2, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}]},
}


@pytest.mark.parametrize("dialect", USAGES)
def test_strict_usage_has_the_counts_of_the_specification_only(dialect: str) -> None:
    usage = Usage(3, 2, raw={**USAGES[dialect], "odd": 1, "cost": 0.5})
    events = [START, *text("yes"), usage, StreamEnd()]
    for strict in (False, True):
        box = streamglot.writer(dialect, strict=strict, include_usage=True)
        stream = box.feed(events) + box.close()
        whole = DIALECTS[dialect].build_response(collect(events), strict=strict)
        for body in (stream, json.dumps(whole).encode()):
            assert (b"odd" in body, b"cost" in body) == (not strict, not strict)
            assert collect(read(dialect, body)).usage.input_tokens == 3


def history_of(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """The next request of a client that keeps all of an answer."""
    asked = {"role": "user", "content": "q"}
    match dialect:
        case "openai_chat":
            return {"model": "m", "messages": [asked, body["choices"][0]["message"]]}
        case "openai_responses":
            return {"model": "m", "input": [asked, *body["output"]]}
        case "anthropic":
            messages = [asked, {"role": "assistant", "content": body["content"]}]
            return {"model": "m", "max_tokens": 9, "messages": messages}
        case _:
            return {"contents": [{"role": "user", "parts": [{"text": "q"}]}, body["candidates"][0]["content"]]}


@pytest.mark.parametrize("dialect", ["anthropic", "gemini", "openai_chat", "openai_responses"])
def test_opaque_state_comes_back_through_every_client(dialect: str) -> None:
    entry = DIALECTS[dialect]
    events = [START, *thought("hm", SIGNED), *text("yes"), *call("c_1", SIGNED), StreamEnd("tool_calls")]
    request = entry.parse_request(history_of(dialect, entry.build_response(collect(events))))
    parts = [part for message in request.messages for part in message.parts]
    assert [part.echo for part in parts if isinstance(part, ReasoningPart) and part.text] == [SIGNED]
    assert [part.echo for part in parts if isinstance(part, ToolCallPart)] == [SIGNED]
    assert "yes" in [part.text for part in parts if isinstance(part, TextPart)]


def is_error(dialect: str, body: bytes, message: str) -> bool:
    if dialect in BOTH:
        last = read(dialect, body)[-1]
        return isinstance(last, StreamError) and message in last.message
    return any(b"error" in frame.lower() and message.encode() in frame for frame in frames(body))


@pytest.mark.parametrize("dialect", WRITERS)
def test_an_error_before_any_content_is_an_error_of_the_dialect(dialect: str) -> None:
    assert is_error(dialect, written(dialect, [StreamError("overloaded", "come back later")]), "come back later")


@pytest.mark.parametrize("dialect", WRITERS)
def test_events_that_stop_are_ended_with_an_error(dialect: str) -> None:
    message = "the events stopped before the end of the stream"
    assert is_error(dialect, written(dialect, []), message)
    assert is_error(dialect, written(dialect, [START, *thought("hm"), TextStart(), TextDelta("ye")]), message)
    assert is_error(dialect, written(dialect, [START, *text("yes"), *call("c-1")[:2]]), message)
