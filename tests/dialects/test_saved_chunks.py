"""Saved streams: a JSON array of chunks, or chunks one after another, read like the stream that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from split_checks import every_cut
from streamglot import Event, KeepAlive, StreamEnd, StreamError, collect, dialect
from streamglot.framing import Sse
from streamglot.inspect.detection import open_reader
from streamglot.messages import ToolCallPart

CORPUS = Path(__file__).parent.parent / "corpus"
DIALECTS = ("openai_chat", "openai_completions", "openai_responses", "anthropic", "cohere", "qwen_web")


def forms(chunks: list[Any]) -> list[bytes]:
    """How programs save chunks: one array, on one line or indented, and one chunk a line."""
    lines = [json.dumps(chunk) for chunk in chunks]
    return [json.dumps(chunks).encode(), json.dumps(chunks, indent=2).encode(), "\n".join(lines).encode() + b"\n"]


def lasting(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, KeepAlive)]


def saved(path: Path) -> list[Any]:
    box = Sse()
    frames = [*box.feed(path.read_bytes()), *box.close()]
    return [json.loads(frame.data) for frame in frames if frame.kind == "data" and frame.data.strip()[:1] == b"{"]


@pytest.mark.parametrize("name", DIALECTS)
def test_the_recordings_of_a_dialect_as_saved_chunks(name: str) -> None:
    wire, read = dialect(name), 0
    for path in sorted((CORPUS / name).glob("*.sse")):
        reader = wire.reader()
        expected = lasting(reader.feed(path.read_bytes()) + reader.close())
        chunks = saved(path)
        if not isinstance(expected[-1], StreamEnd) or len(chunks) < 2 or not wire.reader().is_chunk(chunks[0]):
            continue
        for body in forms(chunks):
            again, recognised = wire.reader(), open_reader("")
            events = lasting(again.feed(body) + again.close())
            if isinstance(events[-1], StreamError) and b"[DONE]" in path.read_bytes():
                continue  # its only end is [DONE], which is no chunk
            assert events == expected, path.name
            if name != "qwen_web" or b"response.created" in body:
                assert lasting(recognised.feed(body) + recognised.close()) == expected
            read += 1
    assert read >= 3


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"finish_reason": finish, "index": 0, "delta": delta, "logprobs": None}
    head = {"id": "chatcmpl-1", "created": 7, "model": "gpt-4o", "object": "chat.completion.chunk"}
    return {**head, "system_fingerprint": None, "choices": [choice]}


def call(index: int, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [
    chunk(role="assistant", content=None, tool_calls=[call(0, "call_W5", "get_weather", "")]),
    *(chunk(tool_calls=[call(0, arguments=piece)]) for piece in ('{"lo', 'cation": "To', "kyo", '"}')),
    chunk(tool_calls=[call(1, "call_aC", "get_weather", "")]),
    *(chunk(tool_calls=[call(1, arguments=piece)]) for piece in ('{"lo', 'cation": "Lon', "don", '"}')),
    chunk("tool_calls"),
    chunk(),
]
"""Several calls as the document describes them: name and id first, then pieces of the arguments, then an empty delta."""


@pytest.mark.parametrize("body", forms(CALLS), ids=["array", "indented", "lines"])
def test_several_calls_cut_anywhere(body: bytes) -> None:
    response = collect(every_cut(dialect("openai_chat").reader, body))
    assert response.error is None
    calls = [part for part in response.choices[0].parts if isinstance(part, ToolCallPart)]
    assert [(one.name, json.loads(one.arguments)["location"]) for one in calls] == [
        ("get_weather", "Tokyo"),
        ("get_weather", "London"),
    ]
    assert response.choices[0].stop_reason == "tool_calls"


def test_a_saved_stream_that_is_not_whole_is_a_truncation_with_its_beginning() -> None:
    for body in (json.dumps(CALLS[:3]).encode(), json.dumps(CALLS).encode()[:1500], *forms(CALLS[:4])):
        response = collect(every_cut(dialect("openai_chat").reader, body))
        assert response.error is not None
        assert response.error.code == "upstream_truncated"
        assert isinstance(response.choices[0].parts[0], ToolCallPart)


def test_whole_answers_and_errors_are_not_chunks() -> None:
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "Yes"}, "finish_reason": "stop"}]}
    reader = dialect("openai_chat").reader
    for body, code in (
        ([{"error": {"message": "no", "code": 429}}], "rate_limit"),
        ([whole, whole], "upstream_protocol_error"),
        ([{"x": 1}, {"x": 2}], "upstream_protocol_error"),
        ([1, 2], "upstream_protocol_error"),
    ):
        error = every_cut(reader, json.dumps(body).encode())[-1]
        assert isinstance(error, StreamError)
        assert error.code == code
    assert collect(every_cut(reader, json.dumps([whole]).encode())).choices[0].text == "Yes"


def test_the_events_of_an_sdk_have_their_names_around_them() -> None:
    events = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Yes"}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}},
    ]
    for body in forms(events):
        response = collect(every_cut(dialect("bedrock_converse").reader, body))
        assert (response.choices[0].text, response.usage.output_tokens, response.error) == ("Yes", 2, None)
        recognised = open_reader("")
        assert collect(recognised.feed(body) + recognised.close()).choices[0].text == "Yes"
