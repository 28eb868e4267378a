"""A native call whose arguments are not JSON is never written as a call to run, with any finish reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from recordings import framed
from split_checks import every_cut
from streamglot import DIALECTS, StreamEnd, StreamError, ToolCallEnd, collect
from streamglot.messages import ToolCallPart

HALF = '{"path": "a.txt", "text": "Pa'


def sse(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % (event if isinstance(event, bytes) else json.dumps(event).encode()) for event in events)


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events)


def chat(arguments: str, finish: str) -> bytes:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "write", "arguments": arguments}}
    body = {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}
    return sse(body, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, b"[DONE]")


def responses(arguments: str, finish: str) -> bytes:
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "write", "arguments": arguments}
    details = {"incomplete_details": {"reason": "max_output_tokens"}} if finish == "incomplete" else {}
    response = {"id": "r", "status": finish, "output": [item], **details}
    return named(
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc", "delta": arguments},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": f"response.{finish}", "response": response},
    )


def anthropic(arguments: str, finish: str) -> bytes:
    return named(
        {"type": "message_start", "message": {"id": "m", "content": []}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "c", "name": "write", "input": {}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": arguments}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": finish}},
        {"type": "message_stop"},
    )


def gemini(arguments: str, finish: str) -> bytes:
    part = {"functionCall": {"id": "c", "name": "write", "args": arguments}}  # as a string, as some relays send them
    return sse({"candidates": [{"content": {"parts": [part]}, "finishReason": finish}]})


def ollama(arguments: str, finish: str) -> bytes:
    message = {"content": "", "tool_calls": [{"function": {"name": "write", "arguments": arguments}}]}
    return json.dumps({"message": message, "done": True, "done_reason": finish}).encode() + b"\n"


def cohere(arguments: str, finish: str) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "write", "arguments": arguments}}
    return sse(
        {"type": "message-start", "id": "m"},
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": finish}},
    )


def bedrock(arguments: str, finish: str) -> bytes:
    events: list[dict[str, Any]] = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "c", "name": "write"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": arguments}}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": finish}},
        {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 1}}},
    ]
    return framed("\n".join(map(json.dumps, events)))


def qwen_web(arguments: str, finish: str) -> bytes:
    call = {"name": "write", "arguments": arguments}
    return sse({"choices": [{"delta": {"function_call": call, "phase": "answer"}, "finish_reason": finish}]}, b"[DONE]")


WIRES = {
    "openai_chat": (chat, "tool_calls", "length"),
    "openai_responses": (responses, "completed", "incomplete"),
    "anthropic": (anthropic, "tool_use", "max_tokens"),
    "gemini": (gemini, "STOP", "MAX_TOKENS"),
    "ollama": (ollama, "stop", "length"),
    "cohere": (cohere, "TOOL_CALL", "MAX_TOKENS"),
    "bedrock_converse": (bedrock, "tool_use", "max_tokens"),
    "qwen_web": (qwen_web, "stop", "length"),
}


@pytest.mark.parametrize("dialect", WIRES)
@pytest.mark.parametrize("arguments", [HALF, "{path: a.txt}", '{"a": NaN}', '{"a": 1} and more'])
def test_arguments_that_are_not_json_are_an_error(dialect: str, arguments: str) -> None:
    wire, finish, _ = WIRES[dialect]
    events = every_cut(DIALECTS[dialect].reader, wire(arguments, finish))
    assert ToolCallEnd(complete=False) in [event for event in events if isinstance(event, ToolCallEnd)]
    assert isinstance(events[-1], StreamError)
    assert (events[-1].code, events[-1].status) == ("tool_call_parse_error", 502)
    calls = [part for part in collect(events).choices[0].parts if isinstance(part, ToolCallPart)]
    assert [call.complete for call in calls] == [False]


@pytest.mark.parametrize("dialect", WIRES)
def test_a_call_that_the_limit_cut_ends_with_the_limit(dialect: str) -> None:
    wire, _, cut = WIRES[dialect]
    events = every_cut(DIALECTS[dialect].reader, wire(HALF, cut))
    assert not next(event for event in events if isinstance(event, ToolCallEnd)).complete
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "length"


@pytest.mark.parametrize("dialect", WIRES)
@pytest.mark.parametrize("arguments", ["", " ", "{}", '{"a": "\\ud83d"}', '{"a": {"b": [1, null, true]}}\n'])
def test_whole_arguments_are_a_call_to_run(dialect: str, arguments: str) -> None:
    wire, finish, _ = WIRES[dialect]
    events = every_cut(DIALECTS[dialect].reader, wire(arguments, finish))
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "tool_calls"
    assert all(event.complete for event in events if isinstance(event, ToolCallEnd))


def test_a_custom_call_that_the_limit_cut_is_half_a_call() -> None:
    call = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    for finish, complete in (("length", False), ("tool_calls", True)):
        events = every_cut(
            DIALECTS["openai_chat"].reader,
            sse(chunk, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, b"[DONE]"),
        )
        assert [event.complete for event in events if isinstance(event, ToolCallEnd)] == [complete]
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "patch", "input": "*** Begin", "status": "incomplete"}
    body = {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [item]}
    response = collect(streamglot.reader("openai_responses").read_whole(body))
    assert [part.complete for part in response.choices[0].parts if isinstance(part, ToolCallPart)] == [False]
