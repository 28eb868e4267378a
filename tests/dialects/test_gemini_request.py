"""generateContent requests, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from streamglot import RequestError, Unsupported
from streamglot.dialects import DIALECTS
from streamglot.dialects.gemini.parts import read_signature, sign
from streamglot.dialects.gemini.read import GeminiReader
from streamglot.dialects.gemini.request import parse
from streamglot.dialects.gemini.wire import json_schema
from streamglot.messages import Part
from vocabulary import *

build = DIALECTS["gemini"].build_request
FOREIGN = Echo("elsewhere", {"signature": "~ä"})
HOW = 'Give the whole input as one string in "input".'


def own(signature: str, **place: Any) -> Echo:
    return Echo("gemini", {"thoughtSignature": signature, **place})


def messages(*contents: dict[str, Any]) -> list[Message]:
    return parse({"contents": list(contents)}).messages


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def test_a_whole_request_in_both_directions() -> None:
    body: dict[str, Any] = {
        "contents": [
            user({"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}),
            model(
                {"text": "hm", "thought": True, "thoughtSignature": "UzE="},
                {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}},
            ),
            user({"functionResponse": {"id": "c", "name": "f", "response": {"output": "x"}}}),
        ],
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object"}, "behavior": "B"}
                ]
            },
            {"googleSearch": {}},
        ],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"], "streamFunctionCallArguments": True},
            "retrievalConfig": {"languageCode": "en"},
        },
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 40,
            "maxOutputTokens": 100,
            "stopSequences": ["X"],
            "candidateCount": 2,
            "seed": 7,
            "presencePenalty": 0.1,
            "frequencyPenalty": 0.2,
            "responseLogprobs": True,
            "logprobs": 3,
            "responseModalities": ["TEXT", "IMAGE"],
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 1000},
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "properties": {"a_b": {"type": "string"}}},
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
            "speechConfig": {"voiceConfig": {}},
        },
        "safetySettings": [{"category": "C", "threshold": "T"}],
        "cachedContent": "cachedContents/1",
        "labels": {"my_key": "v"},
    }
    request = parse(body, model="models/gemini-2.5-pro", stream=True)
    assert (request.model, request.stream, request.include_usage) == ("gemini-2.5-pro", True, False)
    assert request.modalities == ["text", "image"]
    assert request.essential == ["cachedContent", "generationConfig.speechConfig"]
    assert request.extra["labels"] == {"my_key": "v"}
    assert build(request).body == body
    assert build(request).dropped == []


def test_both_casings_and_short_forms() -> None:
    body = {
        "model": "models/m",
        "system_instruction": "be kind",
        "contents": "hi",
        "tools": [
            {
                "function_declarations": [
                    {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a_b": {"type": "STRING"}}}}
                ]
            }
        ],
        "generation_config": {
            "max_output_tokens": 5.0,
            "response_mime_type": "application/json",
            "response_schema": {"type": "STRING"},
        },
        "tool_config": {"function_calling_config": {"mode": "none"}},
    }
    request = parse(body)
    assert request.model == "m"
    assert request.messages == [Message("system", [TextPart("be kind")]), Message("user", [TextPart("hi")])]
    assert request.tools == [ToolSpec("f", parameters={"type": "object", "properties": {"a_b": {"type": "string"}}})]
    assert request.max_tokens == 5
    assert request.output == OutputFormat("json_schema", schema={"type": "string"})
    assert request.tool_choice == ToolChoice("none")
    assert parse({"contents": {"parts": [{"text": "a"}]}}).messages == [Message("user", [TextPart("a")])]
    snake = {"parts": [{"function_call": {"name": "f", "args": {"a_b": 1}}, "thought_signature": "UzE="}], "role": "model"}
    assert messages(snake)[0].parts == [ToolCallPart("call_1", "f", '{"a_b":1}', echo=own("UzE="))]


# --- history


def test_the_chunks_that_a_client_kept_are_one_message_again() -> None:
    assert messages(
        user({"text": "q"}),
        model({"text": "h", "thought": True}),
        model({"text": "m", "thought": True}),
        model({"text": "", "thought": True, "thoughtSignature": "UzE="}),
        model({"text": "a"}),
        model({"text": "b"}),
        model({"text": ""}),
        model({"text": "c"}, {"text": "d"}),
        model({"text": "", "thoughtSignature": "UzI="}),
        model({"text": "e", "thoughtSignature": "UzM="}),
        model({"text": "f"}),
    ) == [
        Message("user", [TextPart("q")]),
        Message(
            "assistant",
            [
                ReasoningPart("hm", summary=True, echo=own("UzE=", offset=2)),
                TextPart("abc"),
                TextPart("d", echo=own("UzI=", offset=1)),
                TextPart("e", echo=own("UzM=")),
                TextPart("f"),
            ],
        ),
    ]
    assert messages(model({"text": ""}), user({}), user({"text": "q"})) == [Message("user", [TextPart("q")])]


def test_signatures_of_others_come_back_to_them() -> None:
    packed = sign(FOREIGN)
    assert messages(model({"text": "a"}, {"text": "", "thoughtSignature": packed.replace("+", "-").rstrip("=")}))[0].parts == [
        TextPart("a", echo=FOREIGN)
    ]
    assert read_signature("not base64 at all!") == own("not base64 at all!")
    assert read_signature("a") == own("a")
    assert read_signature("c2dsb3QxLm9vcHM=") == Echo("streamglot", {"unreadable": True})
    assert read_signature("AQID-_8") == own("AQID+/8")


def test_signatures_without_a_text() -> None:
    assert messages(
        model(
            {"thoughtSignature": "UzE="},
            {"text": "", "thought": True, "thoughtSignature": "UzI="},
            {"text": "hm", "thought": True},
            {"text": "", "thoughtSignature": "UzM="},
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "UzQ="},
        )
    )[0].parts == [
        ReasoningPart("", redacted=True, echo=own("UzE=", thought=False)),
        ReasoningPart("", redacted=True, echo=own("UzI=")),
        ReasoningPart("hm", summary=True, echo=own("UzM=", offset=2, thought=False)),
        ReasoningPart("", redacted=True, echo=own("UzQ=", next=True)),
        MediaPart("image/png", "QUJD"),
    ]


def test_history_goes_back_as_it_came() -> None:
    contents = [
        model({"text": "a"}, {"text": "", "thoughtSignature": "UzE="}, {"text": "b"}),
        user({"text": "q"}),
        model(
            {"text": "hm", "thought": True}, {"text": "", "thoughtSignature": "UzM="}, {"thoughtSignature": "UzM=", "text": ""}
        ),
        user({"text": "q"}),
        model({"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "UzQ="}, {"newKind": 1}),
    ]
    assert build(Request(messages=messages(*contents))).body["contents"] == contents


def test_calls_and_results_are_matched_by_id_or_by_name_and_order() -> None:
    def result(name: str, **fields: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": name, **fields}}

    parsed = messages(
        model(
            {"functionCall": {"name": "f"}},
            {"functionCall": {"name": "f", "args": {"n": 2}}},
            {"functionCall": {"name": "g", "id": "call_2"}},
            {"functionCall": {"name": "g", "id": "call_9"}},
        ),
        user(
            result("f", response={"error": "bad"}),
            {"text": "and"},
            result("g", id="call_9", response={"a": 1, "b": 2}),
            result("f", response={"result": [1]}, parts=[{"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]),
            result("g"),
            result("h"),
        ),
        {"role": "function", "parts": [result("k", id="x", response={"output": {"y": 1}}), {"text": "z"}]},
    )
    assert [part.call_id for part in parsed[0].parts if isinstance(part, ToolCallPart)] == [
        "call_1",
        "call_3",
        "call_2",
        "call_9",
    ]
    assert [message.role for message in parsed[1:]] == ["tool", "user", "tool", "tool", "user"]
    assert parsed[1].parts == [ToolResultPart("call_1", [TextPart("bad")], True, "f")]
    assert parsed[3].parts == [
        ToolResultPart("call_9", [TextPart('{"a":1,"b":2}')], name="g"),
        ToolResultPart("call_3", [TextPart("[1]"), MediaPart("image/png", "QUJD")], name="f"),
        ToolResultPart("call_2", [TextPart("{}")], name="g"),
        ToolResultPart("call_h", [TextPart("{}")], name="h"),
    ]
    assert parsed[4].parts == [ToolResultPart("x", [TextPart('{"y":1}')], name="k")]


def test_calls_that_the_provider_ran_are_returned_unchanged() -> None:
    contents = [
        model(
            {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "UzE="},
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}},
            {"toolCall": {"id": "s", "toolType": "T", "args": {"q": 1}}},
            {"toolResponse": {"id": "s", "toolType": "T", "response": {"r": 1}}},
        )
    ]
    parts = messages(*contents)[0].parts
    assert [(part.call_id, part.kind) for part in parts if isinstance(part, (ToolCallPart, ToolResultPart))] == [
        ("call_1", "server"),
        ("call_1", "server"),
        ("s", "server"),
        ("s", "server"),
    ]
    assert [part.is_error for part in parts if isinstance(part, ToolResultPart)] == [True, False]
    assert build(Request(messages=messages(*contents)), provider="vertex").body["contents"] == contents
    elsewhere: list[Part] = [
        ToolCallPart("s", "search", "{}", "server", native=FOREIGN),
        ToolResultPart("s", [], native=FOREIGN),
        ToolCallPart("t", "search", "{}", "server"),
        ToolResultPart("t", [], kind="server"),
    ]
    assert build(Request(messages=[Message("assistant", elsewhere)])).body["contents"] == []


def test_media_of_requests() -> None:
    parts: list[dict[str, Any]] = [
        {
            "inlineData": {"mimeType": "image/png", "data": "QU-_", "displayName": "n"},
            "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"},
        },
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://a", "displayName": "v"}, "mediaResolution": 5},
    ]
    assert messages(user(*parts))[0].parts == [
        MediaPart("image/png", "QU+/", filename="n", detail="low"),
        MediaPart("video/mp4", url="gs://a", filename="v"),
    ]
    media: list[Part] = [
        MediaPart("image/*", "/9j/4AAQ", detail="high"),
        MediaPart("image/*", "AAAA"),
        MediaPart("", "AAAA"),
        MediaPart("image/*", url="https://x/y.png", detail="auto"),
        MediaPart("application/pdf", file_id="https://host/files/1"),
    ]
    assert build(Request(messages=[Message("user", media)])).body["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/jpeg", "data": "/9j/4AAQ"}, "mediaResolution": {"level": "MEDIA_RESOLUTION_HIGH"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"inlineData": {"mimeType": "application/octet-stream", "data": "AAAA"}},
        {"fileData": {"fileUri": "https://x/y.png"}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://host/files/1"}},
    ]
    with pytest.raises(Unsupported, match="file-1"):
        build(Request(messages=[Message("user", [MediaPart(file_id="file-1")])]))


def test_building_a_conversation_of_others() -> None:
    request = Request(
        "gemini-3-pro",
        [
            Message("system", [TextPart("one", cache="5m")]),
            Message("developer", [TextPart("two")]),
            Message("user", [TextPart("q"), TextPart("")]),
            Message("assistant", [
                ReasoningPart("secret", echo=FOREIGN), ReasoningPart("plain"), RefusalPart("no"), RefusalPart(""),
                TextPart("t", echo=FOREIGN), ToolCallPart("c", "f", ""), ToolCallPart("d", "g", "{half", complete=False),
                ToolCallPart("e", "h", "free", "custom"),
            ]),
            Message("tool", [ToolResultPart("c", [TextPart('{"a": 1}')])]),
            Message("tool", [ToolResultPart("d", [TextPart("bad")], is_error=True)]),
            Message("tool", [ToolResultPart("e", [TextPart("{no"), MediaPart("image/png", "AAAA")])]),
            Message("assistant", []),
            Message("system", [TextPart("late")]),
        ],
    )  # fmt: skip
    built = build(request)
    assert built.dropped == ["cache_control", "messages.reasoning", "messages.text.state"]
    assert built.body == {
        "systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]},
        "contents": [
            user({"text": "q"}),
            model(
                {"text": "no"},
                {"text": "t"},
                {"functionCall": {"id": "c", "name": "f", "args": {}}, "thoughtSignature": "skip_thought_signature_validator"},
                {"functionCall": {"id": "d", "name": "g", "args": {"input": "{half"}}},
                {"functionCall": {"id": "e", "name": "h", "args": {"input": "free"}}},
            ),
            user(
                {"functionResponse": {"id": "c", "name": "f", "response": {"a": 1}}},
                {"functionResponse": {"id": "d", "name": "g", "response": {"error": "bad"}}},
                {
                    "functionResponse": {
                        "id": "e",
                        "name": "h",
                        "response": {"output": "{no"},
                        "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}],
                    }
                },
            ),
            user({"text": "late"}),
        ],
    }
    nameless = build(Request(messages=request.messages[3:5]), ids=False).body["contents"]
    assert nameless[0]["parts"][2] == {"functionCall": {"name": "f", "args": {}}}
    assert nameless[1]["parts"][0] == {"functionResponse": {"name": "f", "response": {"a": 1}}}


def test_state_goes_to_the_provider_that_made_it_only() -> None:
    signed: list[Part] = [
        ReasoningPart("hm", echo=own("UzE=")),
        TextPart("t", echo=own("UzI=", offset="odd")),
        ToolCallPart("c", "f", "{}", echo=own("UzM=")),
    ]
    request = Request("gemini-3-pro", [Message("assistant", signed)])
    assert build(request).body["contents"][0]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": "UzE="},
        {"text": "t", "thoughtSignature": "UzI="},
        {"functionCall": {"id": "c", "name": "f", "args": {}}, "thoughtSignature": "UzM="},
    ]
    assert build(request, provider="vertex").body == build(request).body  # nobody is named
    request.messages[0].parts = [
        structs.replace(part, echo=Echo("gemini@vertex", part.echo.data))
        for part in signed
        if isinstance(part, (ReasoningPart, TextPart, ToolCallPart)) and part.echo is not None
    ]
    assert build(request, provider="vertex").body == build(request, provider="gemini@vertex").body
    request.model = "gemini-2.5-pro"
    other = build(request, provider="studio")
    assert other.body["contents"][0]["parts"] == [{"text": "t"}, {"functionCall": {"id": "c", "name": "f", "args": {}}}]
    assert other.dropped == ["messages.reasoning", "messages.text.state", "messages.tool_calls.state"]
    lost: list[Part] = [ReasoningPart("", echo=own("UzE=", next=True)), RefusalPart("")]
    assert build(Request(messages=[Message("assistant", lost)])).body["contents"] == []


def test_parts_that_a_conversation_cannot_express() -> None:
    with pytest.raises(RequestError, match="names no tool"):
        build(Request(messages=[Message("tool", [ToolResultPart("c", [])])]))
    with pytest.raises(Unsupported, match="another_dialect"):
        build(Request(messages=[Message("user", [NativePart("another_dialect", {})])]))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"contents": [{"role": "robot"}]}, r"contents\[0\].role must be user or model"),
        ({"contents": [{"parts": [{"text": 5}]}]}, r"contents\[0\].parts\[0\].text must be a string"),
        ({"contents": [{"parts": [{"functionCall": {}}]}]}, r"parts\[0\].functionCall.name is required"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f", "parts": [{}]}}]}]}, "must have inlineData or fileData"),
        ({"contents": [{"parts": 5}]}, r"contents\[0\].parts must be a list"),
        ({"contents": [{"parts": [5]}]}, r"contents\[0\].parts\[0\] must be an object"),
        ({"generationConfig": {"temperature": "hot"}}, "generationConfig.temperature must be a number"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "deep"}}}, "thinkingLevel must be MINIMAL"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}}, "mode must be AUTO"),
    ],
)
def test_errors_name_the_field(body: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError, match=path):
        parse(body)


def test_endlessly_nested_bodies() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"a": deep}
    with pytest.raises(RequestError, match="too deeply"):
        parse(deep)
    assert "too deeply" in GeminiReader().read_whole(deep)[-1].message  # type: ignore[union-attr]  # a StreamError


# --- tools, reasoning, output


def test_tools() -> None:
    request = Request(
        tools=[
            ToolSpec("f", "d", {"type": "object", "properties": {}}, cache="5m"),
            ToolSpec("plain"),
            ToolSpec("c", kind="custom", format={"type": "grammar"}),
            ToolSpec("d", kind="custom"),
        ],
        parallel_tool_calls=False,
    )
    built = build(request)
    free = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert built.body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object", "properties": {}}},
                {"name": "plain", "description": ""},
                {"name": "c", "description": HOW, "parametersJsonSchema": free},
                {"name": "d", "description": HOW, "parametersJsonSchema": free},
            ]
        }
    ]
    assert built.dropped == ["cache_control", "tools.c.format", "parallel_tool_calls"]
    assert build(Request(tools=[ToolSpec("search", kind="server", native=FOREIGN)])).dropped == ["tools.search"]
    search = ToolSpec("googleSearch", kind="server", native=Echo("gemini", {"googleSearch": {}}))
    assert build(Request(tools=[search])).body["tools"] == [{"googleSearch": {}}]


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, ToolChoice("auto")),
        ({"mode": "NONE"}, ToolChoice("none")),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, ToolChoice("required", ["f"])),
        ({"mode": "VALIDATED"}, ToolChoice("auto")),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["f"]}, ToolChoice("auto", ["f"])),
    ],
)
def test_tool_choice(config: dict[str, Any], choice: ToolChoice) -> None:
    request = parse({"toolConfig": {"functionCallingConfig": config}})
    assert request.tool_choice == choice
    assert build(request).body["toolConfig"] == {"functionCallingConfig": config}


def test_tool_config_without_a_choice() -> None:
    request = parse({"toolConfig": {"includeServerSideToolInvocations": True}})
    assert request.tool_choice is None
    assert build(request).body["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert build(Request(tool_choice=ToolChoice("none", ["f"]))).body["toolConfig"]["functionCallingConfig"] == {"mode": "NONE"}


@pytest.mark.parametrize(
    ("thinking", "reasoning"),
    [
        ({"includeThoughts": True}, Reasoning(summary="auto")),
        ({"thinkingBudget": 0}, Reasoning(budget_tokens=0, enabled=False, summary="none")),
        ({"thinkingBudget": -1}, Reasoning(enabled=True, summary="none")),
        ({"thinkingLevel": "LOW", "includeThoughts": True}, Reasoning(effort="low", summary="auto")),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, Reasoning(summary="none")),
    ],
)
def test_thinking(thinking: dict[str, Any], reasoning: Reasoning) -> None:
    assert parse({"generationConfig": {"thinkingConfig": thinking}}).reasoning == reasoning


@pytest.mark.parametrize(
    ("model_name", "reasoning", "thinking"),
    [
        ("gemini-2.5-flash", Reasoning(effort="high"), {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-flash", Reasoning(effort="none"), {"thinkingBudget": 0}),
        ("gemini-2.5-flash", Reasoning(enabled=False, budget_tokens=0), {"thinkingBudget": 0}),
        ("gemini-2.5-flash", Reasoning(enabled=True, summary="none"), {"thinkingBudget": -1}),
        ("gemini-3-pro", Reasoning(effort="xhigh"), {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3-pro", Reasoning(enabled=False), {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-pro", Reasoning(budget_tokens=0), {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-pro", Reasoning(budget_tokens=99, effort="low"), {"thinkingBudget": 99, "includeThoughts": True}),
        ("other", Reasoning(effort="low"), {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("other", Reasoning(summary="auto"), {"includeThoughts": True}),
    ],
)
def test_thinking_for_each_generation(model_name: str, reasoning: Reasoning, thinking: dict[str, Any]) -> None:
    assert build(Request(model_name, reasoning=reasoning)).body["generationConfig"]["thinkingConfig"] == thinking


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"responseMimeType": "text/plain"}, OutputFormat("text")),
        ({"responseMimeType": "application/json"}, OutputFormat("json_object")),
        ({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a"]}}, None),
    ],
)
def test_output(config: dict[str, Any], output: OutputFormat | None) -> None:
    request = parse({"generationConfig": config})
    assert request.output == output
    assert build(request).body["generationConfig"] == config
    assert request.essential == (
        ["generationConfig.responseMimeType", "generationConfig.responseSchema"] if output is None else []
    )


def test_schemas() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"any_of": {"type": "INTEGER", "nullable": True}, "e": {"type": "STRING", "enum": ["a"], "nullable": True}},
        "property_ordering": ["e"],
        "any_of": [{"type": "ARRAY", "items": {"type": "NUMBER"}, "min_items": "2", "max_items": 3}],
        "additional_properties": False,
        "defs": {"d": {"ref": "#/defs/d"}},
        "nullable": False,
        "required": ["e"],
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {"any_of": {"type": ["integer", "null"]}, "e": {"type": ["string", "null"], "enum": ["a", None]}},
        "anyOf": [{"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}],
        "additionalProperties": False,
        "$defs": {"d": {"$ref": "#/defs/d"}},
        "required": ["e"],
    }
    assert json_schema(True) is True


def test_fields_of_another_dialect() -> None:
    request = Request(dialect="elsewhere", extra={"a": 1, "b": 2}, essential=["b"])
    with pytest.raises(Unsupported, match="'b'"):
        build(request)
    request.essential = []
    assert build(request).dropped == ["a", "b"]
