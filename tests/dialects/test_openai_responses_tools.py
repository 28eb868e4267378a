"""Tools in namespaces and tools that a search loads: flat for other dialects, and restored on the calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamglot import DIALECTS, Event, StreamEnd, StreamStart, ToolCallDelta, ToolCallEnd, ToolCallStart, collect
from streamglot.dialects.common.abilities import Abilities
from streamglot.dialects.openai_responses.stored import input_items, repeated_fields
from streamglot.dialects.openai_responses.tools import flat_name
from streamglot.dialects.openai_responses.write import ResponsesWriter
from streamglot.events import Echo
from streamglot.framing.sse import Sse
from streamglot.messages import Message, Request, TextPart, ToolCallPart, ToolChoice, ToolResultPart

RESPONSES = DIALECTS["openai_responses"]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": f"does {name}", "parameters": SCHEMA, "strict": False, **more}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": f"all of {name}", "tools": list(tools)}


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
CUSTOM = {"type": "custom", "name": "edit", "description": "edits", "format": GRAMMAR}
SEARCH = {"type": "tool_search", "execution": "client", "description": "finds tools", "parameters": SCHEMA}
TOOLS = [
    function("exec"),
    namespace("multi_agent_v1", function("spawn"), CUSTOM),
    SEARCH,
    {"type": "web_search", "external_web_access": True},
]
LOADED = namespace("mcp__zed", function("zeb0", defer_loading=True))
INPUT: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "tool_search_call", "call_id": "s", "execution": "client", "status": "completed", "arguments": {"q": "z"}},
    {"type": "tool_search_output", "call_id": "s", "status": "completed", "execution": "client", "tools": [LOADED]},
    {"type": "function_call", "call_id": "z", "name": "zeb0", "namespace": "mcp__zed", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "z", "output": "ok"},
    {"type": "custom_tool_call", "call_id": "e", "name": "edit", "namespace": "multi_agent_v1", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "e", "output": "done"},
]
BODY = {"model": "m", "input": INPUT, "tools": TOOLS}
FLAT = ["exec", "multi_agent_v1__spawn", "multi_agent_v1__edit", "tool_search", "mcp__zed__zeb0"]
OTHERS = ["anthropic", "bedrock_converse", "cohere", "gemini", "ollama", "openai_chat"]


def parse(**changes: Any) -> Request:
    return RESPONSES.parse_request({**BODY, **changes})


# --- requests


def test_flat_names() -> None:
    assert flat_name("mcp__zed", "zeb0") == "mcp__zed__zeb0"
    assert flat_name("", "f") == "f"
    assert flat_name("functions", "f") == "f", "the namespace of those that are in none"
    long = flat_name("n" * 40, "t" * 40)
    assert len(long) == 64
    assert long != flat_name("n" * 40, "t" * 41)
    assert flat_name("a.b", "c") != flat_name("a_b", "c")
    assert flat_name("a.b", "c").replace("_", "").isalnum()


def test_all_tools_are_functions_in_one_list() -> None:
    request = parse()
    assert [tool.name for tool in request.tools if tool.kind != "server"] == FLAT
    assert [tool.kind for tool in request.tools] == ["function", "function", "custom", "function", "server", "function"]


@pytest.mark.parametrize("dialect", OTHERS)
def test_an_upstream_of_another_dialect_knows_the_flat_names(dialect: str) -> None:
    built = DIALECTS[dialect].build_request(parse())
    body = json.dumps(built.body)
    assert all(f'"{name}"' in body for name in FLAT)
    assert "namespace" not in body
    assert body.count("mcp__zed__zeb0") >= 3, "declared, called, and named in the result of the search"
    assert built.dropped[:2] == ["tools.multi_agent_v1__edit.format", "tools.web_search"]


def test_an_upstream_of_this_dialect_gets_them_as_they_came() -> None:
    built = RESPONSES.build_request(parse(), provider="mine")
    assert built.body["tools"] == TOOLS
    assert built.body["input"] == INPUT
    assert built.dropped == []


def test_an_upstream_of_this_dialect_without_namespaces_knows_the_flat_names() -> None:
    built = RESPONSES.build_request(parse(), abilities=Abilities(namespaces=False, custom_tools=False))
    assert [tool.get("name", tool["type"]) for tool in built.body["tools"]] == [*FLAT[:4], "web_search", FLAT[4]]
    assert all(set(tool) <= {"type", "name", "description", "parameters", "strict"} for tool in built.body["tools"][:4])
    assert "defer_loading" not in built.body["tools"][5]
    kinds = [item["type"] for item in built.body["input"]]
    assert kinds == ["message", *["function_call", "function_call_output"] * 3]
    assert [item.get("name") for item in built.body["input"] if item["type"] == "function_call"] == [
        "tool_search",
        "mcp__zed__zeb0",
        "multi_agent_v1__edit",
    ]


def test_a_search_that_found_nothing_says_so() -> None:
    nothing = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": []}
    request = parse(input=[INPUT[1], nothing])
    assert request.messages[-1].parts[0].text == "no tool was found"  # type: ignore[union-attr]  # a TextPart
    assert len(request.tools) == 5


def test_a_search_that_the_provider_does_is_a_tool_of_its_own() -> None:
    hosted = {"type": "tool_search"}
    request = parse(tools=[hosted, function("f", defer_loading=True)], input=[{"type": "tool_search_call", "id": "x"}])
    assert [tool.kind for tool in request.tools] == ["server", "function"]
    assert DIALECTS["openai_chat"].build_request(request).dropped == ["tools.tool_search", "messages.tool_search_call"]
    assert RESPONSES.build_request(request).body["tools"] == [hosted, function("f", defer_loading=True)]


def test_tools_that_are_loaded_twice_or_declared_already_are_one() -> None:
    twice = [*INPUT, {**INPUT[2], "tools": [LOADED, function("top", defer_loading=True)]}]
    names = [tool.name for tool in parse(input=twice, tools=[*TOOLS, LOADED]).tools]
    assert names.count("mcp__zed__zeb0") == 1
    assert names[-1] == "top"


def test_a_flat_name_that_another_tool_has_is_changed() -> None:
    request = parse(input="x", tools=[namespace("a", function("b")), function("a__b"), namespace("a_", function("_b"))])
    names = [tool.name for tool in request.tools]
    assert len(set(names)) == 3
    assert names[1] == "a__b"
    item = {"type": "function_call", "call_id": "c", "name": "b", "namespace": "a", "arguments": ""}
    called = RESPONSES.parse_request({"input": [item], "tools": [namespace("a", function("b")), function("a__b")]})
    part = called.messages[0].parts[0]
    assert isinstance(part, ToolCallPart)
    assert part.name == called.tools[0].name != "a__b"
    assert RESPONSES.build_request(called).body["input"] == [{**item, "arguments": "{}"}]


def test_choices_in_a_namespace() -> None:
    named = {"type": "function", "name": "spawn", "namespace": "multi_agent_v1"}
    request = parse(tool_choice=named)
    assert request.tool_choice == ToolChoice("required", ["multi_agent_v1__spawn"])
    assert RESPONSES.build_request(request).body["tool_choice"] == named
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [named, {"type": "function", "name": "exec"}, {"type": "tool_search"}],
    }
    request = parse(tool_choice=allowed)
    assert request.tool_choice == ToolChoice("auto", ["multi_agent_v1__spawn", "exec", "tool_search"])
    assert RESPONSES.build_request(request).body["tool_choice"] == allowed


def test_history_of_another_upstream_is_named_as_it_was_declared() -> None:
    """A conversation that began with an upstream of another dialect continues with one of this dialect."""
    calls: list[Any] = [
        ToolCallPart("a", "multi_agent_v1__spawn", ""),
        ToolCallPart("b", "tool_search", '{"q": "z"}'),
        ToolCallPart("c", "multi_agent_v1__edit", "x", "custom"),
        ToolCallPart("d", "exec", "{}"),
    ]
    request = parse()
    request.messages = [Message("assistant", calls)]
    assert RESPONSES.build_request(request).body["input"] == [
        {"type": "function_call", "call_id": "a", "name": "spawn", "namespace": "multi_agent_v1", "arguments": "{}"},
        {"type": "tool_search_call", "execution": "client", "status": "completed", "arguments": {"q": "z"}, "call_id": "b"},
        {"type": "custom_tool_call", "call_id": "c", "name": "edit", "namespace": "multi_agent_v1", "input": "x"},
        {"type": "function_call", "call_id": "d", "name": "exec", "arguments": "{}"},
    ]


def test_ids_that_we_made_are_not_sent_back() -> None:
    made = "item_sglot_r_1"
    request = parse(input=[{**INPUT[1], "id": made}, {**INPUT[3], "id": "fc_sglot_r_2"}])
    assert all("id" not in item for item in RESPONSES.build_request(request, provider="openai_responses").body["input"])


# --- streams


def written(*events: Event, request: Request | None = None, last: Event | None = None) -> list[dict[str, Any]]:
    writer = ResponsesWriter(tools=(request or parse()).tools)
    body = writer.feed([StreamStart("resp_1", "m", 7), *events, last or StreamEnd("tool_calls")]) + writer.close()
    box = Sse()
    return [json.loads(frame.data) for frame in box.feed(body) + box.close()]


def call(name: str, *pieces: str, kind: Any = "function", **options: Any) -> list[Event]:
    start = ToolCallStart("c1", name, kind, options.pop("native", None))
    return [start, *map(ToolCallDelta, pieces), ToolCallEnd(**options)]


def done(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The finished items, without the fields that every item has."""
    items = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert frames[-1]["response"]["output"] == items
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]


def test_calls_are_named_as_the_client_declared_their_tools() -> None:
    named = {"name": "spawn", "namespace": "multi_agent_v1"}
    frames = written(*call("multi_agent_v1__spawn", '{"q":', "1}"))
    assert done(frames) == [{"type": "function_call", "call_id": "c1", **named, "arguments": '{"q":1}'}]
    assert frames[2]["item"]["namespace"] == "multi_agent_v1", "in the first event of the item too"
    assert next(frame for frame in frames if frame["type"].endswith("arguments.done"))["name"] == "spawn"
    custom = done(written(*call("multi_agent_v1__edit", "x", kind="custom")))
    assert custom == [{"type": "custom_tool_call", "call_id": "c1", "name": "edit", "namespace": "multi_agent_v1", "input": "x"}]
    loaded = done(written(*call("mcp__zed__zeb0", "{}")))
    assert (loaded[0]["name"], loaded[0]["namespace"]) == ("zeb0", "mcp__zed")
    assert "namespace" not in done(written(*call("exec", "{}")))[0]


def test_a_search_is_written_whole_with_its_arguments_as_an_object() -> None:
    frames = written(*call("tool_search", '{"q":', '"z"}'))
    search = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"q": "z"}}
    assert done(frames) == [search]
    kinds = [frame["type"].removeprefix("response.") for frame in frames]
    assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    assert done(written(*call("tool_search")))[0]["arguments"] == {}


def test_half_a_search_is_not_written() -> None:
    writer = ResponsesWriter(tools=parse().tools)
    body = writer.feed([StreamStart("r", "m"), *call("tool_search", '{"q', complete=False), StreamEnd("length")])
    assert b"tool_search_call" not in body
    assert writer.lost == {"ToolCallEnd": 1}


def test_state_of_another_provider_goes_with_a_search() -> None:
    frames = written(*call("tool_search", "{}", echo=Echo("elsewhere", {"signature": "s"})))
    assert [item["type"] for item in done(frames)] == ["tool_search_call", "reasoning"]


def test_a_namespace_that_the_provider_sent_is_kept() -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "spawn",
        "namespace": "multi_agent_v1",
        "arguments": "{}",
    }
    search = {
        "type": "tool_search_call",
        "id": "ts_1",
        "call_id": "c2",
        "execution": "client",
        "arguments": {"q": "z"},
        "status": "completed",
    }
    answer = {"id": "r", "status": "completed", "output": [item, search]}
    events = RESPONSES.reader(provider="mine").read_whole(answer)
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [(start.name, start.kind) for start in starts] == [("multi_agent_v1__spawn", "function"), ("tool_search", "function")]
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "tool_calls"
    writer = ResponsesWriter()
    writer.feed(events)
    assert writer.response["output"] == [{**item, "status": "completed"}, search]


def test_a_search_in_a_stream() -> None:
    item = {
        "type": "tool_search_call",
        "id": "ts_1",
        "call_id": "c2",
        "execution": "client",
        "arguments": {},
        "status": "in_progress",
    }
    frames: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "model": "m"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    ]
    finished = {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {**item, "arguments": {"q": "z"}, "status": "completed"},
    }
    ended = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [finished["item"]]}}

    def read(*more: dict[str, Any]) -> list[Event]:
        box = RESPONSES.reader()
        body = b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in (*frames, *more))
        return box.feed(body) + box.close()

    part = collect(read(finished, ended)).choices[0].parts[0]
    assert isinstance(part, ToolCallPart)
    assert (part.call_id, part.name, part.arguments, part.complete) == ("c2", "tool_search", '{"q":"z"}', True)
    cut = collect(read()).choices[0].parts[0]
    assert isinstance(cut, ToolCallPart)
    assert not cut.complete


def test_a_stored_response_shows_them_as_they_were() -> None:
    request = parse()
    assert repeated_fields(request, instructed=False)["tools"] == TOOLS
    request.messages.append(Message("assistant", [ToolCallPart("n", "multi_agent_v1__spawn", "{}")]))
    request.messages.append(Message("tool", [ToolResultPart("n", [TextPart("yes")])]))
    items = input_items(request, "resp_1", instructed=False)
    assert [item["type"] for item in items[1:4]] == ["tool_search_call", "tool_search_output", "function_call"]
    assert (items[-2]["name"], items[-2]["namespace"]) == ("spawn", "multi_agent_v1")
    answer = collect([StreamStart("r", "m"), *call("multi_agent_v1__spawn", "{}"), StreamEnd("tool_calls")])
    assert RESPONSES.build_response(answer, tools=request.tools)["output"][0]["namespace"] == "multi_agent_v1"
