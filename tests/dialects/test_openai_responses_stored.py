"""Stored responses: the request fields that they repeat, and their input items."""

from __future__ import annotations

from typing import Any

from streamglot.dialects import DIALECTS
from vocabulary import *

STORED = DIALECTS["openai_responses"]


def user(text: str) -> Message:
    return Message("user", [TextPart(text)])


def test_the_response_repeats_the_request_without_its_input() -> None:
    request = Request(
        model="m",
        messages=[Message("system", [TextPart("Be kind.")]), user("Hi")],
        tools=[ToolSpec("weather", parameters={"type": "object"})],
        max_tokens=9,
        output=OutputFormat("json_object"),
        metadata={"a": "b"},
    )
    repeated: dict[str, Any] = STORED.repeated_fields(request, True)
    assert (repeated["instructions"], repeated["max_output_tokens"], repeated["metadata"]) == ("Be kind.", 9, {"a": "b"})
    assert repeated["tools"][0]["name"] == "weather"
    assert repeated["text"]["format"] == {"type": "json_object"}
    assert not {"model", "input"} & set(repeated)
    assert "instructions" not in STORED.repeated_fields(Request(messages=[user("Hi")]), False)
    assert "instructions" not in STORED.repeated_fields(Request(), False)


def test_a_system_message_of_the_input_is_not_an_instruction() -> None:
    request = Request(messages=[Message("system", [TextPart("Be kind.")]), user("Hi")])
    assert "instructions" not in STORED.repeated_fields(request, False)
    assert [item["role"] for item in STORED.input_items(request, "resp_1", False)] == ["system", "user"]
    assert [item["role"] for item in STORED.input_items(request, "resp_1", True)] == ["user"]


def test_items_have_ids_that_stay_the_same() -> None:
    calls = [ToolCallPart("c1", "weather", '{"city":"Rome"}'), ToolCallPart("c2", "run", "ls", kind="custom")]
    results = [ToolResultPart("c1", [TextPart("rain")]), ToolResultPart("c2", [TextPart("files")], kind="custom")]
    request = Request(
        messages=[
            Message("system", [TextPart("Be kind."), TextPart("And brief.")]),
            Message("user", [TextPart("Look"), MediaPart("image", url="http://x/y.png"), NativePart("anthropic", {"type": "x"})]),
            Message("assistant", [TextPart("I will."), *calls]),
            Message("tool", [*results]),
            user("Thanks"),
        ]
    )
    items: list[dict[str, Any]] = STORED.input_items(request, "resp_1", False)
    kinds = [item["type"] for item in items]
    assert kinds == [
        *("message", "message", "message", "function_call", "custom_tool_call"),
        *("function_call_output", "custom_tool_call_output", "message"),
    ]
    assert [item["role"] for item in items if item["type"] == "message"] == ["system", "user", "assistant", "user"]
    assert [item["output"] for item in items[5:7]] == ["rain", "files"]
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    assert STORED.input_items(request, "resp_1", False) == items
    assert len(items[1]["content"]) == 2
