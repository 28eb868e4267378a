"""Responses requests in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot import RequestError, Unsupported
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.state import pack
from streamglot.dialects.openai_responses.request import parse
from streamglot.messages import Built, Part
from vocabulary import *

build = DIALECTS["openai_responses"].build_request
NAME = "openai_responses"


def parts(*items: Any) -> list[list[Part]]:
    return [message.parts for message in parse({"input": list(items)}).messages]


def items(*parts: Part, role: Any = "assistant", **more: Any) -> list[dict[str, Any]]:
    built: list[dict[str, Any]] = build(Request(messages=[Message(role, list(parts))], **more)).body["input"]
    return built


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(content)}


# --- round trips


def test_every_item_of_a_history_survives_a_round_trip() -> None:
    history = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief"}]},
        user(
            {"type": "input_text", "text": "Look"},
            {"type": "input_image", "image_url": "http://x/a.png", "detail": "high"},
            {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"},
            {"type": "input_image", "file_id": "file_1", "detail": "auto"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
            {"type": "input_file", "file_id": "file_2"},
            {"type": "input_file", "file_url": "http://x/a.pdf"},
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
            {"type": "input_video", "odd": 1},
        ),
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Wait", "annotations": []}],
            "phase": "commentary",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "No"}],
        },
        {"type": "function_call", "id": "fc_1", "namespace": "crm", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "run", "input": "print"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}, "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "yes"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_image", "file_id": "f", "detail": "auto"}],
        },
        {"type": "computer_call_output", "call_id": "c3", "output": {}},
        {"type": "compaction", "encrypted_content": "e"},
        {"type": "item_reference", "id": "msg_1"},
    ]
    body = {"model": "m", "instructions": "Be kind", "input": history, "include": ["reasoning.encrypted_content"]}
    request = parse(body)
    assert [message.role for message in request.messages] == ["system", "developer", "user", "assistant", "tool", "assistant"]
    assert build(request) == Built(body)


ALLOWED = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "run"},
    {"type": "web_search"},
    {"type": "mcp", "server_label": "dice"},
]


def test_every_field_survives_a_round_trip() -> None:
    body = {
        "model": "m",
        "input": [user({"type": "input_text", "text": "Hi"})],
        "stream": True,
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": {"a": 1}, "strict": True, "async": True},
            {"type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "s", "definition": ""}},
            {"type": "custom", "name": "say", "format": {"type": "text"}},
            {"type": "custom", "name": "free"},
            {"type": "web_search", "size": 1},
            {"type": "mcp", "server_label": "dice", "server_url": "http://x"},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": ALLOWED,
        },
        "reasoning": {"effort": "high", "summary": "auto", "context": "all_turns"},
        "text": {
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "n", "schema": {}, "description": "d", "strict": True},
            "odd": 1,
        },
        "include": ["web_search_call.results", "reasoning.encrypted_content", "message.output_text.logprobs"],
        "max_output_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_logprobs": 3,
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "store": False,
        "safety_identifier": "u",
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "truncation": "auto",
        "background": True,
    }  # fmt: skip
    request = parse(body)
    assert request.essential == ["background"]
    assert request.logprobs is True
    assert request.tools[1].format == {"type": "grammar", "grammar": {"syntax": "s", "definition": ""}}
    assert [tool.kind for tool in request.tools] == ["function", "custom", "custom", "custom", "server", "server"]
    assert build(request) == Built(body)


# --- parse


def test_short_forms() -> None:
    assert parse({"input": "Hi"}).messages == [Message("user", [TextPart("Hi")])]
    assert parse({}).messages == []
    assert parts({"role": "user", "content": "Hi"}, {"role": "system"}) == [[TextPart("Hi")], []]
    assert parse({"background": False, "prompt": None}).extra == {}


def test_a_user_beside_a_safety_identifier() -> None:
    given = {"user": "u1", "safety_identifier": "s1"}
    request = parse({"model": "m", "input": "Hi", **given})
    assert (request.user, request.extra) == ("s1", {"user": "u1"})
    assert build(request).body.items() >= given.items()
    assert parse({"user": "same", "safety_identifier": "same"}).extra == {}


def test_items_of_one_turn_are_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": " "}
    result = {"type": "function_call_output", "call_id": "c", "output": "yes"}
    assert parts(thought, {"role": "assistant", "content": "Hi"}, call, result, result) == [
        [
            ReasoningPart("hm", echo=Echo(NAME, thought)),
            TextPart("Hi"),
            ToolCallPart("c", "f", "{}", native=Echo(NAME, {"type": "function_call"})),
        ],
        [ToolResultPart("c", [TextPart("yes")]), ToolResultPart("c", [TextPart("yes")])],
    ]


def test_a_plain_tool() -> None:
    assert parse({"tools": [{"name": "f"}]}).tools == [ToolSpec("f")]
    assert build(parse({"tools": [{"name": "f"}]})).body["tools"][0]["strict"] is None


def test_images_as_objects_and_server_calls_without_an_id() -> None:
    assert parts(user({"type": "input_image", "image_url": {"url": "http://x"}})) == [[MediaPart("image/*", url="http://x")]]
    item = {"type": "shell_call"}
    assert parts(item) == [[ToolCallPart("shell", "shell", "{}", "server", native=Echo(NAME, item))]]


def test_packed_state_is_unpacked() -> None:
    echo = Echo("anthropic", {"signature": "s"})
    carried = pack(Echo("gemini", {"call_id": "c", "echo": {"sig": "s"}}))
    for_text = pack(Echo("gemini", {"call_id": "", "echo": {"sig": "t"}}))
    summary = [{"type": "summary_text", "text": "hm"}]
    got = parts(
        {"type": "reasoning", "id": "rs_sglot_1_0", "summary": summary, "encrypted_content": pack(echo)},
        {"type": "reasoning", "id": "rs_sglot_1_1", "summary": summary},
        {"type": "reasoning", "summary": [], "encrypted_content": pack(echo)},
        {"role": "assistant", "content": "Hi"},
        {"type": "reasoning", "encrypted_content": for_text},
        {"type": "function_call", "id": "fc_sglot_1_2", "call_id": "c", "name": "f", "arguments": {"a": 1}},
        {"type": "reasoning", "encrypted_content": carried},
    )
    native = Echo(NAME, {"type": "function_call", "id": "fc_sglot_1_2"})
    assert got == [
        [
            ReasoningPart("hm", True, echo=echo),
            ReasoningPart("hm", True),
            ReasoningPart("", redacted=True, echo=echo),
            TextPart("Hi", echo=Echo("gemini", {"sig": "t"})),
            ToolCallPart("c", "f", '{"a":1}', echo=Echo("gemini", {"sig": "s"}), native=native),
        ]
    ]
    assert parts({"type": "reasoning", "encrypted_content": carried}) == []
    assert parts({"role": "assistant", "content": "Hi"}, {"type": "reasoning", "encrypted_content": carried}) == [
        [TextPart("Hi")]
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", ["f"])),
        ({"type": "web_search"}, ToolChoice("required", ["web_search"])),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice | None) -> None:
    assert parse({"tool_choice": choice}).tool_choice == expected


def test_tool_choices_that_only_this_dialect_has() -> None:
    for choice in ({"type": "mcp", "server_label": "x", "name": "y"}, {"type": "allowed_tools", "mode": "auto", "tools": [5]}):
        request = parse({"tool_choice": choice})
        assert (request.tool_choice, request.essential) == (None, ["tool_choice"])
        assert build(request).body["tool_choice"] == choice


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": 5}, "input must be"),
        ({"input": [5]}, "input[0] must be an object"),
        ({"input": [{"role": "nobody"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [user({"type": "input_image"})]}, "neither data"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
def test_errors_name_the_field(body: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as error:
        parse(body)
    assert words in error.value.message


def test_output_formats() -> None:
    assert parse({"text": {"format": {"type": "json_object"}}}).output == OutputFormat("json_object")
    assert parse({"text": {"format": {}}}).output == OutputFormat("text")
    assert parse({"text": {}}).output is None
    assert build(Request(output=OutputFormat("json_object"))).body["text"] == {"format": {"type": "json_object"}}
    assert parse({"reasoning": {}}).reasoning == Reasoning()


# --- build


def test_only_the_first_plain_message_of_the_system_is_the_instructions() -> None:
    two = [Message("system", [TextPart("a")]), Message("system", [TextPart("b")])]
    body = build(Request(messages=two)).body
    assert (body["instructions"], len(body["input"])) == ("a", 1)
    assert "instructions" not in build(Request(messages=[Message("system", [TextPart("a"), TextPart("b")])])).body


def test_parts_side_by_side_are_one_message() -> None:
    assert items(TextPart("a"), TextPart("b"), role="user") == [
        user({"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"})
    ]
    phase = Echo(NAME, {"type": "message", "phase": "commentary"})
    assert [item.get("phase") for item in items(TextPart("a", echo=phase), TextPart("b"), RefusalPart("c"))] == [
        "commentary",
        None,
    ]
    assert items(TextPart("note"), role="tool") == [user({"type": "input_text", "text": "note"})]


def test_reasoning_returns_to_its_provider_only() -> None:
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "e"}
    assert items(ReasoningPart("", echo=Echo(NAME, item))) == [{"summary": [], **item}]
    assert (
        items(
            ReasoningPart("", echo=Echo(f"{NAME}@azure", item)), ReasoningPart("x"), ReasoningPart("", echo=Echo(NAME, {"a": 1}))
        )
        == []
    )
    stored = Echo(NAME, {"type": "reasoning", "id": "rs_1", "summary": []})
    assert len(items(ReasoningPart("", echo=stored))) == 1
    assert items(ReasoningPart("", echo=stored), store=False) == []
    request = Request(messages=[Message("assistant", [ReasoningPart("", echo=Echo(f"{NAME}@azure", item))])])
    assert build(request, provider="azure").body["include"] == ["reasoning.encrypted_content"]


def test_calls_and_results() -> None:
    assert items(
        ToolCallPart("a", "f", "", native=Echo(NAME, {"type": "function_call", "id": "fc_sglot_1_0"})),
        ToolCallPart("b", "g", "{}", echo=Echo(NAME, {"type": "function_call", "namespace": "crm"})),
        ToolCallPart("c", "run", "x", "custom", native=Echo("azure", {"type": "custom_tool_call", "id": "ctc_1"})),
        ToolCallPart("d", "web_search", "{}", "server", native=Echo("azure", {"type": "web_search_call"})),
        ToolCallPart("e", "web_search", "{}", "server"),
        ToolResultPart("a", [TextPart("gone")], is_error=True),
        ToolResultPart("b", [TextPart("Error: gone")], is_error=True),
        ToolResultPart("c", [TextPart("a"), MediaPart("image/png", "QUJD")]),
        ToolResultPart("d", [TextPart("x")]),
        ToolResultPart("z", [TextPart("x")], native=Echo(NAME, {"type": "mcp_call"})),
        ToolResultPart("s", [], native=Echo(NAME, {"type": "shell_call_output", "call_id": "s"})),
    ) == [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "namespace": "crm", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "x"},
        {"type": "function_call_output", "call_id": "a", "output": "Error: gone"},
        {"type": "function_call_output", "call_id": "b", "output": "Error: gone"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,QUJD"},
            ],
        },
        {"type": "shell_call_output", "call_id": "s"},
    ]


def test_events_that_cannot_be_expressed() -> None:
    with pytest.raises(Unsupported, match="the type 'media' cannot"):
        items(MediaPart("image/png", "QUJD"))
    with pytest.raises(Unsupported, match="which only other has, cannot"):
        items(NativePart("other", {}), role="user")
    assert build(Request(tools=[ToolSpec("x", kind="server", native=Echo("anthropic", {}))])).dropped == ["tools.x"]
    with pytest.raises(Unsupported, match="stop"):
        build(Request(stop=["x"]))
    with pytest.raises(Unsupported, match="thinking_tokens"):
        build(Request(dialect="other", extra={"thinking_tokens": 1}, essential=["thinking_tokens"]))


def test_a_request_of_another_dialect() -> None:
    request = Request(
        model="m",
        messages=[Message("user", [TextPart("Hi", cache="5m")])],
        tools=[ToolSpec("f")],
        tool_choice=ToolChoice("required", ["f"]),
        user="u",
        seed=3,
        logprobs=True,
        output=OutputFormat("json_schema"),
        reasoning=Reasoning(budget_tokens=5000, enabled=True),
        dialect="other",
        extra={"x": 1, "include": ["y"], "text": {"z": 1}, "reasoning": {"w": 1}},
    )
    assert build(request) == Built(
        {
            "model": "m",
            "input": [user({"type": "input_text", "text": "Hi"})],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "medium", "summary": "auto"},
            "user": "u",
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": {}}},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        },
        ["cache_control", "reasoning.budget_tokens", "seed", "x", "include", "text", "reasoning"],
    )


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        (Reasoning(), None),
        (Reasoning(enabled=True), {"effort": "medium", "summary": "auto"}),
        (Reasoning(enabled=False), {"effort": "none"}),
        (Reasoning(effort="none"), {"effort": "none"}),
        (Reasoning(budget_tokens=0), {"effort": "none"}),
        (Reasoning(budget_tokens=50_000), {"effort": "high"}),
    ],
)
def test_effort(reasoning: Reasoning, expected: Any) -> None:
    body = build(Request(reasoning=reasoning)).body
    assert body.get("reasoning") == expected
    assert ("include" in body) == (expected is None or expected["effort"] != "none")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("none", ["f"]), "none"),
        (ToolChoice("auto"), "auto"),
        (ToolChoice("required", ["run"]), {"type": "custom", "name": "run"}),
        (ToolChoice("required", ["web_search"]), {"type": "web_search"}),
        (ToolChoice("auto", ["f"]), {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}),
    ],
)
def test_build_tool_choice(choice: ToolChoice, expected: Any) -> None:
    tools = [
        ToolSpec("f"),
        ToolSpec("run", kind="custom"),
        ToolSpec("web_search", kind="server", native=Echo(NAME, {"type": "web_search"})),
    ]
    assert build(Request(tools=tools, tool_choice=choice)).body["tool_choice"] == expected


def test_our_own_approval_request_is_not_part_of_the_history() -> None:
    own = {"type": "mcp_approval_request", "id": "q", "server_label": "streamglot", "name": "rm", "arguments": "{}"}
    of_provider = {**own, "server_label": "files"}
    assert parts(user({"type": "input_text", "text": "a"}), own) == [[TextPart("a")]]
    assert len(parts(user({"type": "input_text", "text": "a"}), of_provider)) == 2
