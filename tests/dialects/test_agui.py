"""The AG-UI writer and the parser of its requests: exact events, in the order that the client's verifier requires."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from streamglot import ConfigError, RequestError, Unsupported, dialect, writer
from streamglot.dialects.agui.request import parse
from streamglot.dialects.agui.wire import MAX_DELTA_CHARS, MAX_EVENT_BYTES, error_body
from streamglot.dialects.common.server_tools import ApprovalPrompt, approval_in, asking
from streamglot.dialects.common.state import pack
from streamglot.dialects.common.writer import Writer
from vocabulary import *

START = StreamStart("c-1", "model-1", 5)
SIGNED = Echo("elsewhere", {"signature": "S"})
STARTED = {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0"}


def make(**options: Any) -> Writer:
    return writer("agui", **{"thread_id": "t", "run_id": "r", "steps": False, **options})


def read(written: bytes) -> list[dict[str, Any]]:
    frames = written.decode().split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]


def write(events: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    """Writes the events together and one by one; the bytes must be the same."""
    box = make(**options)
    written = box.feed(events) + box.close()
    single = make(**options)
    assert b"".join(single.feed([event]) for event in events) + single.close() == written
    return read(written)


def inside(events: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    """The events between the start and the end of the run."""
    written = write([START, *events, StreamEnd("end")], **options)
    assert written[0] == STARTED
    assert written[-1]["type"] == "RUN_FINISHED"
    return written[1:-1]


CALL = [ToolCallStart("call_abc123", "get_weather"), ToolCallDelta('{"location":'), ToolCallDelta('"Bern"}'), ToolCallEnd()]


class TestToolCallEvents:
    def test_tool_call_start(self) -> None:
        assert inside(CALL)[0] == {
            "type": "TOOL_CALL_START",
            "toolCallId": "call_abc123",
            "toolCallName": "get_weather",
            "parentMessageId": "r-message-1",
        }

    def test_tool_call_args_incremental_arguments(self) -> None:
        assert inside(CALL)[1:3] == [
            {"type": "TOOL_CALL_ARGS", "toolCallId": "call_abc123", "delta": '{"location":'},
            {"type": "TOOL_CALL_ARGS", "toolCallId": "call_abc123", "delta": '"Bern"}'},
        ]

    def test_tool_call_end(self) -> None:
        assert inside(CALL)[3:] == [{"type": "TOOL_CALL_END", "toolCallId": "call_abc123"}]

    def test_the_call_belongs_to_the_text_before_it(self) -> None:
        written = inside([TextStart(), TextDelta("Let me look"), TextEnd(), *CALL])
        assert written[3]["parentMessageId"] == written[0]["messageId"] == "r-message-1"

    def test_calls_without_text_share_one_message(self) -> None:
        written = inside([*CALL, ToolCallStart("b", "f"), ToolCallEnd()])
        assert [event["parentMessageId"] for event in written if event["type"] == "TOOL_CALL_START"] == ["r-message-1"] * 2

    def test_a_call_without_arguments_has_an_empty_object(self) -> None:
        assert inside([ToolCallStart("a", "f"), ToolCallEnd()])[1]["delta"] == "{}"

    def test_a_custom_call_keeps_its_free_text(self) -> None:
        written = inside([ToolCallStart("a", "f", "custom"), ToolCallEnd()])
        assert [event["type"] for event in written] == ["TOOL_CALL_START", "TOOL_CALL_END"]
        assert written[0]["metadata"] == {"kind": "custom"}

    def test_unanswered_calls_are_pending(self) -> None:
        written = write([START, *CALL, ToolCallStart("b", "f"), ToolCallEnd(), ToolResult("b", "ok"), StreamEnd("tool_calls")])
        assert written[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_abc123"]}

    def test_a_call_of_the_provider_is_not_pending(self) -> None:
        native = Echo("elsewhere", {"block": 1})
        events = [ToolCallStart("s", "search", "server", native), ToolCallEnd(), ToolResult("s", "hit", native=native)]
        written = write([START, *events, StreamEnd()])
        assert written[1]["metadata"] == {"kind": "server", "streamglot": pack(native)}
        assert written[4]["metadata"] == {"streamglot": pack(native)}
        assert written[-1]["outcome"] == {"type": "success"}

    def test_a_result(self) -> None:
        assert inside([*CALL, ToolResult("call_abc123", "rain", True)])[-1] == {
            "type": "TOOL_CALL_RESULT",
            "messageId": "r-result-1",
            "toolCallId": "call_abc123",
            "content": "rain",
            "role": "tool",
            "metadata": {"isError": True},
        }

    def test_an_id_that_comes_again_gets_its_own_name(self) -> None:
        again = [ToolCallStart("a", "f"), ToolCallEnd(), ToolResult("a", "1")]
        written = inside([*again, *again, *again, ToolCallStart("", "g"), ToolCallEnd()])
        assert [event["toolCallId"] for event in written if event["type"] == "TOOL_CALL_START"] == ["a", "a-2", "a-3", "r-call-1"]
        assert [event["toolCallId"] for event in written if event["type"] == "TOOL_CALL_RESULT"] == ["a", "a-2", "a-3"]

    def test_the_end_of_no_call_is_ignored(self) -> None:
        assert inside([ToolCallEnd()]) == []

    def test_the_echo_of_a_call(self) -> None:
        written = inside([ToolCallStart("a", "f"), ToolCallEnd(SIGNED)])[-1]
        sealed = {"subtype": "tool-call", "entityId": "a", "encryptedValue": pack(SIGNED)}
        assert written == {"type": "REASONING_ENCRYPTED_VALUE", **sealed}


class TestReasoningThinkingEvents:
    THOUGHT = (ReasoningStart(), ReasoningDelta("First, I need to consider..."), ReasoningEnd())

    def test_reasoning_start(self) -> None:
        """Version 1.0 has a message inside the span, with a role."""
        assert inside(self.THOUGHT)[:2] == [
            {"type": "REASONING_START", "messageId": "r-reasoning-span-1"},
            {"type": "REASONING_MESSAGE_START", "messageId": "r-reasoning-1", "role": "reasoning"},
        ]

    def test_reasoning_content_incremental_reasoning(self) -> None:
        content = {"messageId": "r-reasoning-1", "delta": "First, I need to consider..."}
        assert inside(self.THOUGHT)[2] == {"type": "REASONING_MESSAGE_CONTENT", **content}

    def test_reasoning_end(self) -> None:
        assert inside(self.THOUGHT)[3:] == [
            {"type": "REASONING_MESSAGE_END", "messageId": "r-reasoning-1"},
            {"type": "REASONING_END", "messageId": "r-reasoning-span-1"},
        ]

    def test_pieces_of_one_thought_share_a_message(self) -> None:
        written = inside([ReasoningStart(), ReasoningDelta("a"), ReasoningDelta("b"), ReasoningEnd()])
        assert [event["delta"] for event in written if "delta" in event] == ["a", "b"]

    def test_reasoning_encryption(self) -> None:
        written = inside([ReasoningStart(summary=True), ReasoningDelta("…"), ReasoningEnd(SIGNED)])
        assert written[1]["metadata"] == {"summary": True}
        assert written[4] == {
            "type": "REASONING_ENCRYPTED_VALUE",
            "subtype": "message",
            "entityId": "r-reasoning-1",
            "encryptedValue": pack(SIGNED),
        }

    def test_hidden_reasoning_is_a_message_without_words(self) -> None:
        written = inside([ReasoningStart(), ReasoningEnd(SIGNED, redacted=True)])
        kinds = ["START", "MESSAGE_START", "MESSAGE_END", "ENCRYPTED_VALUE", "END"]
        assert [event["type"] for event in written] == [f"REASONING_{kind}" for kind in kinds]
        assert written[2]["metadata"] == {"redacted": True}

    def test_reasoning_without_words_or_state_is_a_span_only(self) -> None:
        assert [event["type"] for event in inside([ReasoningStart(), ReasoningEnd()])] == ["REASONING_START", "REASONING_END"]

    def test_a_value_that_a_client_put_there_is_written_as_it_was(self) -> None:
        own = Echo("agui", {"encryptedValue": "opaque"})
        assert inside([ReasoningStart(), ReasoningEnd(own)])[3]["encryptedValue"] == "opaque"
        odd = Echo("agui", {"encryptedValue": 7})
        assert inside([ReasoningStart(), ReasoningEnd(odd)])[3]["encryptedValue"] == pack(odd)


class TestRegularContentEvents:
    def test_text(self) -> None:
        assert inside([TextStart(), TextDelta("The weather in"), TextEnd()]) == [
            {"type": "TEXT_MESSAGE_START", "messageId": "r-message-1", "role": "assistant"},
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "r-message-1", "delta": "The weather in"},
            {"type": "TEXT_MESSAGE_END", "messageId": "r-message-1", "metadata": {"finishReason": "end"}},
        ]

    def test_a_text_without_deltas_makes_no_message(self) -> None:
        assert inside([TextStart(), TextEnd()]) == []

    def test_text_with_state(self) -> None:
        kinds = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "REASONING_ENCRYPTED_VALUE"]
        assert [event["type"] for event in inside([TextStart(), TextEnd(SIGNED)])] == kinds

    def test_a_refusal_is_marked(self) -> None:
        assert inside([TextStart(refusal=True), TextDelta("No"), TextEnd()])[0]["metadata"] == {"refusal": True}

    def test_order_of_text_and_thought_is_kept(self) -> None:
        text = [TextStart(), TextDelta("a"), TextEnd()]
        thought = [ReasoningStart(), ReasoningDelta("b"), ReasoningEnd()]
        written = [event for event in inside([*text, *thought, *text]) if event["type"].endswith("MESSAGE_START")]
        assert [event["messageId"] for event in written] == ["r-message-1", "r-reasoning-1", "r-message-2"]

    def test_a_huge_piece_is_cut_for_the_client_s_limit(self) -> None:
        written = inside([TextStart(), TextDelta("x" * (2 * MAX_DELTA_CHARS + 1)), TextEnd()])
        assert [len(event["delta"]) for event in written[1:-1]] == [MAX_DELTA_CHARS, MAX_DELTA_CHARS, 1]

    def test_a_huge_result_is_cut_and_counted(self) -> None:
        box = make()
        written = read(box.feed([START, ToolResult("a", "y" * (MAX_DELTA_CHARS + 1))]))
        assert written[1]["content"].endswith(f"… (cut here: {MAX_DELTA_CHARS + 1} characters in all)")
        assert box.lost == {"ToolResult": 1}


class TestErrorHandling:
    ERROR = StreamError("upstream_truncated", "it broke off", retryable=True)

    def test_run_error(self) -> None:
        written = write([START, TextStart(), TextDelta("par"), TextEnd(), Usage(3), self.ERROR])
        assert written[-2:] == [
            {"type": "TEXT_MESSAGE_END", "messageId": "r-message-1"},
            {
                "type": "RUN_ERROR",
                "message": "it broke off",
                "code": "upstream",
                "usage": [{"model": "model-1", "inputTokens": 3}],
                "metadata": {"reason": "upstream_truncated", "origin": "upstream", "retryable": True, "status": 502},
            },
        ]

    def test_tool_call_errors(self) -> None:
        """A truncated call is never ended: the client would complete its arguments and run it."""
        written = write([START, ToolCallStart("a", "f"), ToolCallDelta('{"x'), ToolCallEnd(complete=False), self.ERROR])
        assert [event["type"] for event in written] == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "RUN_ERROR"]

    def test_a_broken_call_in_an_answer_that_ended_is_marked(self) -> None:
        events = [START, ToolCallStart("a", "f"), ToolCallDelta('{"x'), ToolCallEnd(complete=False)]
        written = write([*events, StreamEnd("length", "max_tokens")])
        assert written[3] == {"type": "TOOL_CALL_END", "toolCallId": "a", "metadata": {"complete": False}}
        assert written[-1]["outcome"] == {"type": "success"}

    def test_an_error_before_anything_else(self) -> None:
        assert [event["code"] for event in write([StreamError("slow", "wait", status=429)])] == ["rate_limit"]
        assert write([StreamError("odd", "", status=418)])[0] == {
            "type": "RUN_ERROR",
            "message": "odd",
            "code": "invalid_request",
            "metadata": {"reason": "odd", "origin": "upstream", "retryable": False, "status": 418},
        }

    @pytest.mark.parametrize(
        ("events", "kinds"),
        [
            ([], []),
            ([START], ["RUN_STARTED"]),
            ([START, TextStart(), TextDelta("a")], ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"]),
            ([START, ReasoningStart()], ["RUN_STARTED", "REASONING_START"]),
            ([START, ToolCallStart("a", "f")], ["RUN_STARTED", "TOOL_CALL_START"]),
        ],
    )
    def test_events_that_stop_are_an_error(self, events: list[Event], kinds: list[str]) -> None:
        assert [event["type"] for event in write(events)] == [*kinds, "RUN_ERROR"]

    def test_http_error(self) -> None:
        written = {"message": "it broke off", "code": "upstream", "reason": "upstream_truncated"}
        assert error_body(self.ERROR) == {"error": written}


class TestFinishReasons:
    def test_finish(self) -> None:
        written = write([START, Usage(10, 5, 2, 1, 3), StreamEnd("stop_sequence", "stop", "END")])
        assert written[-1] == {
            "type": "RUN_FINISHED",
            "threadId": "t",
            "runId": "r",
            "outcome": {"type": "success"},
            "usage": [
                {
                    "model": "model-1",
                    "inputTokens": 10,
                    "outputTokens": 5,
                    "totalTokens": 15,
                    "reasoningTokens": 3,
                    "cachedInputTokens": 2,
                    "cacheWriteInputTokens": 1,
                }
            ],
            "metadata": {"finishReason": "stop_sequence", "rawFinishReason": "stop", "stopSequence": "END"},
        }

    def test_cancelled(self) -> None:
        assert write([START, StreamEnd("cancelled")])[-1]["outcome"] == {"type": "cancelled"}

    def test_ids_where_the_client_gave_none(self) -> None:
        assert read(writer("agui").feed([START]))[0]["runId"] == "c-1"
        assert read(writer("agui").feed([TextStart(), StreamEnd()]))[0] == {**STARTED, "threadId": "run", "runId": "run"}

    def test_nothing_after_the_end(self) -> None:
        box = make()
        box.feed([START, StreamEnd()])
        assert box.feed([TextStart(), TextDelta("late")]) + box.close() == b""

    def test_steps(self) -> None:
        text = [TextStart(), TextDelta("a"), TextEnd()]
        written = inside([*text, StepEnd(1), ToolResult("a", "b"), *text, StepEnd(2, "end")], steps=True)
        assert [(event["type"], event.get("stepName")) for event in written if "STEP" in event["type"]] == [
            ("STEP_STARTED", "step-1"),
            ("STEP_FINISHED", "step-1"),
            ("STEP_STARTED", "step-2"),
            ("STEP_FINISHED", "step-2"),
        ]
        ends = [event["metadata"] for event in written if event["type"] in ("TEXT_MESSAGE_END", "STEP_FINISHED")]
        assert ends == [{"finishReason": "tool_calls"}] * 2 + [{"finishReason": "end"}] * 2

    def test_the_last_step_ends_with_the_run(self) -> None:
        written = inside([TextStart(), TextDelta("a"), TextEnd()], steps=True)
        assert written[-1] == {"type": "STEP_FINISHED", "stepName": "step-1", "metadata": {"finishReason": "end"}}

    def test_each_turn_has_its_own_message_for_calls(self) -> None:
        written = inside([*CALL, StepEnd(1), ToolCallStart("b", "f"), ToolCallEnd()])
        parents = [event["parentMessageId"] for event in written if event["type"] == "TOOL_CALL_START"]
        assert parents == ["r-message-1", "r-message-2"]


class TestActivityEvents:
    SNAPSHOT = {"type": "ACTIVITY_SNAPSHOT", "messageId": "m", "activityType": "search", "content": {"done": 0}}
    DELTA = {
        "type": "ACTIVITY_DELTA",
        "messageId": "m",
        "activityType": "search",
        "patch": [{"op": "replace", "path": "/done", "value": 1}],
    }

    def test_snapshot_and_delta(self) -> None:
        assert inside([Extra("agui", self.SNAPSHOT), Extra("agui", self.DELTA)]) == [self.SNAPSHOT, self.DELTA]

    def test_only_what_the_protocol_knows(self) -> None:
        written = inside([Extra("agui", {**self.SNAPSHOT, "replace": False, "timestamp": None, "metadata": {"a": 1}, "odd": 1})])
        assert written == [{**self.SNAPSHOT, "replace": False, "metadata": {"a": 1}}]

    def test_state_and_own_words(self) -> None:
        state = {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}}
        raw = {"type": "RAW", "event": {"b": 2}, "source": "x"}
        assert inside([Extra("agui", state), Extra("agui", raw)]) == [state, raw]

    @pytest.mark.parametrize(
        "event",
        [
            Extra("agui", {"type": "ACTIVITY_DELTA", "messageId": "m"}),
            Extra("agui", {"type": "RUN_FINISHED"}),
            Extra("agui", {"type": 7}),
            Extra("agui", {}),
            Extra("elsewhere", SNAPSHOT),
            Extra("agui", {"type": "CUSTOM", "name": "big", "value": "x" * MAX_EVENT_BYTES}),
        ],
    )
    def test_events_that_the_client_would_reject_are_counted(self, event: Extra) -> None:
        box = make()
        assert len(read(box.feed([START, event]))) == 1
        assert box.lost == {"Extra": 1}

    def test_interrupt_for_an_approval(self) -> None:
        question = asking(ApprovalPrompt("q-1", "call_abc123", "May I?", {"type": "object"}))
        written = write([START, *CALL, question, StreamEnd("tool_calls")])
        assert written[-1]["outcome"] == {
            "type": "interrupt",
            "interrupts": [
                {
                    "id": "q-1",
                    "reason": "tool_call",
                    "message": "May I?",
                    "toolCallId": "call_abc123",
                    "responseSchema": {"type": "object"},
                }
            ],
        }

    def test_interrupt_for_a_call_that_the_client_has_not_seen(self) -> None:
        question = asking(ApprovalPrompt("q-1", "a", "May I?", name="rm", arguments='{"path":"/"}'))
        assert write([START, question, StreamEnd()])[-1]["outcome"]["interrupts"] == [
            {
                "id": "q-1",
                "reason": "tool_call",
                "message": "May I?",
                "metadata": {"toolName": "rm", "arguments": '{"path":"/"}'},
            }
        ]

    def test_own_interrupts(self) -> None:
        given = [{"id": "a", "reason": "input", "expiresAt": "2030-01-01", "message": None}, {"id": 1}, "odd"]
        written = write([START, Extra("agui", {"interrupts": given}), StreamEnd()])
        assert written[-1]["outcome"]["interrupts"] == [{"id": "a", "reason": "input", "expiresAt": "2030-01-01"}]

    def test_an_approval_is_known_by_its_shape(self) -> None:
        assert approval_in(Extra("approval", {"id": 1})) is None
        assert approval_in(Extra("agui", {})) is None
        assert approval_in(asking(ApprovalPrompt("a", "b"))) == ApprovalPrompt("a", "b")


class TestBesideTheText:
    def test_citation(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        written = inside([TextStart(), TextDelta("a"), Citation("http://x", "X", "a", 0, 1, native), TextEnd()])[2]
        value = {"messageId": "r-message-1", "url": "http://x", "title": "X", "citedText": "a", "startIndex": 0, "endIndex": 1}
        assert written == {"type": "CUSTOM", "name": "citation", "value": {**value, "streamglot": pack(native)}}

    def test_media(self) -> None:
        value = {"mimeType": "image/png", "data": "AAAA"}
        assert inside([Media("image/png", "AAAA")]) == [{"type": "CUSTOM", "name": "media", "value": value}]

    def test_media_that_are_too_long_for_the_client(self) -> None:
        box = make()
        box.feed([START, Media("image/png", "A" * MAX_EVENT_BYTES)])
        assert box.lost == {"Media": 1}

    def test_keep_alive(self) -> None:
        assert make().feed([KeepAlive(), KeepAlive("still here")]) == b": ping\n\n: still here\n\n"

    def test_other_choices_are_counted(self) -> None:
        box = make()
        box.feed([START, Choice(1, TextStart())])
        assert box.lost == {"TextStart": 1}


class TestMessagesSnapshot:
    def test_all_messages_as_the_client_holds_them(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        asked_before = {"id": "u", "role": "user", "content": "q", "name": None}
        events = [
            *(ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(SIGNED)),
            *(TextStart(refusal=True), TextDelta("a"), TextDelta("b"), TextEnd()),
            *(ToolCallStart("c", "f", "custom"), ToolCallDelta("x"), ToolCallEnd(SIGNED), ToolCallStart("d", "g"), ToolCallEnd()),
            *(ToolResult("c", "1", native=native), StepEnd(1), TextStart(), TextDelta("z"), TextEnd()),
            *(ToolResult("d", "2"), ToolResult("nobody", "3")),
        ]
        written = inside(events, messages=[asked_before])[-1]
        sealed = {"encryptedValue": pack(SIGNED)}
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": "x"},
            "metadata": {"kind": "custom"},
            **sealed,
        }
        other = {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}}
        assert written == {
            "type": "MESSAGES_SNAPSHOT",
            "messages": [
                {"id": "u", "role": "user", "content": "q"},
                {"id": "r-reasoning-1", "role": "reasoning", "content": "hm", **sealed},
                {
                    "id": "r-message-1",
                    "role": "assistant",
                    "content": "ab",
                    "metadata": {"refusal": True},
                    "toolCalls": [call, other],
                },
                {"id": "r-result-1", "role": "tool", "toolCallId": "c", "metadata": {"streamglot": pack(native)}, "content": "1"},
                {"id": "r-result-2", "role": "tool", "toolCallId": "d", "content": "2"},
                {"id": "r-message-2", "role": "assistant", "content": "z"},
                {"id": "r-result-3", "role": "tool", "toolCallId": "nobody", "content": "3"},
            ],
        }

    def test_a_call_without_text_has_a_message(self) -> None:
        written = inside(CALL, messages=[])[-1]["messages"]
        assert [(message["id"], "content" in message, len(message["toolCalls"])) for message in written] == [
            ("r-message-1", False, 1)
        ]


# --- requests

INPUT: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": []}


def messages_of(*messages: dict[str, Any]) -> list[Message]:
    return parse({**INPUT, "messages": list(messages)}).messages


class TestRunAgentInput:
    def test_a_minimal_case(self) -> None:
        request = parse({**INPUT, "state": {}, "tools": [], "context": [], "forwardedProps": {}})
        assert (request.stream, request.dialect, request.messages) == (True, "agui", [])
        assert request.extra == {"threadId": "t", "runId": "r"}

    def test_fields_that_the_run_needs_are_kept(self) -> None:
        resume = [{"interruptId": "q", "status": "resolved", "payload": {"approved": True}, "metadata": None}]
        request = parse({**INPUT, "state": {"a": 1}, "resume": resume, "protocolVersion": "1.0", "parentRunId": "p"})
        assert request.extra["state"] == {"a": 1}
        assert request.extra["resume"] == [{"interruptId": "q", "status": "resolved", "payload": {"approved": True}}]
        assert request.essential == ["resume"]
        assert request.extra["parentRunId"] == "p"
        with pytest.raises(Unsupported, match="resume"):
            dialect("openai_chat").build_request(request)

    def test_tools_and_context(self) -> None:
        request = parse(
            {
                **INPUT,
                "messages": [{"id": "s", "role": "system", "content": "Be kind"}, {"id": "u", "role": "user", "content": "q"}],
                "tools": [
                    {"name": "f", "description": "does", "parameters": {"type": "object"}},
                    {"name": "g", "description": ""},
                ],
                "context": [{"description": "page", "value": "home"}],
            }
        )
        assert request.tools == [ToolSpec("f", "does", {"type": "object"}), ToolSpec("g")]
        assert [message.text for message in request.messages] == ["Be kind", "Context:\npage: home", "q"]
        alone = parse({**INPUT, "context": [{"description": "page", "value": "home"}]})
        assert [message.role for message in alone.messages] == ["system"]

    def test_forwarded_props(self) -> None:
        props = {"model": "m", "temperature": 0, "maxTokens": 9, "toolChoice": "required", "reasoningEffort": "low", "mine": 1}
        request = parse({**INPUT, "forwardedProps": props})
        assert (request.model, request.temperature, request.max_tokens) == ("m", 0.0, 9)
        assert (request.tool_choice, request.reasoning) == (ToolChoice("required"), Reasoning("low"))
        assert request.extra["forwardedProps"] == {"mine": 1}
        assert parse({**INPUT, "forwardedProps": "text"}).extra["forwardedProps"] == "text"

    @pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "f"}}, {"type": "tool", "toolName": "f"}])
    def test_a_named_tool(self, choice: dict[str, Any]) -> None:
        assert parse({**INPUT, "forwardedProps": {"toolChoice": choice}}).tool_choice == ToolChoice("required", ["f"])

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"runId": "r", "messages": []}, "threadId"),
            ({**INPUT, "messages": [{"role": "nobody"}]}, r"messages\[0\].role"),
            ({**INPUT, "messages": [{"role": "user", "content": 7}]}, r"messages\[0\].content"),
            (
                {**INPUT, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "x", "value": "y"}}]}]},
                "source.type",
            ),
            ({**INPUT, "resume": [{"interruptId": "a", "status": "maybe"}]}, r"resume\[0\].status"),
            ({**INPUT, "forwardedProps": {"toolChoice": 7}}, "forwardedProps.toolChoice"),
            ({**INPUT, "forwardedProps": {"reasoningEffort": "some"}}, "forwardedProps.reasoningEffort"),
        ],
    )
    def test_faults_name_the_field(self, body: dict[str, Any], path: str) -> None:
        with pytest.raises(RequestError, match=path):
            parse(body)

    def test_no_upstream_uses_it(self) -> None:
        with pytest.raises(ConfigError, match="only clients speak it"):
            dialect("agui").build_request(parse(INPUT))

    def test_plain_roles(self) -> None:
        written = messages_of(
            {"id": "1", "role": "developer", "content": "d", "name": "n"},
            {"id": "2", "role": "user", "content": "q", "encryptedValue": "z"},
            {"id": "3", "role": "activity", "activityType": "x", "content": {}},
            {"id": "4", "role": "user", "content": ""},
            {"id": "5", "role": "system", "content": None},
        )
        assert written == [
            Message("developer", [TextPart("d")], "n"),
            Message("user", [TextPart("q")], echo=Echo("agui", {"encryptedValue": "z"})),
            Message("user", []),
        ]

    def test_the_messages_of_one_turn_are_one(self) -> None:
        native = Echo("elsewhere", {"n": 1})
        function = {"name": "f", "arguments": '{"a":1}'}
        written = messages_of(
            {"id": "1", "role": "reasoning", "content": "hm", "encryptedValue": pack(SIGNED), "metadata": {"summary": True}},
            {"id": "2", "role": "assistant", "content": "a", "encryptedValue": pack(SIGNED), "name": "bot"},
            {"id": "3", "role": "reasoning", "content": "", "metadata": {"redacted": True}, "encryptedValue": "own"},
            {
                "id": "4",
                "role": "assistant",
                "toolCalls": [
                    {"id": "c", "type": "function", "function": function, "encryptedValue": pack(SIGNED)},
                    {"id": "d", "type": "function", "function": {"name": "g", "arguments": " "}, "metadata": {"complete": False}},
                    {"id": "e", "type": "function", "function": {"name": "h", "arguments": ""}, "metadata": {"kind": "custom"}},
                    {
                        "id": "s",
                        "type": "function",
                        "function": {"name": "search", "arguments": {"q": 1}},
                        "metadata": {"kind": "server", "streamglot": pack(native)},
                    },
                ],
            },
            {"id": "5", "role": "tool", "toolCallId": "s", "content": "hit", "metadata": {"streamglot": pack(native)}},
            {"id": "6", "role": "tool", "toolCallId": "c", "content": "ok"},
            {"id": "7", "role": "tool", "toolCallId": "e", "content": "", "error": "broke"},
            {
                "id": "8",
                "role": "tool",
                "toolCallId": "x",
                "content": "half",
                "metadata": {"isError": True},
                "encryptedValue": "v",
            },
        )
        assert written == [
            Message(
                "assistant",
                [
                    ReasoningPart("hm", summary=True, echo=SIGNED),
                    TextPart("a", echo=SIGNED),
                    ReasoningPart("", redacted=True, echo=Echo("agui", {"encryptedValue": "own"})),
                    ToolCallPart("c", "f", '{"a":1}', echo=SIGNED),
                    ToolCallPart("d", "g", "{}", complete=False),
                    ToolCallPart("e", "h", "", "custom"),
                    ToolCallPart("s", "search", '{"q":1}', "server", native=native),
                    ToolResultPart("s", [TextPart("hit")], name="search", kind="server", native=native),
                ],
                "bot",
            ),
            Message(
                "tool",
                [
                    ToolResultPart("c", [TextPart("ok")], name="f"),
                    ToolResultPart("e", [TextPart("broke")], True, "h", "custom"),
                    ToolResultPart("x", [TextPart("half")], True, native=Echo("agui", {"encryptedValue": "v"})),
                ],
            ),
        ]

    def test_refusal_and_state_without_text(self) -> None:
        written = messages_of(
            {
                "id": "1",
                "role": "assistant",
                "content": [{"type": "text", "text": "no"}, {"type": "odd"}],
                "metadata": {"refusal": True},
            },
            {"id": "2", "role": "assistant", "content": "", "encryptedValue": "v"},
        )
        odd = NativePart("agui", {"type": "odd"})
        assert written[0].parts == [RefusalPart("no"), odd, TextPart("", echo=Echo("agui", {"encryptedValue": "v"}))]

    def test_multimodal_parts(self) -> None:
        def source(form: str, value: str, **more: str) -> dict[str, Any]:
            return {"source": {"type": form, "value": value, **more}}

        content = [
            {"type": "text", "text": "see"},
            {"type": "image", **source("data", "AAAA", mimeType="image/png"), "metadata": {"detail": "low", "filename": 7}},
            {"type": "image", **source("url", "http://x/y.png")},
            {"type": "audio", **source("url", "data:audio/wav;base64,BBBB")},
            {"type": "video", **source("file", "f-1", provider="p")},
            {"type": "document", **source("data", "CCCC", mimeType="application/pdf"), "metadata": {"filename": "a.pdf"}},
            {"type": "binary", "mimeType": "image/png", "data": "DDDD", "filename": "b.png"},
        ]
        assert messages_of({"id": "1", "role": "user", "content": content})[0].parts == [
            TextPart("see"),
            MediaPart("image/png", "AAAA", detail="low"),
            MediaPart("image/*", url="http://x/y.png"),
            MediaPart("audio/wav", "BBBB"),
            MediaPart("video/*", file_id="f-1"),
            MediaPart("application/pdf", "CCCC", filename="a.pdf"),
            MediaPart("image/png", "DDDD", filename="b.png"),
        ]

    def test_written_messages_are_read_back(self) -> None:
        """A snapshot of a turn that comes back with the next request becomes the same turn, with the state of its provider."""
        native = Echo("elsewhere", {"n": 1})
        events = [
            *(ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(SIGNED), TextStart(), TextDelta("a"), TextEnd(SIGNED)),
            *(ToolCallStart("s", "search", "server", native), ToolCallEnd(), ToolResult("s", "hit", native=native)),
            *(ToolCallStart("c", "f"), ToolCallDelta("{}"), ToolCallEnd(SIGNED)),
        ]
        sent = inside(events, messages=[])[-1]["messages"]
        assert messages_of(*sent) == [
            Message(
                "assistant",
                [
                    ReasoningPart("hm", echo=SIGNED),
                    TextPart("a", echo=SIGNED),
                    ToolCallPart("s", "search", "{}", "server", native=native),
                    ToolResultPart("s", [TextPart("hit")], name="search", kind="server", native=native),
                    ToolCallPart("c", "f", "{}", echo=SIGNED),
                ],
            )
        ]
