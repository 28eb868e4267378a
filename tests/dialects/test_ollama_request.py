"""Requests and responses of /api/chat and /api/generate, in both directions."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

from response_server import serve_response
from streamglot import RequestError, Unsupported, dialect
from streamglot.dialects import DIALECTS
from streamglot.dialects.ollama.request import parse
from streamglot.dialects.ollama.wire import arguments_line
from streamglot.dialects.ollama.write import build as build_response
from streamglot.messages import Part
from vocabulary import *

parse_response = DIALECTS["ollama"].parse_response

build = DIALECTS["ollama"].build_request
HEAD = {"model": "m", "created_at": "2026-02-03T04:05:06.789Z"}
START = StreamStart("", "m", 1770091506)
THOUGHT = Echo("ollama", {"field": "thinking"})
PNG = "iVBORw0KGgo="
COUNTS = {
    "total_duration": 9,
    "load_duration": 1,
    "prompt_eval_count": 3,
    "prompt_eval_duration": 2,
    "eval_count": 4,
    "eval_duration": 5,
}
TIMES = {name: value for name, value in COUNTS.items() if "duration" in name}


RESPONSE = Response("r1", "m", 9, [ResponseChoice(0, [TextPart("Hi\n"), ToolCallPart("call_a", "f", '{"a":1e2}')], "tool_calls")])

# --- responses


def test_a_response_survives_a_round_trip() -> None:
    body = {
        **HEAD,
        "created_at": "1970-01-01T00:00:09Z",
        "message": {
            "role": "assistant",
            "content": "Hi",
            "thinking": "hm",
            "tool_calls": [{"id": "call_a", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}],
        },
        "done": True,
        "done_reason": "stop",
        "logprobs": [{"token": "Hi"}],
        **COUNTS,
    }
    response = parse_response(body, provider="here")
    assert response.choices[0].parts == [
        ReasoningPart("hm", echo=Echo("ollama@here", {"field": "thinking"})),
        TextPart("Hi"),
        ToolCallPart("call_a", "f", '{"a":1}'),
    ]
    assert response.usage == TokenCounts(3, 4, raw=COUNTS)
    assert build_response(response) == body
    assert dialect("ollama").parse_response(body).choices[0].stop_reason == "tool_calls"


def test_a_generate_response_survives_a_round_trip() -> None:
    body = {
        "model": "m", "created_at": "1970-01-01T00:00:09Z", "response": "Hi", "thinking": "hm", "image": PNG, "done": True,
        "done_reason": "stop", "context": [1],
    }  # fmt: skip
    assert build_response(parse_response(body), generate=True) == body


def test_responses_that_are_invalid() -> None:
    assert parse_response({"error": "no"}).error is not None
    assert parse_response({"message": {"content": "Hal"}, "done": False}).error is not None
    broken = parse_response({"models": []})
    assert broken.error is not None
    assert build_response(broken) == {"error": broken.error.message}
    assert build_response(Response(model="m"))["message"] == {"role": "assistant", "content": ""}


def test_a_response_of_other_parts() -> None:
    parts: list[Part] = [
        RefusalPart("no"),
        ToolCallPart("c", "sh", "ls", "custom"),
        ToolCallPart("d", "s", "{}", "server"),
        MediaPart("audio/wav", "x"),
    ]
    response = Response(choices=[ResponseChoice(0, parts, "tool_calls")], extras=[Extra("other", {"a": 1})], extensions={"x": []})
    body = build_response(response)
    assert body["message"]["tool_calls"] == [{"id": "c", "function": {"index": 0, "name": "sh", "arguments": {"input": "ls"}}}]
    assert (body["message"]["content"], body["extensions"]) == ("no", {"x": []})
    assert "extensions" not in build_response(response, strict=True, generate=True)


# --- requests

CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Look", "images": [PNG]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "done", "tool_call_id": "call_1", "tool_name": "f"},
    ],
    "stream": False,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "think": "high",
    "format": {"type": "object"},
    "logprobs": True,
    "top_logprobs": 2,
    "options": {
        "num_predict": 5, "stop": ["x"], "temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7,
        "repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3, "num_ctx": 2048,
    },
    "keep_alive": "5m",
}  # fmt: skip


def test_a_chat_request_survives_a_round_trip() -> None:
    request = parse(CHAT)
    assert request.messages[1].parts == [TextPart("Look"), MediaPart("image/png", PNG)]
    assert request.messages[3].parts == [ToolResultPart("call_1", [TextPart("done")], name="f")]
    assert (request.max_tokens, request.stop, request.temperature, request.repetition_penalty) == (5, ["x"], 0.0, 1.1)
    assert request.reasoning == Reasoning(effort="high")
    assert request.output == OutputFormat("json_schema", schema={"type": "object"})
    assert request.extra == {"keep_alive": "5m", "options": {"num_ctx": 2048}}
    built = build(request)
    assert built.body == CHAT
    assert built.dropped == []


def test_a_generate_request_survives_a_round_trip() -> None:
    body = {
        "model": "m",
        "prompt": "2+2?",
        "system": "Be brief.",
        "images": [PNG],
        "suffix": ".",
        "stream": True,
        "format": "json",
    }
    request = parse(body)
    assert request.messages == [
        Message("system", [TextPart("Be brief.")]),
        Message("user", [TextPart("2+2?"), MediaPart("image/png", PNG)]),
    ]
    assert request.essential == ["suffix"]
    assert build(request, generate=True).body == body
    assert build(parse({"model": "m", "prompt": "x"}), generate=True).body == {"model": "m", "prompt": "x", "stream": True}


def test_streaming_is_the_default_and_no_prompt_loads_the_model() -> None:
    request = parse({"model": "m", "options": {}, "format": "", "think": None})
    assert (request.stream, request.messages, request.extra) == (True, [], {})


def test_results_find_their_calls_by_name_and_by_order() -> None:
    calls = [
        {"function": {"name": name, "arguments": arguments}} for name, arguments in (("f", None), ("g", '{"a":1}'), ("h", " "))
    ]
    messages = [
        {"role": "Assistant", "tool_calls": calls},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
        {"role": "tool", "content": "of h", "tool_call_id": "call_3"},
        {"role": "tool", "content": "of nobody", "name": "z"},
        {"role": "tool", "content": "of nobody", "tool_call_id": "q"},
        {"role": "tool", "content": "of nobody"},
    ]
    assistant, results = parse({"messages": messages}).messages
    assert [(part.call_id, part.name, part.arguments) for part in assistant.parts if isinstance(part, ToolCallPart)] == [
        ("call_1", "f", "{}"),
        ("call_2", "g", '{"a":1}'),
        ("call_3", "h", "{}"),
    ]
    assert [(part.call_id, part.name, part.text) for part in results.parts if isinstance(part, ToolResultPart)] == [
        ("call_2", "g", "of g"),
        ("call_1", "f", "of f"),
        ("call_3", "h", "of h"),
        ("call_z", "z", "of nobody"),
        ("q", "", "of nobody"),
        ("call_3", "", "of nobody"),
    ]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"messages": [{"role": "boss", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"think": "hard"}, "think"),
        ({"format": "xml"}, "format"),
        ({"options": {"num_predict": "x"}}, "options.num_predict"),
    ],
)
def test_the_error_names_the_fault_of_a_request(body: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert where in caught.value.message


def test_an_unlimited_answer_has_no_token_limit() -> None:
    request = parse({"prompt": "x", "options": {"num_predict": -1}})
    assert request.max_tokens is None
    assert build(request).body["options"] == {"num_predict": -1}


@pytest.mark.parametrize(
    ("reasoning", "levels", "think", "dropped"),
    [
        (Reasoning(enabled=True), True, True, []),
        (Reasoning(enabled=False, effort="high"), True, False, []),
        (Reasoning(effort="none"), True, False, []),
        (Reasoning(effort="minimal"), True, "low", []),
        (Reasoning(effort="xhigh"), True, "high", []),
        (Reasoning(effort="high"), False, True, []),
        (Reasoning(budget_tokens=0), True, False, ["reasoning.budget_tokens"]),
        (Reasoning(budget_tokens=9, summary="auto"), True, True, ["reasoning.budget_tokens", "reasoning.summary"]),
        (Reasoning(), True, None, []),
    ],
)
def test_think(reasoning: Reasoning, levels: bool, think: Any, dropped: list[str]) -> None:
    built = build(Request(reasoning=reasoning), think_levels=levels)
    assert built.body.get("think") == think
    assert built.dropped == dropped
    assert parse({"think": False}).reasoning == Reasoning(enabled=False)


def test_building_from_another_dialect() -> None:
    request = Request(
        model="m",
        messages=[
            Message("developer", [TextPart("Rules", cache="")], name="boss"),
            Message("user", [TextPart("a"), *[MediaPart("image/png", PNG, detail="low")] * 2]),
            Message(
                "assistant",
                [
                    ReasoningPart("mine", echo=THOUGHT),
                    ReasoningPart("not mine", echo=Echo("other", {})),
                    RefusalPart("no"),
                    ToolCallPart("s", "search", "{}", "server"),
                    ToolCallPart("c", "sh", "ls", "custom"),
                    ToolCallPart("d", "f", "not json"),
                ],
            ),
            Message("tool", [
                ToolResultPart("c", [TextPart("ok"), MediaPart("image/png", PNG)], is_error=True),
                ToolResultPart("d", [MediaPart("image/png", PNG)]),
                ToolResultPart("e", [TextPart("Error: no")], is_error=True),
                TextPart("and?"),
            ]),
        ],
        tools=[ToolSpec("f", strict=True, cache="5m")],
        tool_choice=ToolChoice("auto"),
        output=OutputFormat("json_object"),
        user="u",
        dialect="other",
        extra={"options": {"odd": 1}},
    )  # fmt: skip
    built = build(request)
    assert built.body["messages"] == [
        {"role": "system", "content": "Rules"},
        {"role": "user", "content": "a", "images": [PNG, PNG]},
        {
            "role": "assistant",
            "content": "no",
            "thinking": "mine",
            "tool_calls": [
                {"id": "c", "function": {"name": "sh", "arguments": {"input": "ls"}}},
                {"id": "d", "function": {"name": "f", "arguments": {"input": "not json"}}},
            ],
        },
        {"role": "tool", "content": "Error: ok", "tool_call_id": "c", "tool_name": "sh"},
        {"role": "tool", "content": "(see the next message)", "tool_call_id": "d", "tool_name": "f"},
        {"role": "tool", "content": "Error: no", "tool_call_id": "e"},
        {"role": "user", "content": "The tool call c returned:The tool call d returned:", "images": [PNG, PNG]},
        {"role": "user", "content": "and?"},
    ]
    assert built.body["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    ]
    assert built.body["format"] == "json"
    assert "options" not in built.body
    dropped = [
        "cache_control",
        "messages.reasoning",
        "messages.search",
        "messages.name",
        "image.detail",
        "tools.strict",
        "user",
        "options",
    ]
    assert built.dropped == dropped


def test_no_tools_where_none_may_be_called_and_own_tools_as_they_came() -> None:
    tools = [ToolSpec("f")]
    assert "tools" not in build(Request(tools=tools, tool_choice=ToolChoice("none"))).body
    body = {"messages": [], "tools": [{"type": "browser", "depth": 2}]}
    assert build(parse(body)).body["tools"] == body["tools"]
    assert build(Request(output=OutputFormat("text"))).body == {"model": "", "messages": [], "stream": False}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(messages=[Message("user", [MediaPart("image/png", url="https://a/b.png")])]), "by its URL"),
        (Request(messages=[Message("user", [MediaPart("image/png", file_id="f")])]), "by its URL"),
        (Request(messages=[Message("user", [MediaPart("audio/wav", "x")])]), "audio/wav"),
        (Request(messages=[Message("user", [NativePart("other", {})])]), "other"),
        (Request(messages=[Message("user", [ToolCallPart("a", "f", "{}")])]), "the type 'tool_call' cannot"),
        (Request(tools=[ToolSpec("f")], tool_choice=ToolChoice("required")), "forced to call a tool"),
        (Request(tools=[ToolSpec("f")], tool_choice=ToolChoice("auto", ["f"])), "forced to call a tool"),
        (Request(n=2), "'n'"),
        (Request(logit_bias={"1": 1.0}), "logit_bias"),
    ],
)
def test_unsupported_requests_are_refused(request_: Request, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        build(request_)


def test_generate_takes_one_prompt_only() -> None:
    user = Message("user", [TextPart("a")])
    for request in (Request(messages=[user, Message("assistant", [])]), Request(messages=[user], tools=[ToolSpec("f")])):
        with pytest.raises(Unsupported, match="api/chat"):
            build(request, generate=True)


def test_a_plain_answer_in_the_history() -> None:
    message = {"role": "assistant", "content": "Hi"}
    assert build(parse({"messages": [message]})).body["messages"] == [message]


def test_an_image_as_a_data_address() -> None:
    request = parse({"prompt": "x", "images": ["data:image/webp;base64,UklGRg=="]})
    assert request.messages[0].parts[1] == MediaPart("image/webp", "UklGRg==")


def test_arguments_line_keeps_numbers() -> None:
    assert arguments_line('{"a" : 12345678901234567890123 }') == b'{"a":12345678901234567890123}'


def test_the_client_reads_a_complete_response() -> None:
    for generate in (False, True):
        body = json.dumps(build_response(RESPONSE, generate=generate)).encode()
        with serve_response(body, "application/json") as address:
            client = ollama.Client(host=address)
            if generate:
                assert client.generate(model="m", prompt="q").response == "Hi\n"
            else:
                answer = client.chat(model="m", messages=[])
                assert answer.message.tool_calls is not None
                assert answer.message.tool_calls[0].function.arguments == {"a": 100}
