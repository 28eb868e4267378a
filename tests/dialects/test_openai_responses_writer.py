"""Writes Responses streams, checked as bytes and with the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

import streamglot
from response_server import serve_response
from streamglot.dialects.common.server_tools import ApprovalPrompt, asking
from streamglot.dialects.common.state import pack
from streamglot.dialects.openai_responses.read import ResponsesReader
from streamglot.dialects.openai_responses.response import build
from streamglot.dialects.openai_responses.write import ResponsesWriter
from vocabulary import *

NAME = "openai_responses"
START = StreamStart("resp_1", "m", 7)
HI: list[Event] = [TextStart(), TextDelta("Hi"), TextEnd()]


def write(*events: Event, **options: Any) -> bytes:
    writer = ResponsesWriter(**options)
    return b"".join(writer.feed([event]) for event in events) + writer.close()


def payloads_of(*events: Event, last: Event | None = None, **options: Any) -> list[dict[str, Any]]:
    """The payloads; each has its own event name, and they are numbered from 0."""
    wire = write(START, *events, StreamEnd() if last is None else last, **options)
    return payloads(wire)


def payloads(wire: bytes) -> list[dict[str, Any]]:
    frames = [frame.split(b"\n") for frame in wire.split(b"\n\n") if frame and not frame.startswith(b":")]
    written = [json.loads(data.removeprefix(b"data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [b"event: " + event["type"].encode() for event in written]
    assert [event["sequence_number"] for event in written] == list(range(len(written)))
    return written


def output(*events: Event, last: Event | None = None, **options: Any) -> list[dict[str, Any]]:
    written = payloads_of(*events, last=last, **options)
    items: list[dict[str, Any]] = written[-1]["response"]["output"]
    half = [item for item in items if item["type"].endswith("call") and item.get("status") == "incomplete" and "name" in item]
    finished = [event["item"] for event in written if event["type"] == "response.output_item.done"]
    assert finished == [item for item in items if item not in half], "no event says that half a call is done"
    assert [event["output_index"] for event in written if event["type"] == "response.output_item.added"] == list(
        range(len(items))
    )
    return items


def lost(*events: Event, **options: Any) -> dict[str, int]:
    writer = ResponsesWriter(**options)
    writer.feed([START, *events, StreamEnd()])
    return dict(writer.lost)


def kinds(written: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in written]


def message(text: str, number: int = 0, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": f"msg_sglot_resp1_{number}", "type": "message", "status": "completed", "role": "assistant"}
    return {**item, "content": [part], **more}


# --- the lifecycle


def test_a_text_byte_by_byte() -> None:
    written = payloads_of(*HI)
    place = {"item_id": "msg_sglot_resp1_0", "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert written[2:-1] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**message("Hi"), "status": "in_progress", "content": []},
            "sequence_number": 2,
        },
        {"type": "response.content_part.added", **place, "part": empty, "sequence_number": 3},
        {"type": "response.output_text.delta", **place, "delta": "Hi", "logprobs": [], "sequence_number": 4},
        {"type": "response.output_text.done", **place, "text": "Hi", "logprobs": [], "sequence_number": 5},
        {"type": "response.content_part.done", **place, "part": {**empty, "text": "Hi"}, "sequence_number": 6},
        {"type": "response.output_item.done", "output_index": 0, "item": message("Hi"), "sequence_number": 7},
    ]
    assert kinds(written[:2]) == ["created", "in_progress"]
    response = written[0]["response"]
    assert (response["id"], response["model"], response["created_at"]) == ("resp_1", "m", 7)
    assert (response["object"], response["status"], response["output"], response["usage"]) == (
        "response",
        "in_progress",
        [],
        None,
    )
    assert {"parallel_tool_calls", "tool_choice", "tools", "error", "incomplete_details", "metadata"} <= set(response)
    assert written[-1]["type"] == "response.completed"
    assert written[-1]["response"]["status"] == "completed"
    assert written[-1]["response"]["output"] == [message("Hi")]


def test_the_start_goes_out_with_the_first_feed_and_an_empty_stream_is_whole() -> None:
    writer = ResponsesWriter(model="m")
    assert kinds(payloads(writer.feed([StreamStart()]))) == ["created", "in_progress"]
    assert writer.feed([]) == b""
    assert kinds(payloads(write(StreamEnd()))) == ["created", "in_progress", "completed"]


def test_a_response_before_its_stream() -> None:
    """Showing the response is not an event: the stream begins as usual."""
    looked, plain = (ResponsesWriter(id="resp_1", model="m", mirror={"background": True}) for _ in range(2))
    shown = looked.queued()
    assert (shown["id"], shown["status"], shown["background"], shown["output"]) == ("resp_1", "queued", True, [])
    events: list[Event] = [StreamStart("resp_1", "m"), StreamEnd()]
    assert looked.feed(events) == plain.feed(events)


def test_fields_that_the_response_repeats() -> None:
    writer = ResponsesWriter(mirror={"instructions": "Be kind", "status": "odd", "conversation": "c1"})
    written = payloads(writer.feed([START, Extra(NAME, {"response": {"tools": [1], "output": 5}})]))
    assert written[0]["response"]["instructions"] == "Be kind"
    assert written[0]["response"]["conversation"] == {"id": "c1"}
    assert written[0]["response"]["tools"] == [1]
    assert written[0]["response"]["status"] == "in_progress"
    assert written[0]["response"]["output"] == []


@pytest.mark.parametrize(
    ("reason", "kind", "status", "details"),
    [
        ("end", "completed", "completed", None),
        ("tool_calls", "completed", "completed", None),
        ("pause", "completed", "completed", None),
        ("length", "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", "incomplete", {"reason": "content_filter"}),
        ("cancelled", "incomplete", "cancelled", None),
    ],
)
def test_ends(reason: Any, kind: str, status: str, details: Any) -> None:
    last = payloads_of(*HI, last=StreamEnd(reason))[-1]
    assert last["type"] == f"response.{kind}"
    assert (last["response"]["status"], last["response"]["incomplete_details"]) == (status, details)
    assert last["response"]["output"][0]["status"] == ("incomplete" if details else "completed")


def test_usage_has_all_its_details() -> None:
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert payloads_of(Usage(5, 3))[-1]["response"]["usage"] == usage
    full = payloads_of(Usage(5, 3, 2, 1, 1))[-1]["response"]["usage"]
    assert full["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 1}
    assert full["output_tokens_details"] == {"reasoning_tokens": 1}
    own = payloads_of(Usage(5, 3, raw={"input_tokens": 5, "total_tokens": 9, "cost": 1}))[-1]["response"]["usage"]
    assert (own["cost"], own["total_tokens"]) == (1, 9)
    odd = payloads_of(Usage(5, 3, raw={"input_tokens": 5, "total_tokens": 0.5}))[-1]["response"]["usage"]
    assert odd["total_tokens"] == 8
    assert payloads_of(Usage())[-1]["response"]["usage"] is None


def test_errors() -> None:
    error = StreamError("overloaded_error", "sorry", status=529)
    written = payloads_of(TextStart(), TextDelta("Hi"), TextEnd(), last=error)
    assert kinds(written)[-2:] == ["output_text.delta", "failed"]
    assert written[-1]["response"]["error"] == {"code": "overloaded_error", "message": "sorry"}
    assert written[-1]["response"]["output"][0]["status"] == "incomplete"
    assert payloads_of(last=error, strict=True)[-1]["response"]["error"]["code"] == "server_error"
    bare = payloads(write(KeepAlive(), error))
    flat = {"code": "overloaded_error", "message": "sorry", "param": None}
    assert bare == [{"type": "error", **flat, "error": {"type": "server_error", **flat}, "sequence_number": 0}]
    assert payloads(write(StreamError("x", "sorry", status=404)))[0]["error"]["type"] == "invalid_request_error"
    continued = json.loads(ResponsesWriter(id="resp_1", sequence=7).feed([error]).partition(b"data: ")[2])
    assert (continued["type"], continued["sequence_number"], continued["response"]["id"]) == ("response.failed", 7, "resp_1")
    assert payloads(write(StreamError("x", "sorry", status=401)))[0]["error"]["type"] == "authentication_error"
    assert payloads(write(START))[-1]["type"] == "response.failed"


def test_keep_alive_is_a_comment() -> None:
    assert write(KeepAlive("hm"), START, StreamEnd()).startswith(b": hm\n\nevent: response.created\n")


# --- texts


def test_texts_side_by_side_are_parts_of_one_message() -> None:
    items = output(*HI, TextStart(), TextEnd(), TextStart(refusal=True), TextDelta("No"), TextEnd())
    parts = [*message("Hi")["content"], {"type": "refusal", "refusal": "No"}]
    assert items == [{**message(""), "content": parts}]
    written = payloads_of(TextStart(refusal=True), TextDelta("No"), TextEnd())
    assert kinds(written)[3:7] == ["content_part.added", "refusal.delta", "refusal.done", "content_part.done"]


def test_our_own_ids_and_phases_are_kept() -> None:
    hint = {"type": "message", "id": "msg_a", "phase": "commentary"}
    echo = Echo(NAME, hint)
    items = output(
        Extra(NAME, {"item": hint}), TextStart(), TextDelta("a"), TextEnd(echo),
        Extra(NAME, {"item": {"type": "message", "id": "msg_b"}}), *HI,
        Extra(NAME, {"item": {"type": "message", "id": "msg_b"}}), *HI,
        TextStart(), TextEnd(Echo(NAME, {"type": "message"})),
    )  # fmt: skip
    ids = [("msg_a", "commentary"), ("msg_b", None), ("msg_sglot_resp1_2", None)]
    assert [(item["id"], item.get("phase")) for item in items] == ids
    assert output(*HI[:2], TextEnd(echo))[0]["phase"] == "commentary"


def test_annotations() -> None:
    file = {"type": "file_citation", "file_id": "f", "filename": "a", "index": 1}
    link = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "X", "url": "http://x"}
    cited = [Citation("http://x", "X", end=2), Citation(native=Echo("azure", file))]
    assert output(*HI[:2], *cited, TextEnd())[0]["content"][0]["annotations"] == [link, file]
    assert output(*HI, *cited)[0]["content"][0]["annotations"] == [link, file]
    assert output(*cited)[0]["content"][0] == {"type": "output_text", "text": "", "annotations": [link, file], "logprobs": []}
    written = payloads_of(*HI[:2], cited[0], TextEnd())
    added = next(event for event in written if event["type"] == "response.output_text.annotation.added")
    assert (added["annotation_index"], added["annotation"], added["content_index"]) == (0, link, 0)
    nested = Echo("elsewhere", {"type": "url_citation", "url_citation": {"url": "http://x"}})
    assert output(*HI[:2], Citation("http://x", "X", end=2, native=nested), TextEnd())[0]["content"][0]["annotations"] == [link]
    assert lost(Citation(cited_text="x")) == {"Citation": 1}
    assert lost(TextStart(refusal=True), TextDelta("No"), cited[0], TextEnd()) == {"Citation": 1}


def test_logprobs_stand_with_their_delta() -> None:
    probs = [{"token": "Hi", "logprob": -1}]
    written = payloads_of(TextStart(), Extra(NAME, {"logprobs": probs}), TextDelta("Hi"), TextDelta("!"), TextEnd())
    assert [event["logprobs"] for event in written if event["type"] == "response.output_text.delta"] == [probs, []]
    assert written[-1]["response"]["output"][0]["content"][0]["logprobs"] == probs


# --- reasoning


def thought(text: str, echo: Echo | None = None, summary: bool = True) -> list[Event]:
    return [ReasoningStart(summary), ReasoningDelta(text), ReasoningEnd(echo)]


def test_summaries_are_parts_of_one_item_with_its_state() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e", "status": "odd"}
    items = output(Extra(NAME, {"item": item}), *thought("a"), *thought("b", Echo(NAME, item)), *HI)
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    written = {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": summary, "encrypted_content": "e"}
    assert items == [written, message("Hi", 1)]
    thoughts = [*thought("a")[:2], *thought("a")[1:]]
    written_kinds = kinds(payloads_of(*thoughts))[3:7]
    delta = "reasoning_summary_text.delta"
    assert written_kinds == ["reasoning_summary_part.added", delta, delta, "reasoning_summary_text.done"]


def test_state_of_another_provider_is_packed() -> None:
    echo = Echo("anthropic", {"signature": "s"})
    item = output(*thought("a", echo, summary=False))[0]
    assert item["content"] == [{"type": "reasoning_text", "text": "a"}]
    assert item["encrypted_content"] == pack(echo)
    unknown = Echo(NAME, {"type": "reasoning", "id": "rs_1", "encrypted_content": "e"})
    assert output(*thought("a", unknown))[0]["encrypted_content"] == pack(unknown)
    hidden = output(ReasoningStart(), ReasoningEnd(echo, redacted=True))[0]
    assert (hidden["summary"], hidden["encrypted_content"]) == ([], pack(echo))
    assert lost(ReasoningStart(), ReasoningEnd(redacted=True), ReasoningStart(), ReasoningEnd()) == {"ReasoningEnd": 1}


def test_compaction_is_an_item_of_its_own() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "e"}
    assert output(*HI, ReasoningStart(), ReasoningEnd(Echo(NAME, item), redacted=True)) == [message("Hi"), item]


def test_state_of_a_call_or_a_text_is_carried_by_a_reasoning_item() -> None:
    echo = Echo("gemini", {"sig": "s"})
    items = output(ToolCallStart("c", "f"), ToolCallEnd(echo), TextStart(), TextDelta("Hi"), TextEnd(echo))
    assert [item["type"] for item in items] == ["function_call", "reasoning", "message", "reasoning"]
    assert items[1]["encrypted_content"] == pack(Echo("gemini", {"call_id": "c", "echo": {"sig": "s"}}))
    assert items[3]["encrypted_content"] == pack(Echo("gemini", {"call_id": "", "echo": {"sig": "s"}}))


# --- calls


def test_a_call() -> None:
    written = payloads_of(
        ToolCallStart("c", "f"), ToolCallDelta('{"a"'), ToolCallDelta(":1}"), ToolCallEnd(), last=StreamEnd("tool_calls")
    )
    place = {"item_id": "fc_sglot_resp1_0", "output_index": 0}
    assert kinds(written)[2:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    item = {"id": "fc_sglot_resp1_0", "type": "function_call", "call_id": "c", "name": "f"}
    assert written[2]["item"] == {**item, "status": "in_progress", "arguments": ""}
    assert written[5] == {**written[5], **place, "arguments": '{"a":1}', "name": "f"}
    assert written[-1]["response"]["output"] == [{**item, "status": "completed", "arguments": '{"a":1}'}]


def test_calls_of_every_kind() -> None:
    native = Echo(NAME, {"type": "function_call", "id": "fc_1", "namespace": "crm"})
    items = output(
        ToolCallStart("c", "f", native=native), ToolCallEnd(native),
        ToolCallStart("c", "f"), ToolCallDelta('{"a'), ToolCallEnd(complete=False),
        ToolCallStart("d", "run", "custom"), ToolCallDelta("print"), ToolCallEnd(),
        StepEnd(1),
    )  # fmt: skip
    written = payloads_of(ToolCallStart("c", "f"), ToolCallDelta('{"a'), ToolCallEnd(complete=False), last=StreamEnd("other"))
    assert kinds(written)[2:] == ["output_item.added", "function_call_arguments.delta", "incomplete"]
    function: dict[str, Any] = {"type": "function_call", "name": "f"}
    custom = {"type": "custom_tool_call", "name": "run", "input": "print"}
    assert items == [
        {**function, "id": "fc_1", "call_id": "c", "status": "completed", "namespace": "crm", "arguments": "{}"},
        {**function, "id": "fc_sglot_resp1_1", "call_id": "c_1", "status": "incomplete", "arguments": '{"a'},
        {**custom, "id": "ctc_sglot_resp1_2", "call_id": "d", "status": "completed"},
    ]


def test_server_tools_are_written_as_they_came() -> None:
    before = {"type": "mcp_call", "id": "mcp_1", "name": "roll", "arguments": ""}
    item = {**before, "arguments": '{"d":6}', "output": "4"}
    events: list[Event] = [
        ToolCallStart("mcp_1", "roll", "server", Echo("azure", before)),
        ToolCallDelta('{"d":6}'),
        Extra(NAME, {"event": {"type": "response.mcp_call.in_progress"}}),
        ToolCallEnd(Echo("azure", item)),
        ToolResult("mcp_1", "4", native=Echo("azure", item)),
    ]
    assert output(*events) == [{**item, "status": "completed"}], "clients want a status that the provider leaves out"
    assert output(*events[:3], ToolCallEnd(Echo("azure", {**item, "status": "failed"})))[0]["status"] == "failed"
    written = payloads_of(*events)
    assert written[2]["item"]["status"] == "in_progress"
    names = ["mcp_call_arguments.delta", "mcp_call.in_progress", "mcp_call_arguments.done", "output_item.done"]
    assert kinds(written)[3:7] == names
    assert (written[4]["item_id"], written[4]["output_index"]) == ("mcp_1", 0)
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    start = ToolCallStart("ws_1", "web_search", "server", Echo(NAME, search))
    assert output(start, ToolCallDelta("{}"), ToolCallEnd(Echo(NAME, search))) == [search]
    assert output(start, ToolCallEnd()) == [{**search, "status": "incomplete"}]
    other = Echo("another", {})
    call = (ToolCallStart("x", "web_search", "server", other), ToolCallDelta("{}"), ToolCallEnd())
    foreign: list[Event] = [*call, ToolResult("x", "y", native=other)]
    assert lost(*foreign) == {"ToolCallStart": 1, "ToolResult": 1}


def test_results() -> None:
    own = {"type": "shell_call_output", "id": "sho_1", "call_id": "s", "output": []}
    items = output(
        ToolCallStart("c", "f"), ToolCallEnd(), ToolResult("c", "yes"),
        ToolCallStart("d", "run", "custom"), ToolCallEnd(), ToolResult("d", "no"),
        ToolResult("s", "", native=Echo(NAME, own)),
    )  # fmt: skip
    assert items[1] == {
        "type": "function_call_output",
        "call_id": "c",
        "output": "yes",
        "status": "completed",
        "id": "fco_sglot_resp1_1",
    }
    assert (items[3]["type"], items[3]["output"], items[4]) == ("custom_tool_call_output", "no", own)


# --- other events


def test_images_wait_for_the_end_of_the_text() -> None:
    picture = {"id": "ig_sglot_resp1_1", "type": "image_generation_call", "status": "completed", "result": "QUJD"}
    assert output(TextStart(), TextDelta("Hi"), Media("image/png", "QUJD"), TextEnd()) == [
        message("Hi"),
        {**picture, "output_format": "png"},
    ]
    assert output(Media("image/*", "QUJD")) == [{**picture, "id": "ig_sglot_resp1_0"}]
    item = {"type": "image_generation_call", "id": "ig_1", "result": "QUJD"}
    native = Echo(NAME, item)
    assert output(ToolCallStart("ig_1", "x", "server", native), ToolCallEnd(native), Media("image/png", "QUJD", id="ig_1")) == [
        item
    ]
    assert lost(Media("image/png", url="http://x"), Media("video/mp4", "QUJD")) == {"Media": 2}


def test_sound() -> None:
    written = payloads_of(Media("audio/wav", "QUJD"), Media("audio/wav", transcript="abc"))
    assert kinds(written)[2:-1] == ["audio.delta", "audio.transcript.delta", "audio.done", "audio.transcript.done"]


def test_events_that_cannot_be_expressed_are_counted() -> None:
    assert lost(Extra("other", {"x": 1}), Choice(1, TextStart())) == {"Extra": 1, "TextStart": 1}
    odd = Extra(NAME, {"event": {"note": 1}})
    assert payloads_of(odd)[2] == {"type": "response.extra", "note": 1, "sequence_number": 2}
    assert lost(odd, strict=True) == {"Extra": 1}
    assert ResponsesWriter().feed([KeepAlive()]) == b": ping\n\n"


def test_reading_back_what_was_written() -> None:
    events: list[Event] = [
        START,
        *thought("hm"),
        *HI,
        ToolCallStart("c", "f"),
        ToolCallDelta('{"a":1}'),
        ToolCallEnd(),
        Usage(5, 3),
        StreamEnd("tool_calls"),
    ]
    reader = ResponsesReader()
    back = streamglot.collect(reader.feed(write(*events)) + reader.close())
    first = streamglot.collect(events)
    assert [(type(part), getattr(part, "text", "")) for part in back.choices[0].parts] == [
        (type(part), getattr(part, "text", "")) for part in first.choices[0].parts
    ]
    assert back.choices[0].stop_reason == "tool_calls"
    assert (back.usage.input_tokens, back.usage.output_tokens) == (5, 3)


# --- response objects


def test_a_complete_response_is_the_end_of_the_stream() -> None:
    events = [START, *HI, Usage(5, 3), StreamEnd("end", "completed")]
    body = build(streamglot.collect(events), mirror={"instructions": "x"})
    assert body == {**payloads(write(*events))[-1]["response"], "instructions": "x"}
    error = StreamError("server_error", "sorry", status=500)
    assert build(streamglot.collect([START, error]))["error"]["message"] == "sorry"
    failed = build(streamglot.collect([START, *HI, error]))
    assert (failed["status"], failed["error"]["code"], len(failed["output"])) == ("failed", "server_error", 1)
    again = streamglot.dialect(NAME).parse_response(body)
    assert again.choices[0].text == "Hi"
    assert streamglot.dialect(NAME).build_response(again)["output"][0]["content"] == body["output"][0]["content"]


# --- the official client


def client_reads(wire: bytes) -> tuple[list[Any], Any]:
    with serve_response(wire, "text/event-stream") as address:
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        with client.responses.stream(model="m", input="x") as stream:
            return list(stream), stream


def test_the_official_client_takes_it_all() -> None:
    echo = Echo("anthropic", {"signature": "s"})
    wire = write(
        START, KeepAlive(), *thought("a", echo), *thought("b"), *HI[:2], Citation("http://x", "X"), HI[2],
        ToolCallStart("c", "f"), ToolCallDelta('{"a":1}'), ToolCallEnd(echo),
        ToolCallStart("c", "g"), ToolCallDelta("{}"), ToolCallEnd(), ToolResult("c", "1"),
        ToolCallStart("d", "run", "custom"), ToolCallDelta("x"), ToolCallEnd(), Media("image/png", "QUJD"),
        Usage(5, 3), StreamEnd("tool_calls"),
    )  # fmt: skip
    events, stream = client_reads(wire)
    final = stream.get_final_response()
    assert final.output_text == "Hi"
    assert [(item.name, item.arguments) for item in final.output if item.type == "function_call"] == [
        ("f", '{"a":1}'),
        ("g", "{}"),
    ]
    assert (final.usage.input_tokens, final.usage.output_tokens, final.usage.total_tokens) == (5, 3, 8)
    assert [event.snapshot for event in events if event.type == "response.output_text.delta"] == ["Hi"]


def test_the_official_client_sees_a_failure() -> None:
    events, _ = client_reads(write(START, *HI, StreamError("server_error", "sorry", status=500)))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "sorry"
    with pytest.raises(openai.APIError, match="sorry"):
        client_reads(write(StreamError("server_error", "sorry", status=500)))


# --- approvals


def test_a_question_about_a_call_is_an_approval_request() -> None:
    question = asking(ApprovalPrompt("q", "call_a", "May I?", name="rm", arguments="{}"))
    request = {"type": "mcp_approval_request", "id": "q", "server_label": "streamglot", "name": "rm", "arguments": "{}"}
    assert output(*HI, question) == [message("Hi"), request]
    assert output(question) == [request]
    assert lost(asking(ApprovalPrompt("q", "call_a"))) == {"Extra": 1}
