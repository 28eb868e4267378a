"""Whole answers whose reasoning and calls stand in their ``extensions``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from split_checks import every_cut
from streamglot import collect, dialect
from streamglot.messages import ReasoningPart, Response, TextPart, ToolCallPart

REASONING = ["Let me think about this...", "First, I'll calculate 6 times 7...", "The result is 42."]
CALLS = [
    {"type": "start", "tool_call_id": "call_abc123", "tool_name": "calculate"},
    {"type": "args", "tool_call_id": "call_abc123", "delta": '{"expression":'},
    {"type": "args", "tool_call_id": "call_abc123", "delta": ' "6*7"}'},
    {"type": "end", "tool_call_id": "call_abc123"},
]
EXTENSIONS = {"reasoning_chunks": REASONING, "tool_call_chunks": CALLS}
FUNCTION = {"name": "calculate", "arguments": '{"expression": "6*7"}'}


def read(message: dict[str, Any], of_choice: Any = None, of_answer: Any = None, finish: str = "stop") -> Response:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "extensions": of_choice}
    body = {"id": "chatcmpl-123", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice]}
    return collect(every_cut(dialect("openai_chat").reader, json.dumps({**body, "extensions": of_answer}).encode()))


@pytest.mark.parametrize("place", ["answer", "choice", "both"])
def test_reasoning_and_calls_that_stand_only_there(place: str) -> None:
    inner, outer = (EXTENSIONS if place in (name, "both") else None for name in ("choice", "answer"))
    response = read({"content": "The answer is 42."}, inner, outer)
    reasoning, text, call = response.choices[0].parts
    assert isinstance(reasoning, ReasoningPart)
    assert isinstance(text, TextPart)
    assert isinstance(call, ToolCallPart)
    assert (reasoning.text, text.text) == ("".join(REASONING), "The answer is 42.")
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("call_abc123", "calculate", {"expression": "6*7"})
    assert (response.choices[0].stop_reason, response.error) == ("tool_calls", None)


@pytest.mark.parametrize(
    "given",
    [
        {"reasoning": "".join(REASONING)},
        {"reasoning_content": "".join(REASONING)},
        {"reasoning_details": [{"type": "reasoning.text", "text": "".join(REASONING)}]},
    ],
)
def test_what_stands_in_both_places_arrives_once(given: dict[str, Any]) -> None:
    called = {"tool_calls": [{"id": "call_abc123", "type": "function", "function": FUNCTION}]}
    response = read({"content": "42", **given, **called}, EXTENSIONS, EXTENSIONS, "tool_calls")
    assert [type(part) for part in response.choices[0].parts] == [ReasoningPart, TextPart, ToolCallPart]
    assert response.choices[0].parts[0].text == "".join(REASONING)  # type: ignore[union-attr]  # it is reasoning


def test_a_call_with_a_result_was_run_by_the_server() -> None:
    ran = {"tool_call_chunks": [*CALLS, {"type": "result", "tool_call_id": "call_abc123", "content": "42"}]}
    response = read({"content": "42"}, None, ran)
    assert [type(part) for part in response.choices[0].parts] == [TextPart]
    assert response.choices[0].stop_reason == "end"


@pytest.mark.parametrize("odd", [{}, {"reasoning_chunks": [1, None]}, {"tool_call_chunks": [3, {"type": "start"}]}, 7, "x"])
def test_extensions_of_other_forms_are_skipped(odd: Any) -> None:
    response = read({"content": "42"}, odd, odd)
    assert (response.choices[0].text, response.error) == ("42", None)
