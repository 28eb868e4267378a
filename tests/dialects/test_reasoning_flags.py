"""The request flag ``thinking`` and the worker flag ``is_reasoning`` of chat servers, and ``extensions`` of whole answers."""

from __future__ import annotations

from typing import Any

import pytest

from split_checks import every_cut
from streamglot import DIALECTS, Echo, Response, collect, reader
from streamglot.messages import Part, Reasoning, ReasoningPart, ResponseChoice, TextPart

CHAT = DIALECTS["openai_chat"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, Reasoning(enabled=True)),
        (False, Reasoning(enabled=False)),
        ({"type": "enabled"}, Reasoning(enabled=True)),
        ({"type": "adaptive"}, Reasoning(enabled=True)),
        ({"type": "disabled"}, Reasoning(enabled=False)),
        ({"type": "enabled", "budget_tokens": 500}, Reasoning(budget_tokens=500, enabled=True)),
        ({"type": "enabled", "budget_tokens": "many"}, Reasoning(enabled=True)),
    ],
)
def test_the_flag_thinking_is_read_and_is_passed_on_unchanged(given: object, expected: Reasoning) -> None:
    request = CHAT.parse_request({"model": "m", "messages": [], "thinking": given})
    expected.native = Echo("openai_chat", {"thinking": given})
    assert (request.reasoning, request.extra) == (expected, {})
    built = CHAT.build_request(request)
    assert (built.body["thinking"], built.dropped) == (given, [])
    assert "reasoning_effort" not in built.body


def test_other_dialects_take_the_flag_in_their_own_words() -> None:
    request = CHAT.parse_request({"model": "m", "messages": [], "thinking": True})
    built = DIALECTS["ollama"].build_request(request)
    assert (built.body["think"], built.dropped) == (True, [])


@pytest.mark.parametrize("given", ["yes", 1, {"type": "sometimes"}, {}, None])
def test_another_form_of_thinking_stays_with_its_dialect(given: object) -> None:
    request = CHAT.parse_request({"model": "m", "messages": [], "thinking": given})
    assert (request.reasoning, request.extra) == (None, {"thinking": given})


def test_the_flag_stands_beside_the_other_fields() -> None:
    more = {"reasoning_effort": "high", "reasoning": {"summary": "auto", "max_tokens": 5}}
    request = CHAT.parse_request({"model": "m", "messages": [], "thinking": True, **more})
    native = Echo("openai_chat", {"thinking": True})
    assert request.reasoning == Reasoning("high", 5, True, "auto", native)
    body = CHAT.build_request(request).body
    assert (body["thinking"], body["reasoning_effort"]) == (True, "high")


def chunk(choice: dict[str, Any]) -> bytes:
    from msgspec.json import encode

    return b"data: " + encode({"id": "c", "model": "m", "choices": [{"index": 0, **choice}]}) + b"\n\n"


@pytest.mark.parametrize("place", ["delta", "choice"])
def test_tokens_that_the_server_marks_as_reasoning_are_reasoning(place: str) -> None:
    def token(text: str, flag: bool | None) -> bytes:
        flags = {} if flag is None else {"is_reasoning": flag}
        delta = {"content": text, **(flags if place == "delta" else {})}
        return chunk({"delta": delta, **(flags if place == "choice" else {})})

    body = token("Let me ", True) + token("see.", True) + token("It is ", False) + token("high.", None)
    body += chunk({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n"
    expected: list[Part] = [ReasoningPart("Let me see."), TextPart("It is high.")]
    assert collect(every_cut(lambda: reader("openai_chat"), body)).choices[0].parts == expected


@pytest.mark.parametrize("dialect", sorted(name for name, entry in DIALECTS.items() if entry.has_response and entry.has_writer))
def test_a_whole_answer_has_its_extensions_unless_it_is_strict(dialect: str) -> None:
    response = Response("r", "m", 7, [ResponseChoice(0, [TextPart("a")], "end")], extensions={"reasoning_chunks": ["hm"]})
    build = DIALECTS[dialect].build_response
    assert build(response)["extensions"] == {"reasoning_chunks": ["hm"]}
    assert "extensions" not in build(response, strict=True)
