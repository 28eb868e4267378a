"""Chat requests and responses, in both directions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamglot import RequestError, Unsupported, collect
from streamglot.dialects import dialect
from streamglot.dialects.common.abilities import Abilities
from streamglot.dialects.common.state import pack
from streamglot.stages import replay
from streamglot.upstream import Upstream
from streamglot.upstream.providers import abilities_of
from vocabulary import *

CHAT = dialect("openai_chat")


def parse(**body: Any) -> Request:
    return CHAT.parse_request({"model": "m", **body})


ABLE = Abilities(custom_tools=True, cache_control=True)
"""Parameters that some servers of this dialect accept in addition."""


def again(**body: Any) -> dict[str, Any]:
    """The body after a round trip through a Request, for a server that accepts everything of the dialect."""
    return CHAT.build_request(parse(**body), abilities=ABLE).body


def message(**body: Any) -> Message:
    return parse(messages=[body]).messages[0]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_message_of_one_text_is_parsed_like_one_with_more_fields(role: str) -> None:
    messages = [{"role": role, "content": "Hi"}, {"role": role, "content": "Hi", "name": None}, {"role": role, "content": ""}]
    first, second, empty = parse(messages=messages).messages
    assert first == second == Message(first.role, [TextPart("Hi")])
    assert (first.role, empty.parts) == (role, [])


def test_a_plain_request_comes_through_unchanged() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi", "name": "ann"},
            {"role": "assistant", "content": "Hello", "name": "bot"},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}},
            {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}},
            {"type": "web_search", "name": "s", "depth": 2},
        ],
        "tool_choice": "auto",
        "max_tokens": 9,
        "stop": ["a"],
        "temperature": 0.5,
        "n": 2,
        "seed": 3,
        "user": "u",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "description": "d", "schema": {}, "strict": True},
        },
        "reasoning_effort": "low",
        "unheard_of": {"a": 1},
    }
    built = CHAT.build_request(CHAT.parse_request(body), abilities=ABLE)
    assert built.body == body
    assert built.dropped == []


def test_request_fields_are_parsed() -> None:
    request = parse(max_completion_tokens=5, max_tokens=9, stop="x", prompt_cache_key="k", safety_identifier="s", stream=True)
    assert (request.max_tokens, request.stop, request.cache_key, request.user) == (5, ["x"], "k", "s")
    assert not request.include_usage
    assert parse().include_usage
    assert CHAT.build_request(request, max_tokens="max_completion_tokens").body["max_completion_tokens"] == 5
    assert CHAT.build_request(request).body["user"] == "s"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": [{"content": "x"}]}, r"messages\[0\].role is required and must be a string"),
        ({"messages": [{"role": "wizard"}]}, r"messages\[0\].role must be system or developer"),
        ({"messages": ["x"]}, r"messages\[0\] must be an object, not 'x'"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content must be a string or a list of parts, not 5"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"messages\[0\].content\[0\].text is required"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, r"tool_calls\[0\].function is required"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"stream": 1}, "stream must be true or false"),
        ({"stop": 5}, "stop must be a string or a list of strings"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].function is required"),
        ({"tool_choice": "maybe"}, "tool_choice must be auto, none, required"),
        ({"reasoning_effort": "huge"}, "reasoning_effort must be none or minimal"),
        ({"response_format": {"type": "xml"}}, r"response_format.type must be text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, r"response_format.json_schema is required"),
    ],
)
def test_bad_requests_name_the_field_and_the_value(body: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        parse(**body)
    with pytest.raises(RequestError, match="the body must be an object"):
        CHAT.parse_request([])  # type: ignore[arg-type]  # a client may send it


# --- messages


def test_media_in_both_directions() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "http://a", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}},
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
        {"type": "odd", "x": 1},
    ]
    user = message(role="user", content=parts)
    assert user.parts == [
        MediaPart("image/*", url="http://a", detail="low"),
        MediaPart("image/png", "AA=="),
        MediaPart("audio/mp3", "AA"),
        MediaPart("application/octet-stream", file_id="f1"),
        MediaPart("application/pdf", "AA", filename="a.pdf"),
        NativePart("openai_chat", {"type": "odd", "x": 1}),
    ]
    assert again(messages=[{"role": "user", "content": parts}])["messages"][0]["content"] == parts
    assert message(role="user", content=[{"type": "image_url", "image_url": "data:text/plain,a%20b"}]).parts == [
        MediaPart("text/plain", "YSBi")
    ]
    with pytest.raises(Unsupported, match="by its URL"):
        CHAT.build_request(Request(messages=[Message("user", [MediaPart("application/pdf", url="http://a")])]))


def test_calls_and_results() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    custom = {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "select"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call, custom]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "1"},
    ]
    request = parse(messages=turns)
    assert [part for turn in request.messages for part in turn.parts] == [
        ToolCallPart("a", "f", "{}"),
        ToolCallPart("b", "sql", "select", "custom"),
        ToolResultPart("a", [TextPart("sunny")]),
        ToolResultPart("b", [TextPart("1")]),
    ]
    assert [turn.role for turn in request.messages] == ["assistant", "tool"]
    assert again(messages=turns)["messages"] == turns


def test_calls_without_arguments_are_repaired() -> None:
    broken = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]}
    assert again(messages=[broken])["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"
    whole = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]}
    assert again(messages=[whole])["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"x":1}'


def test_the_old_functions() -> None:
    request = parse(
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
        messages=[
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "sunny"},
            {"role": "function", "name": "g", "content": "?"},
        ],
    )
    assert request.tools == [ToolSpec("f", parameters={"type": "object"})]
    assert request.tool_choice == ToolChoice("required", ["f"])
    assert request.messages[1].parts == [
        ToolResultPart("call_f", [TextPart("sunny")], name="f"),
        ToolResultPart("call_g", [TextPart("?")], name="g"),
    ]
    assert parse(function_call="auto").tool_choice == ToolChoice("auto")


def test_results_with_images_and_errors() -> None:
    results = [
        ToolResultPart("a", [TextPart("look"), MediaPart("image/png", "AA")]),
        ToolResultPart("b", [MediaPart("image/png", "BB")]),
        ToolResultPart("c", [TextPart("bad")], is_error=True),
        ToolResultPart("d", [TextPart("error: x")], is_error=True),
    ]
    built = CHAT.build_request(Request(messages=[Message("tool", [*results, TextPart("and now?")])])).body["messages"]
    assert [(turn["role"], turn["content"]) for turn in built[:4]] == [
        ("tool", "look"),
        ("tool", "(see the next message)"),
        ("tool", "Error: bad"),
        ("tool", "error: x"),
    ]
    assert [part["type"] for part in built[4]["content"]] == ["text", "image_url", "text", "image_url"]
    assert built[5] == {"role": "user", "content": "and now?"}


def test_refusals_audio_and_native_parts_of_an_assistant() -> None:
    turn = {
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
        "audio": {"id": "x"},
    }
    parts = message(**turn).parts
    assert parts == [TextPart("a"), RefusalPart("no"), NativePart("openai_chat", {"audio": {"id": "x"}})]
    assert again(messages=[turn])["messages"] == [{"role": "assistant", "content": "a", "refusal": "no", "audio": {"id": "x"}}]
    assert message(role="assistant", content="", refusal="no").parts == [RefusalPart("no")]
    assert again(messages=[{"role": "assistant", "content": ""}])["messages"][0]["content"] == ""
    user = Message("user", [TextPart("a", cache=""), RefusalPart("no")])
    built = CHAT.build_request(Request(messages=[user]), abilities=ABLE).body["messages"][0]["content"]
    assert built == [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "refusal", "refusal": "no"}]
    with pytest.raises(Unsupported, match="which only other has, cannot"):
        CHAT.build_request(Request(messages=[Message("user", [NativePart("other", {})])]))


# --- reasoning that returns to its provider


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_in_the_field_in_which_it_came(field: str) -> None:
    turn = {"role": "assistant", "content": "a", field: "hm"}
    assert message(**turn).parts[0] == ReasoningPart("hm", echo=Echo("openai_chat", {"field": field}))
    assert again(messages=[turn])["messages"] == [turn]


def test_details_are_returned_unmodified() -> None:
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}, {"type": "reasoning.encrypted", "data": "x"}]
    turn = {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_details": details}
    assert again(messages=[turn])["messages"] == [turn]
    without = {name: value for name, value in turn.items() if name != "reasoning"}
    assert again(messages=[without])["messages"] == [without]
    hidden = {"role": "assistant", "content": "a", "reasoning_details": [details[1], 5]}
    assert message(**hidden).parts[0] == ReasoningPart(
        "", redacted=True, echo=Echo("openai_chat", {"reasoning_details": [details[1]]})
    )


def test_state_of_another_provider_comes_back_from_its_packing() -> None:
    echo = Echo("other", {"signature": "s"})
    details = [
        {"type": "reasoning.text", "text": "hm", "signature": pack(echo)},
        {"type": "reasoning.encrypted", "data": pack(echo)},
    ]
    parts = message(role="assistant", content="a", reasoning_details=details).parts
    assert parts[:2] == [ReasoningPart("hm", echo=echo), ReasoningPart("", redacted=True, echo=echo)]
    only = message(role="assistant", reasoning_content="hm", reasoning_details=details[1:]).parts
    assert only[0] == ReasoningPart("hm", echo=Echo("openai_chat", {"field": "reasoning_content"}))
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"streamglot": pack(echo)}}
    assert message(role="assistant", tool_calls=[call]).parts == [ToolCallPart("a", "f", "{}", echo=echo)]
    assert "reasoning" not in str(
        CHAT.build_request(parse(messages=[{"role": "assistant", "reasoning_details": details[:1]}])).body
    )


def test_state_of_a_call_and_thinking_parts_go_back() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"k": 1}}
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "signature": "s"}
    turn = {"role": "assistant", "content": [thinking, {"type": "text", "text": "a"}], "tool_calls": [call]}
    assert again(messages=[turn])["messages"] == [turn]
    strange = ReasoningPart("x", echo=Echo("openai_chat", {}))
    server = ToolCallPart("s", "search", "{}", "server")
    built = CHAT.build_request(Request(messages=[Message("assistant", [strange, server])])).body["messages"]
    assert built == [{"role": "assistant", "content": ""}]


# --- tools, reasoning effort, output


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("required", ToolChoice("required")),
        ("none", ToolChoice("none")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", ["f"])),
        ({"type": "custom", "custom": {"name": "c"}}, ToolChoice("required", ["c"])),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            ToolChoice("auto", ["f"]),
        ),
    ],
)
def test_tool_choice(choice: Any, read: ToolChoice) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}]
    assert parse(tool_choice=choice).tool_choice == read
    assert again(tool_choice=choice, tools=tools)["tool_choice"] == choice


def test_other_words_for_tools() -> None:
    assert parse(tool_choice="any").tool_choice == ToolChoice("required")
    assert parse(tools=[{"type": "custom", "name": "c", "cache_control": {}}]).tools == [ToolSpec("c", kind="custom", cache="")]
    assert again(tools=[{"type": "function", "function": {"name": "f"}}])["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {},
    }
    assert again(tools=[{"type": "custom", "custom": {"name": "c", "description": "d"}}])["tools"][0]["custom"] == {
        "name": "c",
        "description": "d",
    }


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [
        (Reasoning(effort="high"), "high"),
        (Reasoning(budget_tokens=0), "none"),
        (Reasoning(budget_tokens=1024), "low"),
        (Reasoning(budget_tokens=9000), "medium"),
        (Reasoning(budget_tokens=30_000), "high"),
        (Reasoning(enabled=False, effort="high"), "none"),
        (Reasoning(enabled=True), "medium"),
        (Reasoning(), None),
    ],
)
def test_reasoning_as_effort(reasoning: Reasoning, effort: str | None) -> None:
    built = CHAT.build_request(Request(reasoning=reasoning))
    assert built.body.get("reasoning_effort") == effort
    assert built.dropped == (["reasoning.budget_tokens"] if reasoning.budget_tokens is not None else [])


def test_reasoning_as_an_object() -> None:
    request = parse(reasoning={"effort": "low", "max_tokens": 7, "enabled": True, "summary": "auto", "exclude": True})
    assert request.reasoning == Reasoning("low", 7, True, "auto")
    assert request.extra == {"reasoning": {"exclude": True}}
    assert parse(reasoning={"enabled": True}).reasoning == Reasoning(enabled=True)


def at_router(request: Request) -> tuple[dict[str, Any], list[str]]:
    """What reaches OpenRouter, whatever the upstream is called: the fields that speak of reasoning."""
    upstream = Upstream(name="mine", base_url="https://openrouter.ai/api/v1")
    built = CHAT.build_request(request, abilities=abilities_of(upstream), provider="mine")
    return {name: built.body[name] for name in ("reasoning", "reasoning_effort", "thinking") if name in built.body}, built.dropped


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"reasoning": {"max_tokens": 2000}}, {"max_tokens": 2000}),
        ({"reasoning": {"max_tokens": 2000, "exclude": True}}, {"max_tokens": 2000, "exclude": True}),
        ({"reasoning": {"effort": "high", "exclude": True}}, {"effort": "high", "exclude": True}),
        ({"reasoning": {"effort": "none"}}, {"effort": "none"}),
        ({"reasoning": {"enabled": True}}, {"enabled": True}),
        ({"reasoning": {"enabled": False}}, {"enabled": False}),
        ({"reasoning_effort": "low"}, {"effort": "low"}),
        ({"reasoning_effort": "low", "reasoning": {"exclude": True}}, {"effort": "low", "exclude": True}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"max_tokens": 2000}),
    ],
)
def test_a_router_gets_reasoning_as_one_object(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    assert at_router(parse(**asked)) == ({"reasoning": sent}, [])


def test_a_thinking_budget_reaches_a_router_as_tokens() -> None:
    messages = [{"role": "user", "content": "x"}]
    thinking = {"type": "enabled", "budget_tokens": 4096}
    asked = {"model": "m", "max_tokens": 9000, "messages": messages, "thinking": thinking}
    assert at_router(dialect("anthropic").parse_request(asked)) == ({"reasoning": {"max_tokens": 4096}}, [])
    both = parse(reasoning={"effort": "high", "max_tokens": 7})
    assert at_router(both) == ({"reasoning": {"max_tokens": 7}}, ["reasoning.effort"]), "it takes one of the two"
    assert at_router(parse()) == ({}, [])


def test_fields_of_the_object_take_the_others_along() -> None:
    """A client that uses the object's own fields gets them in one form from every server."""
    body = CHAT.build_request(parse(reasoning={"effort": "high", "exclude": True})).body
    assert body["reasoning"] == {"effort": "high", "exclude": True}
    assert "reasoning_effort" not in body
    assert CHAT.build_request(parse(reasoning={"effort": "high"})).body["reasoning_effort"] == "high"


def test_output_formats() -> None:
    assert parse(response_format={"type": "text"}).output == OutputFormat()
    assert again(response_format={"type": "json_object"})["response_format"] == {"type": "json_object"}
    built = CHAT.build_request(Request(output=OutputFormat("json_schema")))
    assert built.body["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}


# --- fields of one dialect


def test_fields_of_another_dialect_are_reported_or_refused() -> None:
    request = Request(dialect="other", extra={"a": 1, "b": 2})
    assert CHAT.build_request(request).dropped == ["a", "b"]
    request.essential = ["b"]
    with pytest.raises(Unsupported, match="cannot do 'b'"):
        CHAT.build_request(request)
    assert parse(web_search_options={}).essential == ["web_search_options"]
    with pytest.raises(Unsupported, match="previous_response_id"):
        CHAT.build_request(Request(previous_response_id="r"))


# --- responses


def test_a_response_is_read() -> None:
    body = {
        "id": "c1",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "reasoning_content": "hm"},
                "finish_reason": "stop",
            },
            {"index": 1, "message": {"content": None, "refusal": "no"}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    response = CHAT.parse_response(body)
    assert response.choices[0].parts == [
        ReasoningPart("hm", echo=Echo("openai_chat", {"field": "reasoning_content"})),
        TextPart("Hi"),
    ]
    assert response.choices[1].parts == [RefusalPart("no")]
    assert (response.usage.input_tokens, response.choices[0].stop_reason) == (1, "end")
    assert CHAT.parse_response({"error": {"message": "m", "code": 400}}).error == StreamError(
        "invalid_request", "m", retryable=False, status=400, detail={"message": "m", "code": 400}
    )


def test_a_response_is_written() -> None:
    echo = Echo("other", {"s": 1})
    own = {"type": "url_citation", "url_citation": {"url": "http://b"}}
    parts: list[Any] = [
        ReasoningPart("hm", echo=echo),
        ReasoningPart("", redacted=True, echo=echo),
        ReasoningPart("sum", summary=True),
        ReasoningPart("own", echo=Echo("openai_chat", {"reasoning_details": [{"type": "reasoning.text", "text": "own"}]})),
        TextPart("a", [Citation("http://a", "A", start=0, end=1), Citation(native=Echo("openai_chat", own)), Citation()]),
        TextPart("b"),
        ToolCallPart("x", "f", "{}", echo=echo),
        ToolCallPart("z", "f", "{}", echo=Echo("openai_chat", {"extra_content": {"k": 1}})),
        ToolCallPart("y", "sql", "select", "custom"),
        ToolCallPart("s", "search", "{}", "server"),
        MediaPart("audio/wav", "AA", id="au", transcript="he"),
        MediaPart("image/png", "BB"),
        MediaPart("video/mp4", "CC"),
        RefusalPart("no"),
    ]
    extras = [Extra("openai_chat", {"system_fingerprint": "fp"}), Extra("openai_chat", {"choice": {}}), Extra("other", {"a": 1})]
    response = Response("c1", "m", 7, [ResponseChoice(0, parts, "tool_calls")], TokenCounts(1, 2), extras=extras)
    response.extensions = {"reasoning_chunks": ["hm"], "tool_call_chunks": []}
    body = CHAT.build_response(response)
    message = body["choices"][0]["message"]
    assert message["content"] == "ab"
    assert message["refusal"] == "no"
    assert (message["reasoning_content"], "reasoning" in message) == ("hmsumown", False)
    assert [entry["type"] for entry in message["reasoning_details"]][:2] == ["reasoning.text", "reasoning.encrypted"]
    assert not any(entry.get("text") or entry.get("summary") for entry in message["reasoning_details"])
    message = CHAT.build_response(response, reasoning_field="all")["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "hmsumown"
    assert [entry["type"] for entry in message["reasoning_details"]] == [
        "reasoning.text",
        "reasoning.encrypted",
        "reasoning.summary",
        "reasoning.text",
        "reasoning.encrypted",
    ]
    place = {"url": "http://a", "title": "A", "start_index": 0, "end_index": 1}
    assert message["annotations"] == [{"type": "url_citation", "url_citation": place}, own]
    assert [call.get("extra_content") for call in message["tool_calls"]] == [{"streamglot": pack(echo)}, {"k": 1}, None]
    assert message["audio"]["transcript"] == "he"
    assert message["images"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,BB"}}]
    assert (body["system_fingerprint"], body["extensions"]["reasoning_chunks"]) == ("fp", ["hm"])
    assert body["usage"]["total_tokens"] == 3
    strict = CHAT.build_response(response, strict=True)
    assert set(strict) == {"id", "object", "created", "model", "choices", "usage"}
    assert "reasoning" not in str(strict)
    assert "extra_content" not in str(strict)


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}


def test_log_probabilities_of_a_whole_answer_come_through() -> None:
    content = {"content": [token("a"), token("b")], "refusal": None}
    refusal = {"content": None, "refusal": [token("no")]}
    message = {"role": "assistant", "content": "ab", "refusal": None}
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop", "logprobs": content},
            {"index": 1, "message": {**message, "content": None, "refusal": "no"}, "finish_reason": "stop", "logprobs": refusal},
            {"index": 2, "message": message, "finish_reason": "stop", "logprobs": None},
        ],
    }
    for strict in (False, True):
        built = CHAT.build_response(CHAT.parse_response(body), strict=strict)
        assert [choice["logprobs"] for choice in built["choices"]] == [content, refusal, None]


def test_log_probabilities_of_a_stream_are_joined_by_choice() -> None:
    reader = CHAT.reader()
    events = []
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        logprobs = {"content": [token(text)], "refusal": None}
        choice = {"index": index, "delta": {"content": text}, "logprobs": logprobs}
        events += reader.feed(b"data: " + msgspec.json.encode({"id": "c1", "choices": [choice]}) + b"\n\n")
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(2)]
    events += reader.feed(b"data: " + msgspec.json.encode({"id": "c1", "choices": ends}) + b"\n\ndata: [DONE]\n\n")
    response = collect([*events, *reader.close()])
    for known in (response, collect(replay(response))):
        found = CHAT.build_response(known)["choices"]
        assert [choice["logprobs"] for choice in found] == [
            {"content": [token("a"), token("b")], "refusal": None},
            {"content": [token("x"), token("y")], "refusal": None},
        ]


@pytest.mark.parametrize("extra", [{"choice": {"logprobs": -0.5}}, {"choice": {"logprobs": {"content": 5}}}, {"choice": 5}, {}])
def test_an_invalid_log_probability_is_none(extra: dict[str, Any]) -> None:
    own, other = Extra("openai_chat", extra), Extra("other", {"choice": {"logprobs": {"content": [token("a")]}}})
    response = Response("c1", "m", 7, [ResponseChoice(0, [TextPart("a")], "end")], extras=[own, other])
    assert CHAT.build_response(response)["choices"][0]["logprobs"] is None


def test_a_response_for_the_old_functions_and_one_without_an_end() -> None:
    response = Response("c1", "m", 7, [ResponseChoice(0, [ToolCallPart("a", "f", "{}")], "tool_calls"), ResponseChoice(1)])
    body = CHAT.build_response(response, functions=True)
    assert body["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert [choice["finish_reason"] for choice in body["choices"]] == ["function_call", None]


def test_a_response_with_an_error_keeps_the_partial_answer() -> None:
    error = StreamError("upstream_truncated", "cut")
    assert set(CHAT.build_response(Response(error=error))) == {"error"}
    partial = CHAT.build_response(Response(choices=[ResponseChoice(0, [TextPart("a")])], error=error))
    assert partial["choices"][0]["message"]["content"] == "a"
    assert partial["error"]["code"] == "upstream_truncated"


def test_a_response_with_hidden_reasoning_only() -> None:
    hidden = ReasoningPart("", redacted=True, echo=Echo("other", {"s": 1}))
    message = CHAT.build_response(Response(choices=[ResponseChoice(0, [hidden], "end")]))["choices"][0]["message"]
    assert "reasoning" not in message
    assert [entry["type"] for entry in message["reasoning_details"]] == ["reasoning.encrypted"]
