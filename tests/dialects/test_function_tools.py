"""What the wires share that follow chat completions: tools, choices, calls and their arguments."""

from __future__ import annotations

import pytest

import streamglot
from streamglot import RequestError
from streamglot.dialects import dialect
from streamglot.dialects.common.function_tools import arguments_object, arguments_text, call_arguments
from streamglot.events import Echo, ReasoningDelta, ReasoningEnd, ReasoningStart, StreamEnd, StreamStart
from streamglot.json_types import JsonObject, JsonValue
from streamglot.messages import Response, ResponseChoice, ToolCallPart, ToolChoice

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "entry", [1, "f", {}, {"type": "function", "function": {}}, {"type": "function", "function": {"name": None}}]
)
def test_an_allowed_tool_without_a_name_is_refused(entry: JsonValue) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [entry]}}
    with pytest.raises(RequestError, match="tool_choice must be auto, none, required, a named tool or allowed_tools"):
        dialect("openai_chat").parse_request({"model": "m", "messages": MESSAGES, "tool_choice": choice})


@pytest.mark.parametrize("name", ["agui", "vercel_ui"])
@pytest.mark.parametrize("choice", [{"type": "tool", "toolName": "f"}, {"type": "function", "function": {"name": "f"}}])
def test_interfaces_name_a_tool_in_either_form(name: str, choice: JsonObject) -> None:
    bodies: dict[str, JsonObject] = {
        "agui": {"threadId": "t", "runId": "r", "messages": [], "forwardedProps": {"toolChoice": choice}},
        "vercel_ui": {"messages": [], "toolChoice": choice},
    }
    assert dialect(name).parse_request(bodies[name]).tool_choice == ToolChoice("required", ["f"])


@pytest.mark.parametrize("name", ["openai_chat", "ollama", "cohere"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_a_missing_function_is_named(name: str, fields: JsonObject, param: str) -> None:
    with pytest.raises(RequestError, match="function is required") as caught:
        dialect(name).parse_request({"model": "m", **fields})
    assert caught.value.detail == {"param": param}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(None, "{}"), ("", "{}"), (" \n", "{}"), ({"a": 1}, '{"a":1}'), ('{"a": 1.50}', '{"a": 1.50}'), ([], "{}")],
)
def test_arguments_as_text(arguments: JsonValue, text: str) -> None:
    assert arguments_text(arguments) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {"input": [1]}),
        ("null", {"input": None}),
        ("{half", {"input": "{half"}),
    ],
)
def test_arguments_as_an_object(text: str, value: JsonObject) -> None:
    assert arguments_object(text) == value


@pytest.mark.parametrize("name", ["bedrock_converse", "anthropic", "ollama"])
def test_the_free_text_of_a_custom_call_stays_text(name: str) -> None:
    call = ToolCallPart("a", "f", '{"n": 1.50}', "custom")
    assert call_arguments(call) == {"input": '{"n": 1.50}'}
    body = dialect(name).build_response(Response(choices=[ResponseChoice(0, [call], "tool_calls")]))
    assert r'{"input":"{\"n\": 1.50}"}' in streamglot.dialects.common.writer.encode(body).decode()


def test_each_thought_of_one_read_is_signed_on_its_own_part() -> None:
    def thought(text: str, signature: str) -> list[streamglot.Event]:
        return [ReasoningStart(), ReasoningDelta(text), ReasoningEnd(Echo("gemini", {"thoughtSignature": signature}))]

    events = [StreamStart("r", "m", 1), *thought("one", "UzE="), *thought("two", "UzI="), StreamEnd("end")]
    written = streamglot.writer("gemini").feed(events).decode()
    assert '{"text":"one","thought":true,"thoughtSignature":"UzE="}' in written
    assert '{"text":"two","thought":true,"thoughtSignature":"UzI="}' in written
