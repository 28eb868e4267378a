"""Opaque state, extras, results and media count towards a limit in every dialect, however many frames they come in."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

import streamglot
from split_checks import every_cut
from streamglot import Echo, Event, Extra, Limits, Media, StreamError, ToolResult, collect
from streamglot.dialects.common.blocks import Tally, json_size
from streamglot.dialects.openai_chat.wire import ENTRY_CHARS, ReasoningDetails
from streamglot.errors import LimitExceeded
from streamglot.framing.aws_eventstream import frame
from streamglot.messages import ReasoningPart, TextPart

LOW = Limits(block_chars=3000, extra_bytes=2000, media_chars=1000)
LONG = "x" * 300
PROBABILITIES = {"content": [{"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": [{"token": LONG}]}]}


def sse(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def chat(**fields: Any) -> bytes:
    return sse({"id": "a", "model": "m", "choices": [{"index": 0, **fields}]})


def converse(event: str, **fields: Any) -> bytes:
    headers = {":message-type": "event", ":event-type": event, ":content-type": "application/json"}
    return frame(json.dumps(fields).encode(), headers)


def invoke(value: dict[str, Any]) -> bytes:
    data = json.dumps({"bytes": base64.b64encode(json.dumps(value).encode()).decode()}).encode()
    return frame(data, {":message-type": "event", ":event-type": "chunk"})


def candidate(*parts: dict[str, Any], **fields: Any) -> bytes:
    return sse({"candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, **fields}]})


def item(event: str, **fields: Any) -> bytes:
    return sse({"type": f"response.output_item.{event}", "output_index": 0, "item": fields})


CHAT_TEXT = chat(delta={"content": "Hello"})
ANTHROPIC_TEXT = (
    sse({"type": "message_start", "message": {"id": "a", "model": "m", "content": []}})
    + sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello"}})
    + sse({"type": "content_block_stop", "index": 0})
)
CONVERSE_TEXT = converse("contentBlockDelta", contentBlockIndex=0, delta={"text": "Hello"}) + converse(
    "contentBlockStop", contentBlockIndex=0
)
RESPONSES_TEXT = (
    sse({"type": "response.created", "response": {"id": "a", "model": "m"}})
    + sse({"type": "response.output_text.delta", "output_index": 9, "item_id": "t", "content_index": 0, "delta": "Hello"})
    + sse({"type": "response.output_text.done", "output_index": 9, "item_id": "t", "content_index": 0, "text": "Hello"})
    + sse(
        {
            "type": "response.content_part.done",
            "output_index": 9,
            "item_id": "t",
            "part": {"type": "output_text", "text": "Hello"},
        }
    )
)
OLLAMA_TEXT = b'{"model":"m","message":{"role":"assistant","content":"Hello"},"done":false}\n'
COHERE_TEXT = sse({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hello"}}}})
QWEN_TEXT = sse({"choices": [{"delta": {"content": "Hello", "phase": "answer"}}]})

Piece = Callable[[int], bytes]

ENDLESS: dict[str, tuple[str, bytes, Piece, str]] = {
    "encrypted details": (
        "openai_chat",
        CHAT_TEXT,
        lambda _: chat(delta={"reasoning_details": [{"type": "reasoning.encrypted", "data": LONG, "index": 0}]}),
        "block_chars",
    ),
    "details without content": (
        "openai_chat",
        CHAT_TEXT,
        lambda number: chat(delta={"reasoning_details": [{"index": number}]}),
        "block_chars",
    ),
    "details with ever new fields": (
        "openai_chat",
        CHAT_TEXT,
        lambda number: chat(delta={"reasoning_details": [{"index": 0, f"field{number}": LONG}]}),
        "block_chars",
    ),
    "a signature of a thinking part": (
        "openai_chat",
        CHAT_TEXT,
        lambda _: chat(delta={"content": [{"type": "thinking", "thinking": "a", "signature": LONG * 10}]}),
        "block_chars",
    ),
    "extra content of a call": (
        "openai_chat",
        CHAT_TEXT,
        lambda _: chat(
            delta={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}, "extra_content": {"google": LONG * 10}}]}
        ),
        "block_chars",
    ),
    "chat log probabilities": ("openai_chat", CHAT_TEXT, lambda _: chat(delta={}, logprobs=PROBABILITIES), "extra_bytes"),
    "log probabilities of many choices": (
        "openai_chat",
        CHAT_TEXT,
        lambda number: chat(index=number, logprobs=PROBABILITIES),
        "extra_bytes",
    ),
    "chat annotations": (
        "openai_chat",
        CHAT_TEXT,
        lambda _: chat(delta={"annotations": [{"type": "url_citation", "url_citation": {"url": "u", "content": LONG}}]}),
        "extra_bytes",
    ),
    "chat audio": ("openai_chat", CHAT_TEXT, lambda _: chat(delta={"audio": {"id": "s", "data": LONG}}), "media_chars"),
    "timings": ("openai_chat", CHAT_TEXT, lambda number: sse({"id": "a", "timings": {"n": number, "x": LONG}}), "extra_bytes"),
    "completions log probabilities": (
        "openai_completions",
        sse({"id": "a", "choices": [{"index": 0, "text": "Hello"}]}),
        lambda _: sse({"id": "a", "choices": [{"index": 0, "text": "", "logprobs": PROBABILITIES}]}),
        "extra_bytes",
    ),
    "redacted thinking": (
        "anthropic",
        ANTHROPIC_TEXT,
        lambda _: (
            sse({"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": LONG * 10}})
            + sse({"type": "content_block_stop", "index": 1})
        ),
        "block_chars",
    ),
    "anthropic signature": (
        "anthropic",
        ANTHROPIC_TEXT,
        lambda _: (
            sse({"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": "a"}})
            + sse({"type": "content_block_delta", "index": 1, "delta": {"type": "signature_delta", "signature": LONG * 10}})
            + sse({"type": "content_block_stop", "index": 1})
        ),
        "block_chars",
    ),
    "the native form of a server's call": (
        "anthropic",
        ANTHROPIC_TEXT,
        lambda _: sse(
            {
                "type": "content_block_start",
                "index": 1,
                "content_block": {"type": "server_tool_use", "id": "c", "name": "web_search", "caller": LONG * 10},
            }
        ),
        "block_chars",
    ),
    "results that wait for a block": (
        "anthropic",
        ANTHROPIC_TEXT + sse({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "open"}}),
        lambda number: sse(
            {
                "type": "content_block_start",
                "index": number + 2,
                "content_block": {"type": "web_search_tool_result", "tool_use_id": "c", "content": [{"encrypted_content": LONG}]},
            }
        ),
        "extra_bytes",
    ),
    "an unknown block with ever new fields": (
        "anthropic",
        ANTHROPIC_TEXT + sse({"type": "content_block_start", "index": 1, "content_block": {"type": "new"}}),
        lambda number: sse({"type": "content_block_delta", "index": 1, "delta": {"type": "new_delta", f"field{number}": LONG}}),
        "extra_bytes",
    ),
    "anthropic citations": (
        "anthropic",
        ANTHROPIC_TEXT + sse({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        lambda _: sse(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"cited_text": LONG}}}
        ),
        "extra_bytes",
    ),
    "converse signature": (
        "bedrock_converse",
        CONVERSE_TEXT,
        lambda _: converse("contentBlockDelta", contentBlockIndex=1, delta={"reasoningContent": {"signature": LONG}}),
        "block_chars",
    ),
    "converse redacted content": (
        "bedrock_converse",
        CONVERSE_TEXT,
        lambda _: converse("contentBlockDelta", contentBlockIndex=1, delta={"reasoningContent": {"redactedContent": LONG}}),
        "block_chars",
    ),
    "converse tool result": (
        "bedrock_converse",
        CONVERSE_TEXT,
        lambda _: converse("contentBlockDelta", contentBlockIndex=1, delta={"toolResult": [{"text": LONG}]}),
        "extra_bytes",
    ),
    "converse image": (
        "bedrock_converse",
        CONVERSE_TEXT,
        lambda _: converse("contentBlockDelta", contentBlockIndex=1, delta={"image": {"source": {"bytes": LONG}}}),
        "media_chars",
    ),
    "a trace before the answer": (
        "bedrock_invoke",
        b"",
        lambda number: invoke({"amazon-bedrock-trace": {"n": number, "x": LONG}}),
        "extra_bytes",
    ),
    "thought signature of a call": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda _: candidate({"functionCall": {"name": "f", "args": {}}, "thoughtSignature": LONG * 10}),
        "block_chars",
    ),
    "thought signature of a text": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda _: candidate({"text": "", "thoughtSignature": LONG * 10}),
        "block_chars",
    ),
    "grounding metadata": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda number: candidate(groundingMetadata={"webSearchQueries": [LONG, str(number)]}),
        "extra_bytes",
    ),
    "code execution": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda _: candidate({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": LONG}}),
        "extra_bytes",
    ),
    "gemini drafts": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda _: candidate({"thought": True, "inlineData": {"mimeType": "image/png", "data": LONG}}),
        "media_chars",
    ),
    "gemini images": (
        "gemini",
        candidate({"text": "Hello"}),
        lambda _: candidate({"inlineData": {"mimeType": "image/png", "data": LONG}}),
        "media_chars",
    ),
    "encrypted content": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: item("done", type="reasoning", id="r", summary=[], encrypted_content=LONG * 10),
        "block_chars",
    ),
    "compaction": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: item("done", type="compaction", id="r", encrypted_content=LONG * 10),
        "block_chars",
    ),
    "items that begin and never end": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda number: item("added", type="reasoning", id=f"r{number}", encrypted_content=LONG),
        "extra_bytes",
    ),
    "responses log probabilities": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: sse(
            {"type": "response.output_text.delta", "output_index": 1, "delta": "a", "logprobs": PROBABILITIES["content"]}
        ),
        "extra_bytes",
    ),
    "responses annotations": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: sse({"type": "response.output_text.annotation.added", "annotation": {"type": "url_citation", "url": LONG}}),
        "extra_bytes",
    ),
    "results that wait for an open text": (
        "openai_responses",
        RESPONSES_TEXT + sse({"type": "response.output_text.delta", "output_index": 5, "item_id": "u", "delta": "open"}),
        lambda number: item("done", type="function_call_output", id=f"o{number}", call_id="c", output=LONG),
        "extra_bytes",
    ),
    "partial images": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: sse({"type": "response.image_generation_call.partial_image", "partial_image_b64": LONG}),
        "media_chars",
    ),
    "responses audio": (
        "openai_responses",
        RESPONSES_TEXT,
        lambda _: sse({"type": "response.audio.delta", "delta": LONG}),
        "media_chars",
    ),
    "ollama log probabilities": (
        "ollama",
        OLLAMA_TEXT,
        lambda _: b'{"message":{"role":"assistant","content":""},"logprobs":[{"token":"%b"}],"done":false}\n' % LONG.encode(),
        "extra_bytes",
    ),
    "ollama images": (
        "ollama",
        OLLAMA_TEXT,
        lambda _: b'{"message":{"role":"assistant","content":"","images":["%b"]},"done":false}\n' % LONG.encode(),
        "media_chars",
    ),
    "cohere log probabilities": (
        "cohere",
        COHERE_TEXT,
        lambda _: sse({"type": "content-delta", "index": 0, "delta": {}, "logprobs": {"text": LONG}}),
        "extra_bytes",
    ),
    "unknown cohere events": ("cohere", COHERE_TEXT, lambda _: sse({"type": "debug", "prompt": LONG}), "extra_bytes"),
    "results of qwen's tools": (
        "qwen_web",
        QWEN_TEXT,
        lambda _: sse({"choices": [{"delta": {"role": "function", "content": LONG, "phase": "web_search"}}]}),
        "extra_bytes",
    ),
}


def read(dialect: str, pieces: list[bytes], limits: Limits = LOW) -> list[Event]:
    box = streamglot.reader(dialect, limits=limits)
    return [event for piece in pieces for event in box.feed(piece)] + box.close()


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_kept_beside_the_text_meets_a_limit_and_the_partial_answer_stays(name: str) -> None:
    dialect, beginning, piece, limit = ENDLESS[name]
    data = b"".join([beginning, *map(piece, range(12))])
    events = every_cut(lambda: streamglot.reader(dialect, limits=LOW), data, cuts=1)
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.code == f"limit_{limit}"
    assert [event for event in events if isinstance(event, StreamError)] == [last]
    response = collect(events)
    assert response.error == last
    texts = [part.text for choice in response.choices[:1] for part in choice.parts if isinstance(part, TextPart)]
    assert "".join(texts)[:5] == ("Hello" if beginning else "")


@pytest.mark.parametrize("name", ENDLESS)
def test_a_few_pieces_are_below_the_limits(name: str) -> None:
    dialect, beginning, piece, _ = ENDLESS[name]
    last = read(dialect, [beginning, *map(piece, range(20))], Limits())[-1]
    assert not isinstance(last, StreamError) or not last.code.startswith("limit_")


def test_encrypted_details_up_to_the_limit_end_the_answer_properly() -> None:
    pieces = [chat(delta={"reasoning_details": [{"type": "reasoning.encrypted", "data": LONG, "index": 0}]})] * 8
    response = collect(read("openai_chat", [*pieces, chat(delta={"content": "a"}, finish_reason="stop"), b"data: [DONE]\n\n"]))
    assert response.error is None
    part = response.choices[0].parts[0]
    assert isinstance(part, ReasoningPart)
    assert part.echo == Echo(
        "openai_chat", {"reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "data": LONG * 8}]}
    )


def test_state_that_is_repeated_counts_once() -> None:
    signed = chat(delta={"content": [{"type": "thinking", "thinking": "a", "signature": LONG}]})
    described = chat(delta={"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0, "format": LONG}]})
    end = [chat(delta={"content": "a"}, finish_reason="stop"), b"data: [DONE]\n\n"]
    for piece in (signed, described):
        assert collect(read("openai_chat", [piece] * 50 + end)).error is None


def test_text_and_opaque_state_of_a_block_count_together() -> None:
    hidden = chat(delta={"reasoning_details": [{"type": "reasoning.encrypted", "data": LONG * 5, "index": 0}]})
    shown = chat(delta={"reasoning_details": [{"type": "reasoning.text", "text": LONG, "index": 1}]})
    last = read("openai_chat", [hidden, *[shown] * 3])[-1]
    assert isinstance(last, StreamError)
    assert last.code == "limit_block_chars"


def test_extras_before_the_first_chunk_count_once() -> None:
    early = sse({"prompt_filter_results": [{"x": LONG * 5}]})
    end = [CHAT_TEXT, chat(delta={}, finish_reason="stop"), b"data: [DONE]\n\n"]
    assert collect(read("openai_chat", [early, *end])).error is None
    last = read("openai_chat", [early, sse({"search_results": [LONG * 5]}), *end])[-1]
    assert isinstance(last, StreamError)
    assert last.code == "limit_extra_bytes"


def test_a_trace_before_the_answer_counts_once() -> None:
    trace = invoke({"amazon-bedrock-trace": {"x": LONG * 5}})
    events = read("bedrock_invoke", [trace, invoke({"generation": "Hello", "stop_reason": "stop"})])
    assert collect(events).error is None


def test_a_complete_body_has_the_same_limits() -> None:
    message = {"content": "Hello", "reasoning_details": [{"type": "reasoning.encrypted", "data": LONG * 10}]}
    body = json.dumps({"id": "a", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    last = read("openai_chat", [body])[-1]
    assert isinstance(last, StreamError)
    assert last.code == "limit_block_chars"


def test_details_say_how_much_they_grew() -> None:
    details = ReasoningDetails("p")
    assert details.add({"index": 0, "signature": None}) == ENTRY_CHARS + len("index0signaturenull")
    assert details.add({"index": 0, "signature": "abcdef"}) == 2
    assert details.add({"index": 0, "signature": None, "text": "seen"}) == 0
    assert details.add({"index": 0, "signature": "ab"}) == -4
    assert details.echo() == Echo("p", {"reasoning_details": [{"index": 0, "signature": "ab", "text": "seen"}]})


def test_the_size_of_a_value_is_about_that_of_its_json() -> None:
    assert json_size("abc") == 3
    assert json_size({"a": [1, None]}) == len('{"a":[1,null]}')
    assert json_size({"a": ["\ud83d", 1, True]}) in range(10, 30)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert json_size(deep) > 100_000


def test_results_without_a_native_form_and_transcripts_count() -> None:
    tally = Tally(Limits(extra_bytes=10, media_chars=10))
    tally.count(ToolResult("c", "1234567890"))
    with pytest.raises(LimitExceeded, match="extra_bytes"):
        tally.count(Extra("d", {}))
    tally.count(Media("audio/*", "12345", transcript="12345"))
    with pytest.raises(LimitExceeded, match="media_chars"):
        tally.count(Media("image/*", url="u"))
