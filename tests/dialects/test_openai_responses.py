"""Reads Responses streams as servers really send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from split_checks import every_cut, feed_all
from streamglot import Limits
from streamglot.dialects.openai_responses.read import ResponsesReader
from vocabulary import *

NAME = "openai_responses"
CREATED = {"type": "response.created", "response": {"id": "resp_1", "model": "m", "created_at": 7.0, "output": []}}
START = StreamStart("resp_1", "m", 7)


def stream(*events: dict[str, Any] | str, named: bool = True) -> bytes:
    lines = []
    for event in events:
        if isinstance(event, str):
            lines.append(event)
        else:
            lines.append((f"event: {event.get('type')}\n" if named else "") + f"data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def read(*events: dict[str, Any] | str, **options: Any) -> list[Event]:
    return every_cut(lambda: ResponsesReader(**options), stream(*events))


def body(*events: dict[str, Any] | str, **options: Any) -> list[Event]:
    """The events between the start and the end."""
    return [event for event in read(CREATED, *events, COMPLETED, **options)[1:-1] if not isinstance(event, Extra)]


def end(status: str | None = "completed", kind: str = "completed", **more: Any) -> dict[str, Any]:
    given = {"status": status} if status else {}
    return {"type": f"response.{kind}", "response": {"id": "resp_1", **given, **more}}


COMPLETED = end()


def added(item: dict[str, Any], index: int | None = 0) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index}
    return {"type": "response.output_item.added", **place, "item": item}


def done(item: dict[str, Any], index: int | None = 0) -> dict[str, Any]:
    return {**added(item, index), "type": "response.output_item.done"}


def text(delta: str, index: int | None = 0, item_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index, "item_id": item_id, "content_index": 0}
    return {"type": "response.output_text.delta", **place, "delta": delta, **more}


def message(content: str, item_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": content, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "content": [part], **more}


def call(arguments: Any = "", name: str = "look", call_id: str = "call_1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments, **more}


def arguments(delta: str, index: int | None = 0, item_id: str = "fc_1") -> dict[str, Any]:
    place = {} if index is None else {"output_index": index, "item_id": item_id}
    return {"type": "response.function_call_arguments.delta", **place, "delta": delta}


def native(**more: Any) -> Echo:
    return Echo(NAME, {"type": "function_call", "id": "fc_1", **more})


HI = [TextStart(), TextDelta("Hi"), TextEnd()]


# --- texts


def test_a_whole_lifecycle() -> None:
    part = {"type": "output_text", "text": "Hi you", "annotations": []}
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }
    events = read(
        {"type": "response.created", "response": {**CREATED["response"], "tools": []}},  # type: ignore[dict-item]  # the value is a dict
        {"type": "response.in_progress", "response": {"id": "resp_1", "tools": []}},
        added({"type": "message", "id": "msg_1", "content": []}),
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {**part, "text": ""}},
        text("Hi"),
        text(" you", obfuscation="x", logprobs=[]),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi you"},
        {"type": "response.content_part.done", "output_index": 0, "content_index": 0, "part": part},
        done(message("Hi you")),
        end(output=[message("Hi you")], usage=usage),
    )
    assert events == [
        START,
        Extra(NAME, {"response": {"tools": []}}),
        Extra(NAME, {"item": {"type": "message", "id": "msg_1"}}),
        TextStart(),
        TextDelta("Hi"),
        TextDelta(" you"),
        TextEnd(),
        Usage(5, 3, 2, 1, 1, usage),
        StreamEnd("end", "completed"),
    ]


def test_deltas_without_any_item_and_an_end_without_a_status() -> None:
    events = read(text("Hi", None), text(" you", None), {"type": "response.completed", "response": {"usage": {}}})
    assert events == [StreamStart(), TextStart(), TextDelta("Hi"), TextDelta(" you"), TextEnd(), StreamEnd("end", None)]


def test_data_only_streams_and_done_are_fine() -> None:
    data = stream(CREATED, text("Hi"), "data: [DONE]\n\n", COMPLETED, "data: [DONE]\n\n", named=False)
    assert every_cut(ResponsesReader, data) == [START, *HI, StreamEnd("end", "completed")]


def test_the_type_may_stand_in_the_event_line_only() -> None:
    data = b'event: response.output_text.delta\ndata: {"delta":"Hi"}\n\nevent: response.completed\ndata: {}\n\n'
    assert every_cut(ResponsesReader, data) == [StreamStart(), *HI, StreamEnd("end", None)]


@pytest.mark.parametrize(
    "events",
    [
        [done(message("Hi"))],
        [{"type": "response.output_text.done", "output_index": 0, "text": "Hi"}],
        [text("H"), {"type": "response.output_text.done", "output_index": 0, "item_id": "msg_1", "text": "Hi"}],
        [{"type": "response.content_part.done", "output_index": 0, "part": {"type": "output_text", "text": "Hi"}}],
        [added(message("")), done(message("")), end(output=[message("Hi", "msg_other")])],
        [end(output=[message("Hi")])],
        [text("Hi"), done(message("Hi")), end(output=[message("Hi", "msg_other")])],
        [text("Hi"), done(message("Hi")), done(message("Hi"))],
        [text("Hi", None), done(message("Hi"), None)],
    ],
)
def test_a_text_is_emitted_once_wherever_it_stands(events: list[dict[str, Any]]) -> None:
    pieces = [event for event in body(*events) if isinstance(event, (TextStart, TextDelta, TextEnd))]
    assert "".join(event.text for event in pieces if isinstance(event, TextDelta)) == "Hi"
    assert [pieces[0], pieces[-1]] == [TextStart(), TextEnd()]
    assert len(pieces) == 2 + sum(isinstance(event, TextDelta) for event in pieces)


def test_a_final_text_that_differs_takes_nothing_back() -> None:
    assert body(text("Hi"), done(message("Hello there"))) == HI


def test_ids_that_change_in_mid_stream() -> None:
    events = body(added({"type": "message", "id": "a"}), text("H", item_id="b"), text("i", item_id="c"), done(message("Hi", "d")))
    assert events == [TextStart(), TextDelta("H"), TextDelta("i"), TextEnd()]


def test_several_items_at_the_same_index() -> None:
    events = body(
        added({"type": "message", "id": "a"}),
        text("one", item_id="a"),
        done(message("one", "a")),
        added({"type": "message", "id": "b"}),
        text("two", item_id="b"),
        done(message("two", "b")),
        text("three", item_id="c"),
        done(message("three", "c")),
    )
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one", "two", "three"]


def test_an_item_that_is_added_twice_is_one() -> None:
    item = {"type": "message", "id": "msg_1"}
    assert body(text("H"), added(item), added(item), text("i"), done(message("Hi"))) == [
        TextStart(),
        TextDelta("H"),
        TextDelta("i"),
        TextEnd(),
    ]


def test_a_second_item_takes_the_place_of_an_open_one() -> None:
    events = body(
        added({"type": "message", "id": "a"}),
        text("x", item_id="a"),
        added({"type": "message", "id": "b"}),
        text("y", item_id="b"),
    )
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["x", "y"]


def test_one_id_for_several_items_counts_by_the_index() -> None:
    events = body(
        added({"type": "message", "id": "a"}, 0),
        added({"type": "message", "id": "a"}, 1),
        text("x", 0, "a"),
        text("y", 1, "a"),
        done(message("x", "a"), 0),
        done(message("y", "a"), 1),
    )
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["x", "y"]


def test_unknown_ids_without_an_index_are_new_items() -> None:
    place = {"type": "response.output_text.delta"}
    events = body({**place, "item_id": "a", "delta": "x"}, {**place, "item_id": "b", "delta": "y"})
    assert events == [TextStart(), TextDelta("x"), TextEnd(), TextStart(), TextDelta("y"), TextEnd()]


def test_interleaved_items_come_out_one_at_a_time() -> None:
    events = body(
        added({"type": "message", "id": "a"}, 0),
        added(call(), 1),
        text("one ", 0, "a"),
        arguments('{"a":', 1),
        text("two", 0, "a"),
        done(message("one two", "a"), 0),
        arguments("1}", 1),
        done(call('{"a":1}'), 1),
    )
    assert events == [
        ToolCallStart("call_1", "look", native=native()),
        ToolCallDelta('{"a":'),
        ToolCallDelta("1}"),
        ToolCallEnd(),
        TextStart(),
        TextDelta("one "),
        TextDelta("two"),
        TextEnd(),
    ]


def test_text_that_comes_after_its_end_is_kept() -> None:
    part = {"type": "output_text", "text": "Hi"}
    events = body(text("Hi"), {"type": "response.content_part.done", "output_index": 0, "part": part}, text(" you"))
    assert events == [*HI, TextStart(), TextDelta(" you"), TextEnd()]


def test_the_phase_of_a_message_is_kept_for_its_provider() -> None:
    item = {"type": "message", "id": "msg_1", "phase": "commentary"}
    echo = Echo("openai_responses@azure", item)
    events = read(CREATED, added(item), text("Hi"), done({**message("Hi"), "phase": "commentary"}), COMPLETED, provider="azure")
    assert events[1:5] == [Extra(NAME, {"item": item}), TextStart(), TextDelta("Hi"), TextEnd(echo)]
    late = read(CREATED, text("Hi"), done({**message("Hi"), "phase": "commentary"}), COMPLETED, provider="azure")
    assert late[3] == TextEnd(echo)


def test_refusals() -> None:
    delta = {"type": "response.refusal.delta", "item_id": "", "output_index": 0, "content_index": 0, "delta": "No"}
    last = {**delta, "type": "response.refusal.done", "refusal": "No way"}
    events = read(CREATED, delta, last, COMPLETED)
    refusal = [TextStart(refusal=True), TextDelta("No"), TextDelta(" way"), TextEnd()]
    assert events == [START, *refusal, StreamEnd("refusal", "completed")]
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No"}, {"type": "odd"}, 5]}
    assert read(CREATED, done(item), COMPLETED)[-1] == StreamEnd("refusal", "completed")
    part = {"type": "response.content_part.done", "output_index": 0, "part": {"type": "refusal", "refusal": "No way"}}
    assert read(CREATED, delta, part, COMPLETED) == events


def test_logprobs_and_annotations() -> None:
    probs = [{"token": "Hi", "logprob": -0.5}]
    link = {"type": "url_citation", "url": "http://x", "title": "X", "start_index": 0, "end_index": 2}
    file = {"type": "file_citation", "file_id": "f", "filename": "a.txt", "index": 1}
    content = {"type": "output_text", "text": "Hi", "annotations": [link, file, "odd"], "logprobs": probs}
    cited = [
        Citation("http://x", "X", start=0, end=2, native=Echo(NAME, link)),
        Citation(title="a.txt", native=Echo(NAME, file)),
    ]
    given = {"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation": link}
    events = read(CREATED, text("Hi", logprobs=probs), given, done({"type": "message", "content": [content]}), COMPLETED)
    assert events == [
        START, TextStart(), Extra(NAME, {"logprobs": probs}), TextDelta("Hi"), *cited, TextEnd(), StreamEnd("end", "completed"),
    ]  # fmt: skip
    whole = read(CREATED, done({"type": "message", "content": [content]}), COMPLETED)
    assert whole[1:-1] == [TextStart(), TextDelta("Hi"), *cited, Extra(NAME, {"logprobs": probs}), TextEnd()]
    assert body({**given, "annotation": None}) == []
    assert body(given) == cited[:1]
    part = {"type": "response.content_part.done", "output_index": 0, "content_index": 0, "part": content}
    assert body(text("Hi"), part) == [TextStart(), TextDelta("Hi"), *cited, TextEnd()]


# --- reasoning


def summary(delta: str, number: int = 0, kind: str = "reasoning_summary_text") -> dict[str, Any]:
    place = {"item_id": "rs_1", "output_index": 0, "summary_index": number}
    return {"type": f"response.{kind}.delta", **place, "delta": delta}


def test_each_summary_is_a_block_and_the_last_has_the_state() -> None:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "encrypted_content": "e",
        "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two!"}],
    }
    events = read(
        CREATED,
        added({"type": "reasoning", "id": "rs_1", "encrypted_content": "half", "summary": []}),
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        summary("one"),
        {"type": "response.reasoning_summary_text.done", "output_index": 0, "summary_index": 0, "text": "one"},
        {"type": "response.reasoning_summary_part.done", "summary_index": 0},
        summary("two", 1),
        done(item),
        COMPLETED,
    )
    assert events == [
        START,
        Extra(NAME, {"item": {"type": "reasoning", "id": "rs_1"}}),
        ReasoningStart(summary=True),
        ReasoningDelta("one"),
        ReasoningEnd(),
        ReasoningStart(summary=True),
        ReasoningDelta("two"),
        ReasoningDelta("!"),
        ReasoningEnd(Echo(NAME, item)),
        StreamEnd("end", "completed"),
    ]


def test_raw_reasoning_that_is_repeated_as_a_summary_is_emitted_once() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm hm"}]}
    delta = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"}
    last = {**delta, "type": "response.reasoning_text.done", "text": "hm hm"}
    part = {"type": "response.content_part.done", "output_index": 0, "part": {"type": "reasoning_text", "text": "hm hm"}}
    thought = [ReasoningStart(), ReasoningDelta("hm"), ReasoningDelta(" hm"), ReasoningEnd(Echo(NAME, item))]
    assert body(delta, last, part, done(item)) == thought
    old = summary("hm", kind="reasoning") | {"delta": {"text": "hm"}}
    assert body(old, {**old, "type": "response.reasoning_summary.delta"})[1] == ReasoningDelta("hm")


def test_reasoning_that_comes_only_in_the_item() -> None:
    raw = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}, {"text": 3}]}
    assert body(done(raw)) == [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(Echo(NAME, raw))]
    short = {**raw, "summary": [{"type": "summary_text", "text": "h"}]}
    assert body(done(short))[:2] == [ReasoningStart(summary=True), ReasoningDelta("h")]


def test_hidden_reasoning() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
    assert body(done(item), done(item)) == [ReasoningStart(), ReasoningEnd(Echo(NAME, item), redacted=True)]
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert body(done(bare)) == [ReasoningStart(), ReasoningEnd(Echo(NAME, bare))]
    assert body(done({"type": "reasoning"})) == []
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "e"}
    assert body(added(compaction), done(compaction)) == [ReasoningStart(), ReasoningEnd(Echo(NAME, compaction), redacted=True)]


# --- calls


def test_a_call() -> None:
    last = {"type": "response.function_call_arguments.done", "output_index": 0, "name": "look", "arguments": '{"a":1}'}
    events = read(CREATED, added(call()), arguments('{"a"'), last, done(call('{"a":1}')), COMPLETED)
    assert events == [
        START,
        ToolCallStart("call_1", "look", native=native()),
        ToolCallDelta('{"a"'),
        ToolCallDelta(":1}"),
        ToolCallEnd(),
        StreamEnd("tool_calls", "completed"),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [arguments('{"a"', 3), arguments(":1}", 3), done(call('{"a":1}'), 3)],
        [arguments('{"a":1}', None), done(call('{"a":1}'), None)],
        [arguments('{"a":1}'), added(call())],
        [done(call({"a": 1}))],
        [end(output=[call('{"a":1}')])],
        [added(call()), end(output=[call('{"a":1}')])],
        [added(call()), arguments('{"a":1}'), done(call('{"a":1}')), end(output=[call('{"a":1}')])],
        [arguments('{"a":1}'), end(output=[call('{"a":1}')])],
        [added(call(), None), arguments('{"a":1}', None), end(output=[])],
        [{**arguments(""), "type": "response.function_call_arguments.done", "arguments": '{"a":1}'}, done(call('{"a":1}'))],
    ],
)
def test_a_call_is_whole_wherever_it_stands(events: list[dict[str, Any]]) -> None:
    got = body(*events)
    assert got[0] == ToolCallStart("call_1", "look", native=native())
    assert json.loads("".join(event.args for event in got[1:-1] if isinstance(event, ToolCallDelta))) == {"a": 1}
    assert got[-1] == ToolCallEnd()


def test_calls_of_the_same_kind_are_distinguished_by_their_ids() -> None:
    one, two = call('{"a":1}', call_id="c1"), call('{"a":2}', call_id="c2")
    assert len([event for event in body(done(one), done(two)) if isinstance(event, ToolCallStart)]) == 2
    assert len([event for event in body(done(one, 0), end(output=[two, one])) if isinstance(event, ToolCallStart)]) == 2


def test_a_call_without_arguments_and_one_without_a_call_id() -> None:
    assert body(done(call("")))[1:] == [ToolCallDelta("{}"), ToolCallEnd()]
    assert body(added(call()))[1:] == [ToolCallDelta("{}"), ToolCallEnd()]
    assert body(done(call("{}", call_id="")))[0] == ToolCallStart("fc_1", "look", native=native())


def test_native_fields_of_a_call_are_returned() -> None:
    echo = native(namespace="crm", name="look")
    got = body(done(call("{}", namespace="crm")))
    assert got == [ToolCallStart("call_1", "crm__look", native=echo), ToolCallDelta("{}"), ToolCallEnd(echo)]


def test_a_custom_call() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "run", "input": ""}
    place = {"output_index": 0, "item_id": "ctc_1"}
    events = body(
        added(item),
        {"type": "response.custom_tool_call_input.delta", **place, "delta": "print"},
        {"type": "response.custom_tool_call_input.delta", **place, "delta": 5},
        {"type": "response.custom_tool_call_input.done", **place, "input": "print(1)"},
        done({**item, "input": "print(1)"}),
    )
    start = ToolCallStart("c", "run", "custom", Echo(NAME, {"type": "custom_tool_call", "id": "ctc_1"}))
    assert events == [start, ToolCallDelta("print"), ToolCallDelta("(1)"), ToolCallEnd()]


def test_a_call_that_was_cut_off_is_marked() -> None:
    cut = end("incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"})
    events = read(CREATED, added(call()), arguments('{"a'), cut)
    assert events[-2:] == [ToolCallEnd(complete=False), StreamEnd("length", "incomplete")]
    events = read(CREATED, added(call()), arguments('{"a'), done(call('{"a', status="incomplete")), cut)
    assert events[-2:] == [ToolCallEnd(complete=False), StreamEnd("length", "incomplete")]
    assert read(CREATED, arguments('{"a'), cut)[-1] == StreamEnd("length", "incomplete")


def test_a_call_without_a_name_is_an_error() -> None:
    for events in ([arguments("{}"), COMPLETED], [done(call(name=""))], [added(call(name="")), COMPLETED]):
        last = read(CREATED, *events)[-1]
        assert isinstance(last, StreamError)
        assert last.code == "tool_call_without_name"


def test_held_arguments_have_a_limit() -> None:
    last = read(CREATED, arguments("x" * 30), arguments("x" * 30), limits=Limits(block_chars=50))[-1]
    assert isinstance(last, StreamError)
    assert last.code == "limit_block_chars"


# --- tools that the provider runs


def server(item: dict[str, Any], before: dict[str, Any] | None = None) -> list[Event]:
    return body(added(before if before is not None else item), done(item))


def test_a_remote_tool() -> None:
    before = {"type": "mcp_call", "id": "mcp_1", "name": "roll", "arguments": ""}
    item = {**before, "arguments": '{"d":6}', "output": "4"}
    delta = {"type": "response.mcp_call_arguments.delta", "output_index": 0, "item_id": "mcp_1", "delta": '{"d":6}'}
    assert body(added(before), delta, {**delta, "type": "response.mcp_call_arguments.done"}, done(item)) == [
        ToolCallStart("mcp_1", "roll", "server", Echo(NAME, before)),
        ToolCallDelta('{"d":6}'),
        ToolCallEnd(Echo(NAME, item)),
        ToolResult("mcp_1", "4", native=Echo(NAME, item)),
    ]
    failed = {**item, "output": None, "error": {"message": "no dice"}}
    assert server(failed)[-1] == ToolResult("mcp_1", "no dice", True, Echo(NAME, failed))
    assert server({**failed, "error": "boom"})[-1] == ToolResult("mcp_1", "boom", True, Echo(NAME, {**failed, "error": "boom"}))


LOGS = [{"type": "logs", "logs": "one"}]


@pytest.mark.parametrize(
    ("item", "name", "given", "result"),
    [
        ({"type": "web_search_call", "action": {"query": "x"}}, "web_search", {"action": {"query": "x"}}, None),
        ({"type": "file_search_call", "queries": ["q"], "results": [{"a": 1}]}, "file_search", {"queries": ["q"]}, '[{"a":1}]'),
        ({"type": "code_interpreter_call", "code": "1", "outputs": LOGS}, "code_interpreter", {"code": "1"}, "one"),
        ({"type": "tool_search_call", "arguments": {"paths": ["a"]}}, "tool_search", {"paths": ["a"]}, None),
        ({"type": "computer_call", "call_id": "c", "status": "failed"}, "computer", {}, ""),
        ({"type": "mcp_list_tools", "tools": ["odd"]}, "mcp_list_tools", {}, '["odd"]'),
    ],
)  # fmt: skip
def test_server_tools(item: dict[str, Any], name: str, given: Any, result: str | None) -> None:
    events = server(item)
    assert isinstance(events[0], ToolCallStart)
    assert (events[0].name, events[0].kind) == (name, "server")
    assert isinstance(events[1], ToolCallDelta)
    assert json.loads(events[1].args) == given
    assert events[2] == ToolCallEnd(Echo(NAME, item))
    assert [event.content for event in events[3:] if isinstance(event, ToolResult)] == ([] if result is None else [result])
    assert read(CREATED, done(item), COMPLETED)[-1] == StreamEnd("end", "completed")


def test_halves_of_surrogates_in_what_a_tool_was_given() -> None:
    events = body('data: {"type":"response.output_item.done","item":{"type":"shell_call","action":{"a":"\\ud83d"}}}\n\n')
    assert events[1] == ToolCallDelta('{"action":{"a":"\ufffd"}}')


def test_images_and_sound() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "result": "QUJD", "output_format": "webp"}
    assert server(item)[-1] == Media("image/webp", "QUJD", id="ig_1")
    assert server({**item, "result": None})[-1] == ToolCallEnd(Echo(NAME, {**item, "result": None}))
    sound = {"type": "response.audio.delta", "delta": "QUJD"}
    words = {"type": "response.audio.transcript.delta", "delta": "abc"}
    assert body(sound, words, {"type": "response.audio.done"}, {**sound, "delta": 5}) == [
        Media("audio/*", "QUJD", id="audio"),
        Media("audio/*", id="audio", transcript="abc"),
    ]


def test_results_that_are_items_wait_for_open_blocks() -> None:
    item = {"type": "shell_call_output", "id": "sho_1", "call_id": "c", "output": [{"stdout": "a", "stderr": "b"}]}
    result = ToolResult("c", "ab", native=Echo(NAME, item))
    assert body(done(item)) == [result]
    assert body(text("Hi", 1), done(item)) == [*HI, result]
    assert body(text("Hi", 1), done(item), done(message("Hi"), 1)) == [*HI, result]
    assert read(done(item), COMPLETED) == [StreamStart(), result, StreamEnd("end", "completed")]
    plain = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}
    assert body(done(plain)) == [ToolResult("c", "x", native=Echo(NAME, plain))]


# --- other events


def test_keep_alives_and_unknown_events() -> None:
    odd = {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "w", "sequence_number": 3, "note": 1}
    events = read({"type": "ping"}, odd, CREATED, {"type": "keepalive"}, ": hm\n\n", odd, text("Hi"), {"delta": "x"}, COMPLETED)
    assert events[:5] == [
        KeepAlive("ping"),
        START,
        KeepAlive("keepalive"),
        KeepAlive("hm"),
        Extra(NAME, {"event": {"type": "response.web_search_call.searching", "note": 1}}),
    ]


def test_empty_and_mistyped_things_are_skipped() -> None:
    assert body(
        text(""),
        text(5),  # type: ignore[arg-type]  # a wrong type
        added({}),
        done({}),
        {"type": "response.output_item.added"},
        {"type": "response.content_part.done", "part": {"type": "odd"}},
        {"type": "response.content_part.done", "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.done", "text": None},
        {"type": "response.output_item.done", "item": "odd", "output_index": "x"},
        end(output=[5, {}, {"type": 7}, {"type": "message", "content": "odd"}], usage={"input_tokens": "x"}),
    ) == [Usage(raw={"input_tokens": "x"})]


# --- ends


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (end("incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"}), StreamEnd("length", "incomplete")),
        (end("incomplete", incomplete_details={"reason": "content_filter"}), StreamEnd("content_filter", "incomplete")),
        (end(None, "incomplete", incomplete_details="odd"), StreamEnd("other", None)),
        (end("cancelled", "cancelled"), StreamEnd("cancelled", "cancelled")),
        (end("in_progress", "done"), StreamEnd("end", "in_progress")),
    ],
)
def test_ends(last: dict[str, Any], expected: StreamEnd) -> None:
    assert read(CREATED, text("Hi"), last) == [START, *HI, expected]


@pytest.mark.parametrize(
    ("last", "code", "status"),
    [
        ({"type": "error", "code": "server_error", "message": "sorry", "param": None}, "server_error", 500),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "sorry"}}, "rate_limit_error", 429),
        ({"error": {"message": "sorry", "code": 503}}, "overloaded", 503),
        (end("failed", "failed", error={"code": "rate_limit_exceeded", "message": "sorry"}), "rate_limit_exceeded", 429),
        (end("failed", error={"code": "server_error", "message": "sorry"}), "server_error", 500),
    ],
)
def test_errors(last: dict[str, Any], code: str, status: int) -> None:
    events = read(CREATED, text("Hi"), last)
    assert events[:-1] == [START, *HI[:-1], TextEnd(complete=False)]
    assert isinstance(events[-1], StreamError)
    assert (events[-1].code, events[-1].message, events[-1].status) == (code, "sorry", status)


def test_a_failure_without_a_reason() -> None:
    last = read(CREATED, end("failed", "failed"))[-1]
    assert isinstance(last, StreamError)
    assert "failed" in last.message


@pytest.mark.parametrize("events", [[], [text("Hi")], [text("Hi"), done(message("Hi"))], ["data: [DONE]\n\n"], [added(call())]])
def test_a_stream_without_its_own_end_is_cut(events: list[Any]) -> None:
    last = read(CREATED, *events)[-1]
    assert isinstance(last, StreamError)
    assert last.code == "upstream_truncated"


def test_no_json_and_no_object() -> None:
    for data in ("data: {nope\n\n", "data: [1]\n\n", "data: 5\n\n"):
        assert isinstance(read(CREATED, data, COMPLETED)[-1], StreamError)


def test_a_pair_of_surrogates_cut_between_two_deltas() -> None:
    halves = [f'data: {{"type":"response.output_text.delta","delta":"{half}"}}\n\n' for half in ("\\ud83d", "\\ude00")]
    events = body(*halves, done(message("\U0001f600")))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "\U0001f600"


# --- response objects


def test_a_body_instead_of_a_stream() -> None:
    whole = {**CREATED["response"], "status": "completed", "output": [message("Hi")]}  # type: ignore[dict-item]  # the value is a dict
    data = json.dumps(whole).encode()
    assert [event for event in every_cut(ResponsesReader, data) if not isinstance(event, Extra)] == [
        START,
        *HI,
        StreamEnd("end", "completed"),
    ]
    response = streamglot.dialect(NAME).parse_response(whole)
    assert (response.id, response.choices[0].text, response.choices[0].raw_stop_reason) == ("resp_1", "Hi", "completed")


@pytest.mark.parametrize(
    ("whole", "code"),
    [
        ({"status": "queued", "output": []}, "upstream_truncated"),
        ({"hello": 1}, "upstream_protocol_error"),
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, "server_error"),
    ],
)
def test_bodies_that_are_not_an_answer(whole: dict[str, Any], code: str) -> None:
    last = feed_all(ResponsesReader(), [json.dumps(whole).encode()])[-1]
    assert isinstance(last, StreamError)
    assert last.code == code


def test_a_cancelled_body() -> None:
    assert feed_all(ResponsesReader(), [b'{"status":"cancelled"}'])[-1] == StreamEnd("cancelled", "cancelled")
