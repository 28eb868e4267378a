"""The writer of the UI message stream and the parser of chat transport requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from streamglot import ConfigError, RequestError, dialect, writer
from streamglot.dialects.common.server_tools import ApprovalPrompt, asking
from streamglot.dialects.common.state import pack
from streamglot.dialects.common.writer import Writer
from streamglot.dialects.vercel_ui.request import parse
from streamglot.dialects.vercel_ui.wire import error_body
from vocabulary import *

START = StreamStart("c-1", "model-1", 5)
SIGNED = Echo("elsewhere", {"signature": "S"})
PACKED = {"providerMetadata": {"streamglot": {"echo": pack(SIGNED)}}}
OPENING = [{"type": "start", "messageId": "c-1", "messageMetadata": {"model": "model-1"}}, {"type": "start-step"}]


def make(**options: Any) -> Writer:
    return writer("vercel_ui", **options)


def read(written: bytes) -> list[dict[str, Any]]:
    frames = written.decode().split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]


def write(events: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    """Writes the events together and one by one; the bytes must be the same, and the last frame is [DONE]."""
    box = make(**options)
    written = box.feed(events) + box.close()
    single = make(**options)
    assert b"".join(single.feed([event]) for event in events) + single.close() == written
    assert written.endswith(b"data: [DONE]\n\n")
    return read(written.removesuffix(b"data: [DONE]\n\n"))


def inside(events: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    """The parts inside the only step."""
    written = write([START, *events, StreamEnd("end")], **options)
    assert written[:2] == OPENING
    assert [part["type"] for part in written[-2:]] == ["finish-step", "finish"]
    return written[2:-2]


class TestMessage:
    def test_a_minimal_case(self) -> None:
        finish = {"type": "finish", "finishReason": "stop", "messageMetadata": {"finishReason": "end"}}
        assert write([START, StreamEnd()]) == [*OPENING, {"type": "finish-step"}, finish]

    def test_no_id_and_no_model(self) -> None:
        assert write([StreamEnd()])[0] == {"type": "start"}

    def test_a_given_id(self) -> None:
        assert write([START, StreamEnd()], message_id="mine")[0]["messageId"] == "mine"

    def test_headers(self) -> None:
        assert make().headers["x-vercel-ai-ui-message-stream"] == "v1"

    def test_finish(self) -> None:
        written = write([START, Usage(10, 5, 2, 1, 3), StreamEnd("stop_sequence", "stop", "END")])
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "reasoningTokens": 3}
        assert written[-1]["messageMetadata"] == {
            "finishReason": "stop_sequence",
            "rawFinishReason": "stop",
            "stopSequence": "END",
            "usage": {**usage, "cachedInputTokens": 2, "cacheWriteInputTokens": 1},
        }

    @pytest.mark.parametrize(
        ("reason", "word"),
        [
            ("end", "stop"),
            ("length", "length"),
            ("tool_calls", "tool-calls"),
            ("content_filter", "content-filter"),
            ("refusal", "content-filter"),
            ("pause", "other"),
            ("other", "other"),
        ],
    )
    def test_reasons(self, reason: Any, word: str) -> None:
        assert write([START, StreamEnd(reason)])[-1]["finishReason"] == word

    def test_cancelled(self) -> None:
        metadata = {"type": "message-metadata", "messageMetadata": {"usage": {"inputTokens": 1}}}
        assert write([START, Usage(1), StreamEnd("cancelled")])[-2:] == [metadata, {"type": "abort", "reason": "cancelled"}]
        assert write([START, StreamEnd("cancelled", "gone")])[-2:] == [
            {"type": "finish-step"},
            {"type": "abort", "reason": "gone"},
        ]

    def test_steps(self) -> None:
        text = [TextStart(), TextDelta("a"), TextEnd()]
        written = write([START, *text, StepEnd(1), *text, StreamEnd()])
        step = ["start-step", "text-start", "text-delta", "text-end", "finish-step"]
        assert [part["type"] for part in written] == ["start", *step, *step, "finish"]
        assert [part["id"] for part in written if part["type"] == "text-end"] == ["text-1", "text-2"]

    def test_keep_alive(self) -> None:
        assert make().feed([KeepAlive(), KeepAlive("x")]) == b": keep-alive\n\n: x\n\n"

    def test_other_choices_are_counted(self) -> None:
        box = make()
        box.feed([START, Choice(1, TextDelta("a"))])
        assert box.lost == {"TextDelta": 1}


class TestText:
    def test_text(self) -> None:
        assert inside([TextStart(), TextDelta("a"), TextDelta("é"), TextEnd()]) == [
            {"type": "text-start", "id": "text-1"},
            {"type": "text-delta", "id": "text-1", "delta": "a"},
            {"type": "text-delta", "id": "text-1", "delta": "é"},
            {"type": "text-end", "id": "text-1"},
        ]

    def test_no_part_without_text(self) -> None:
        assert inside([TextStart(), TextEnd()]) == []

    def test_state_without_text(self) -> None:
        written = [{"type": "text-start", "id": "text-1"}, {"type": "text-end", "id": "text-1", **PACKED}]
        assert inside([TextStart(), TextEnd(SIGNED)]) == written

    def test_refusal(self) -> None:
        mark = {"providerMetadata": {"streamglot": {"refusal": True}}}
        written = inside([TextStart(refusal=True), TextDelta("no"), TextEnd()])
        assert written[0] == {"type": "text-start", "id": "text-1", **mark}

    def test_reasoning(self) -> None:
        mark = {"providerMetadata": {"streamglot": {"summary": True}}}
        assert inside([ReasoningStart(summary=True), ReasoningDelta("hm"), ReasoningEnd(SIGNED, redacted=True)]) == [
            {"type": "reasoning-start", "id": "reasoning-1", **mark},
            {"type": "reasoning-delta", "id": "reasoning-1", "delta": "hm"},
            {
                "type": "reasoning-end",
                "id": "reasoning-1",
                "providerMetadata": {"streamglot": {"summary": True, "redacted": True, "echo": pack(SIGNED)}},
            },
        ]

    def test_state_that_a_client_brought_is_written_as_it_was(self) -> None:
        own = Echo("vercel_ui", {"providerMetadata": {"p": {"signature": "S"}}})
        assert inside([ReasoningStart(), ReasoningEnd(own)])[-1]["providerMetadata"] == {"p": {"signature": "S"}}

    def test_sources(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        written = inside(
            [
                *(
                    TextStart(),
                    TextDelta("abc"),
                    Citation("http://x", "X", "ab", 0, 2),
                    Citation("", "Book", native=native),
                    TextEnd(),
                ),
                Citation("http://y", start=-1),
            ]
        )
        place = {"providerMetadata": {"streamglot": {"start": 0, "end": 2, "citedText": "ab"}}}
        assert written[2:] == [
            {"type": "source-url", "sourceId": "source-1", "url": "http://x", "title": "X", **place},
            {
                "type": "source-document",
                "sourceId": "source-2",
                "mediaType": "text/plain",
                "title": "Book",
                "providerMetadata": {"streamglot": {"native": pack(native)}},
            },
            {
                "type": "text-end",
                "id": "text-1",
                "citations": [
                    {
                        "source": {"type": "source", "sourceType": "url", "id": "source-1", "url": "http://x", "title": "X"},
                        "startIndex": 0,
                        "endIndex": 2,
                        "citedText": "ab",
                    },
                    {
                        "source": {
                            "type": "source",
                            "sourceType": "document",
                            "id": "source-2",
                            "mediaType": "text/plain",
                            "title": "Book",
                        }
                    },
                ],
            },
            {"type": "source-url", "sourceId": "source-3", "url": "http://y", "providerMetadata": {"streamglot": {"start": -1}}},
        ]

    def test_an_offset_that_the_client_refuses_is_left_out(self) -> None:
        written = inside([TextStart(), TextDelta("a"), Citation("http://x", start=-1, end=-1), TextEnd()])
        assert set(written[-1]["citations"][0]) == {"source"}

    def test_a_source_without_a_name_is_counted(self) -> None:
        box = make()
        box.feed([START, Citation(start=1)])
        assert box.lost == {"Citation": 1}

    def test_the_first_words_stand_for_a_title(self) -> None:
        written = inside([Citation(cited_text="long " * 40)])[0]
        assert (written["type"], len(written["title"])) == ("source-document", 80)

    def test_files(self) -> None:
        written = inside([Media("image/png", "AAAA"), Media("image/png", url="http://x")])
        assert [part["url"] for part in written] == ["data:image/png;base64,AAAA", "http://x"]

    def test_pieces_of_one_file_are_joined(self) -> None:
        pieces = [Media("audio/wav", "AA", id="q"), Media("audio/wav", "BB", id="q", transcript="hi")]
        written = inside([*pieces, TextStart(), TextDelta("a"), TextEnd()])[-1]
        metadata = {"providerMetadata": {"streamglot": {"transcript": "hi"}}}
        assert written == {"type": "file", "url": "data:audio/wav;base64,AABB", "mediaType": "audio/wav", **metadata}


class TestCalls:
    def test_a_call(self) -> None:
        head = {"toolCallId": "a", "toolName": "f", "dynamic": True}
        events = [ToolCallStart("a", "f"), ToolCallDelta('{"n":\n'), ToolCallDelta("12345678901234567890}"), ToolCallEnd(SIGNED)]
        assert inside(events) == [
            {"type": "tool-input-start", **head},
            {"type": "tool-input-delta", "toolCallId": "a", "inputTextDelta": '{"n":\n'},
            {"type": "tool-input-delta", "toolCallId": "a", "inputTextDelta": "12345678901234567890}"},
            {"type": "tool-input-available", **head, **PACKED, "input": {"n": 12345678901234567890}},
        ]

    def test_tools_that_the_frontend_knows(self) -> None:
        assert "dynamic" not in inside([ToolCallStart("a", "f"), ToolCallEnd()], dynamic=False)[0]

    def test_no_arguments(self) -> None:
        assert inside([ToolCallStart("a", "f"), ToolCallEnd()])[-1]["input"] == {}

    def test_a_custom_call(self) -> None:
        written = inside([ToolCallStart("a", "f", "custom"), ToolCallDelta("free {text"), ToolCallEnd()])
        assert written[0]["inputEncoding"] == "text"
        assert (written[-1]["type"], written[-1]["input"]) == ("tool-input-available", "free {text")
        assert written[-1]["providerMetadata"] == {"streamglot": {"kind": "custom"}}

    def test_a_call_of_the_provider(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        written = inside([ToolCallStart("a", "f", "server", native), ToolCallEnd(), ToolResult("a", "hit", native=native)])
        metadata = {"providerMetadata": {"streamglot": {"native": pack(native)}}}
        head = {"toolCallId": "a", "providerExecuted": True, "dynamic": True, **metadata}
        assert written[1] == {"type": "tool-input-available", "toolName": "f", "input": {}, **head}
        assert written[2] == {"type": "tool-output-available", "output": "hit", **head}

    @pytest.mark.parametrize("text", ['{"a":', "[" * 5000, "nothing"])
    def test_arguments_that_are_not_json_are_not_run(self, text: str) -> None:
        written = inside([ToolCallStart("a", "f"), ToolCallDelta(text), ToolCallEnd()])[-1]
        assert (written["type"], written["input"]) == ("tool-input-error", text)
        assert "not valid JSON" in written["errorText"]

    def test_an_error_of_the_tool(self) -> None:
        written = inside([ToolCallStart("a", "f"), ToolCallEnd(), ToolResult("a", "broke", True)])[-1]
        assert written == {"type": "tool-output-error", "toolCallId": "a", "errorText": "broke", "dynamic": True}

    def test_a_result_without_its_call_is_counted(self) -> None:
        box = make()
        box.feed([START, ToolResult("a", "b")])
        assert box.lost == {"ToolResult": 1}

    def test_an_id_that_comes_again_gets_its_own_name(self) -> None:
        again = [ToolCallStart("a", "f"), ToolCallEnd(), ToolResult("a", "1")]
        none = [ToolCallStart("", "f"), ToolCallEnd()]
        written = inside([*again, *again, *none, *none])
        assert [part["toolCallId"] for part in written if part["type"] == "tool-input-start"] == ["a", "a-2", "call", "call-2"]
        assert [part["toolCallId"] for part in written if part["type"] == "tool-output-available"] == ["a", "a-2"]

    def test_the_end_of_no_call_is_ignored(self) -> None:
        assert inside([ToolCallEnd()]) == []

    def test_approval(self) -> None:
        call = [ToolCallStart("a", "f"), ToolCallEnd()]
        written = inside([*call, asking(ApprovalPrompt("q", "a", "May I?")), asking(ApprovalPrompt("p", "a"))])
        assert written[2:] == [
            {"type": "tool-approval-request", "approvalId": "q", "toolCallId": "a", "reason": "May I?"},
            {"type": "tool-approval-request", "approvalId": "p", "toolCallId": "a"},
        ]

    def test_approval_of_a_call_that_the_client_has_not_seen(self) -> None:
        written = inside([asking(ApprovalPrompt("q", "a", name="rm", arguments='{"path": "/"}'))])
        call = {"toolCallId": "a", "toolName": "rm", "providerExecuted": True, "dynamic": True}
        assert written == [
            {"type": "tool-input-start", **call},
            {"type": "tool-input-delta", "toolCallId": "a", "inputTextDelta": '{"path": "/"}'},
            {"type": "tool-input-available", **call, "input": {"path": "/"}},
            {"type": "tool-approval-request", "approvalId": "q", "toolCallId": "a"},
        ]

    def test_approval_of_no_call_is_counted(self) -> None:
        box = make()
        box.feed([START, asking(ApprovalPrompt("q", "a"))])
        assert box.lost == {"Extra": 1}


class TestOwnParts:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "data-weather", "id": "1", "data": {"a": None}, "transient": True},
            {"type": "message-metadata", "messageMetadata": {"a": 1}},
            {"type": "source-document", "sourceId": "1", "mediaType": "text/plain", "title": "T", "filename": "t.txt"},
        ],
    )
    def test_as_they_are(self, part: dict[str, Any]) -> None:
        written = write([START, Extra("vercel_ui", part), StreamEnd()])
        assert written[1] == part

    def test_without_what_would_break_them(self) -> None:
        written = write([START, Extra("vercel_ui", {"type": "data-x", "data": 1, "id": None}), StreamEnd()])
        assert written[1] == {"type": "data-x", "data": 1}

    @pytest.mark.parametrize(
        "event",
        [
            Extra("vercel_ui", {"type": "reset-step"}),
            Extra("vercel_ui", {"type": "file", "url": "x"}),
            Extra("vercel_ui", {"type": "data-x"}),
            Extra("vercel_ui", {"type": None}),
            Extra("elsewhere", {"type": "data-x", "data": 1}),
        ],
    )
    def test_events_that_the_client_would_reject_are_counted(self, event: Extra) -> None:
        box = make()
        box.feed([START, event])
        assert box.lost == {"Extra": 1}


class TestErrors:
    ERROR = StreamError("upstream_truncated", "it broke off", retryable=True)

    def test_an_error_is_a_part_and_a_finish(self) -> None:
        written = write([START, TextStart(), TextDelta("a"), TextEnd(), Usage(1), self.ERROR])
        error = {"code": "upstream_truncated", "origin": "upstream", "retryable": True, "status": 502}
        metadata = {"finishReason": "error", "error": error, "usage": {"inputTokens": 1}}
        assert written[-3:] == [
            {"type": "text-end", "id": "text-1"},
            {"type": "error", "errorText": "it broke off"},
            {"type": "finish", "finishReason": "error", "messageMetadata": metadata},
        ]

    def test_an_error_before_anything_else(self) -> None:
        assert write([StreamError("slow", "")]) == [{"type": "error", "errorText": "slow"}]

    def test_an_error_between_the_steps(self) -> None:
        assert [part["type"] for part in write([START, self.ERROR])] == ["start", "error", "finish"]

    def test_a_call_that_was_truncated_is_not_run(self) -> None:
        broken = [START, ToolCallStart("a", "f"), ToolCallDelta('{"x'), ToolCallEnd(complete=False)]
        written = write([*broken, StreamEnd("length")])
        assert (written[4]["type"], written[4]["input"]) == ("tool-input-error", '{"x')
        assert "broke off" in written[4]["errorText"]
        assert [part["type"] for part in write([*broken, self.ERROR])[3:]] == ["tool-input-delta", "error", "finish"]

    def test_pieces_of_a_medium_that_never_ended_are_lost(self) -> None:
        box = make()
        box.feed([START, Media("audio/wav", "aaaa", id="m"), self.ERROR])
        assert box.lost == {"Media": 1}

    @pytest.mark.parametrize(
        ("events", "kinds"),
        [
            ([TextStart(), TextDelta("a")], ["text-start", "text-delta"]),
            ([ReasoningStart()], ["reasoning-start"]),
            ([ToolCallStart("a", "f")], ["tool-input-start"]),
        ],
    )
    def test_events_that_stop_are_an_error(self, events: list[Event], kinds: list[str]) -> None:
        written = [part["type"] for part in write([START, *events])]
        assert written == ["start", "start-step", *kinds, "error", "finish"]

    def test_http_error(self) -> None:
        assert error_body(self.ERROR) == {"error": {"message": "it broke off", "code": "upstream_truncated"}}


# --- requests


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "u", "role": "user", "parts": list(parts)}


def assistant(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "a", "role": "assistant", "parts": list(parts)}


def messages_of(*messages: dict[str, Any]) -> list[Message]:
    return parse({"messages": list(messages)}).messages


def call(state: str, **more: Any) -> dict[str, Any]:
    return {"type": "dynamic-tool", "toolName": "f", "toolCallId": "c", "state": state, "input": {"a": 1}, **more}


class TestRequest:
    def test_a_minimal_case(self) -> None:
        request = parse(
            {"id": "chat", "trigger": "submit-message", "messageId": None, "messages": [user({"type": "text", "text": "q"})]}
        )
        assert request.messages == [Message("user", [TextPart("q")])]
        assert (request.stream, request.extra) == (True, {"id": "chat", "trigger": "submit-message"})

    def test_fields_that_an_application_adds(self) -> None:
        body = {"model": "m", "system": "Be kind", "temperature": 1, "maxOutputTokens": 9, "stopSequences": ["x"], "mine": 1}
        request = parse({**body, "messages": [user({"type": "text", "text": "q"})], "toolChoice": "none"})
        assert (request.model, request.temperature, request.max_tokens, request.stop) == ("m", 1.0, 9, ["x"])
        assert [message.role for message in request.messages] == ["system", "user"]
        assert (request.tool_choice, request.extra) == (ToolChoice("none"), {"mine": 1})
        assert parse({"toolChoice": {"type": "tool", "toolName": "f"}}).tool_choice == ToolChoice("required", ["f"])

    def test_tools_of_the_frontend(self) -> None:
        schema = {"type": "object"}
        by_name = {"f": {"description": "does", "parameters": schema}, "g": {"inputSchema": {"jsonSchema": schema}}}
        assert parse({"tools": by_name}).tools == [ToolSpec("f", "does", schema), ToolSpec("g", "", schema)]
        assert parse({"tools": [{"name": "f", "inputSchema": schema}, {"name": "g"}]}).tools == [
            ToolSpec("f", "", schema),
            ToolSpec("g"),
        ]

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"messages": [{"role": "nobody"}]}, r"messages\[0\].role"),
            ({"messages": [assistant({"text": "a"})]}, r"parts\[0\].type"),
            ({"toolChoice": 7}, "toolChoice"),
            ({"tools": 7}, "tools"),
            ({"tools": [{}]}, r"tools\[0\].name"),
        ],
    )
    def test_faults_name_the_field(self, body: dict[str, Any], path: str) -> None:
        with pytest.raises(RequestError, match=path):
            parse(body)

    def test_no_upstream_uses_it(self) -> None:
        with pytest.raises(ConfigError, match="only clients speak it"):
            dialect("vercel_ui").build_request(parse({}))

    def test_plain_messages(self) -> None:
        written = messages_of({"role": "system", "content": "Be kind"}, {"role": "user", "content": ""})
        assert written == [Message("system", [TextPart("Be kind")]), Message("user", [])]

    def test_files(self) -> None:
        written = messages_of(
            user(
                {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA", "filename": "a.png"},
                {"type": "file", "mediaType": "image", "url": "http://x"},
                {"type": "file", "mediaType": "application/pdf", "url": "", "providerReference": {"p": "f-1"}},
                {"type": "data-mine", "data": 1},
            )
        )
        assert written[0].parts == [
            MediaPart("image/png", "AAAA", filename="a.png"),
            MediaPart("image/*", url="http://x"),
            MediaPart("application/pdf", file_id="f-1"),
        ]

    def test_each_step_is_a_turn(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        metadata = {"streamglot": {"echo": pack(SIGNED), "summary": True, "redacted": True}}
        written = messages_of(
            assistant(
                {"type": "step-start"},
                {"type": "reasoning", "text": "hm", "providerMetadata": metadata},
                {"type": "text", "text": "a", "providerMetadata": {"p": {"x": 1}}},
                {"type": "text", "text": "", "state": "done"},
                {"type": "source-url", "sourceId": "1", "url": "http://x"},
                call("output-available", output={"t": 1}, callProviderMetadata=metadata),
                {**call("output-error", errorText="broke", input=None, rawInput="{bad"), "type": "tool-g", "toolCallId": "d"},
                {
                    **call("output-available", output="hit", providerExecuted=True, toolCallId="s"),
                    "callProviderMetadata": {"streamglot": {"native": pack(native)}},
                    "resultProviderMetadata": {"streamglot": {"native": pack(native)}},
                },
                {"type": "steering-message", "id": "m", "parts": [{"type": "text", "text": "hurry"}]},
                {"type": "step-start"},
                {"type": "text", "text": "no", "providerMetadata": {"streamglot": {"refusal": True}}},
                {"type": "custom", "kind": "p.q"},
            )
        )
        assert written == [
            Message(
                "assistant",
                [
                    ReasoningPart("hm", True, True, SIGNED),
                    TextPart("a", echo=Echo("vercel_ui", {"providerMetadata": {"p": {"x": 1}}})),
                    ToolCallPart("c", "f", '{"a":1}', echo=SIGNED),
                    ToolCallPart("d", "g", '{"input":"{bad"}'),
                    ToolCallPart("s", "f", '{"a":1}', "server", native=native),
                    ToolResultPart("s", [TextPart("hit")], name="f", kind="server", native=native),
                ],
            ),
            Message(
                "tool",
                [
                    ToolResultPart("c", [TextPart('{"t":1}')], name="f"),
                    ToolResultPart("d", [TextPart("broke")], True, "g"),
                ],
            ),
            Message("user", [TextPart("hurry")]),
            Message("assistant", [RefusalPart("no"), NativePart("vercel_ui", {"type": "custom", "kind": "p.q"})]),
        ]

    def test_a_custom_call_comes_back_as_text(self) -> None:
        part = call("input-available", input="free {text", callProviderMetadata={"streamglot": {"kind": "custom"}})
        assert messages_of(assistant(part))[0].parts == [ToolCallPart("c", "f", "free {text", "custom")]

    def test_a_call_without_input(self) -> None:
        assert messages_of(assistant(call("input-available", input=None)))[0].parts == [ToolCallPart("c", "f", "{}")]

    def test_a_call_that_is_still_streaming_is_left_out(self) -> None:
        assert messages_of(assistant(call("input-streaming"))) == []

    def test_an_approved_call_has_no_result_yet(self) -> None:
        request = parse(
            {"messages": [assistant(call("approval-responded", approval={"id": "q", "approved": True, "reason": "ok"}))]}
        )
        assert [message.role for message in request.messages] == ["assistant"]
        assert request.extra == {"approvals": [{"id": "q", "callId": "c", "approved": True, "reason": "ok"}]}
        assert request.essential == ["approvals"]

    @pytest.mark.parametrize(
        ("state", "approval", "words"),
        [
            ("approval-responded", {"id": "q", "approved": False, "reason": "too dear"}, "too dear"),
            ("approval-responded", {"id": "q", "approved": False}, "Tool call execution denied."),
            ("output-denied", {"id": "q", "approved": False, "reason": "no"}, "no"),
            ("output-denied", None, "Tool call execution denied."),
        ],
    )
    def test_a_denied_call_is_answered(self, state: str, approval: dict[str, Any] | None, words: str) -> None:
        written = messages_of(assistant(call(state, approval=approval)))
        assert written[1].parts == [ToolResultPart("c", [TextPart(words)], True, "f")]

    def test_a_question_expires_with_the_next_user_message(self) -> None:
        question = assistant(call("approval-requested", approval={"id": "q"}))
        assert [message.role for message in messages_of(question)] == ["assistant"]
        assert [message.role for message in messages_of(question, user({"type": "text", "text": "q"}))] == ["user"]
