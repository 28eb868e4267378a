"""No writer marks an incomplete block as done before an error, wherever the stream was cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import streamglot
from recordings import Recording, recordings
from streamglot import DIALECTS, collect, replay
from streamglot.framing.sse import Sse
from vocabulary import *

WRITERS = sorted(name for name, entry in DIALECTS.items() if entry.has_writer)
STARTS = (TextStart, ReasoningStart, ToolCallStart)
ENDS = (TextEnd, ReasoningEnd, ToolCallEnd)
ERROR = StreamError("upstream_truncated", "it broke off")


# --- the block markers of each wire format


class BlockReport(NamedTuple):
    """The blocks that were opened and those that were marked as finished, in order, up to the error; and the rest."""

    opened: list[str]
    finished: list[str]
    ended: bool


Frames = list[dict[str, Any]]


def frames_of(dialect: str, body: bytes) -> Frames:
    if dialect == "ollama":
        return [json.loads(line) for line in body.splitlines()]
    box = Sse()
    data = [frame.data for frame in box.feed(body) + box.close() if frame.kind == "data"]
    return [{"type": "[DONE]", "done": True} if piece == b"[DONE]" else json.loads(piece) for piece in data]


def report_of_anthropic(frames: Frames) -> BlockReport:
    opened = [str(frame["index"]) for frame in frames if frame["type"] == "content_block_start"]
    finished = [str(frame["index"]) for frame in frames if frame["type"] == "content_block_stop"]
    return BlockReport(opened, finished, any(frame["type"] in ("message_delta", "message_stop") for frame in frames))


def report_of_responses(frames: Frames) -> BlockReport:
    opened = [str(frame["output_index"]) for frame in frames if frame["type"] == "response.output_item.added"]
    done = [frame for frame in frames if frame["type"].endswith((".done", ".completed"))]
    finished = [str(frame["output_index"]) for frame in done if "output_index" in frame]
    return BlockReport(
        opened, finished, len(finished) < len(done) or any(frame["type"] == "response.incomplete" for frame in frames)
    )


def report_of_agui(frames: Frames) -> BlockReport:
    def names(*kinds: str) -> list[str]:
        fields = ("messageId", "toolCallId")
        return [next(frame[field] for field in fields if field in frame) for frame in frames if frame["type"] in kinds]

    opened = names("TEXT_MESSAGE_START", "REASONING_START", "REASONING_MESSAGE_START", "TOOL_CALL_START")
    finished = names("TEXT_MESSAGE_END", "REASONING_END", "REASONING_MESSAGE_END", "TOOL_CALL_END")
    return BlockReport(opened, finished, any(frame["type"] in ("RUN_FINISHED", "STEP_FINISHED") for frame in frames))


def report_of_vercel_ui(frames: Frames) -> BlockReport:
    def names(*kinds: str) -> list[str]:
        return [frame.get("id") or frame["toolCallId"] for frame in frames if frame["type"] in kinds]

    opened = names("text-start", "reasoning-start", "tool-input-start")
    finished = names("text-end", "reasoning-end", "tool-input-available", "tool-input-error", "tool-output-available")
    return BlockReport(opened, finished, any(frame["type"] in ("finish", "finish-step") for frame in frames))


def report_of_chunks(frames: Frames) -> BlockReport:
    """Wire formats without block ends can only mark the end of the answer."""
    choices = [choice for frame in frames for choice in frame.get("choices") or frame.get("candidates") or ()]
    words = [choice.get("finish_reason") or choice.get("finishReason") for choice in choices]
    return BlockReport([], [], any(words) or any(frame.get("done") for frame in frames))


REPORT_OF: dict[str, Callable[[Frames], BlockReport]] = {
    "anthropic": report_of_anthropic,
    "openai_responses": report_of_responses,
    "agui": report_of_agui,
    "vercel_ui": report_of_vercel_ui,
}


def is_error(frame: dict[str, Any]) -> bool:
    return bool(frame.get("error")) or frame.get("type") in ("error", "RUN_ERROR", "response.failed")


def before_the_error(dialect: str, events: list[Event]) -> BlockReport:
    """The bytes before the error, which must exist. They are the same for events that are fed one by one."""
    both = []
    for reads in ([events], [[event] for event in events]):
        box = streamglot.writer(dialect)
        frames = frames_of(dialect, b"".join([*map(box.feed, reads), box.close()]))
        places = [place for place, frame in enumerate(frames) if is_error(frame)]
        assert places, "no error was written"
        both.append(REPORT_OF.get(dialect, report_of_chunks)(frames[: places[0]]))
    assert both[0] == both[1]
    return both[0]


# --- every cut of every recording


def is_broken(event: Event) -> bool:
    return isinstance(event, ENDS) and not event.complete


def shown_and_broken(events: list[Event]) -> int:
    """The number of incomplete blocks that a client has seen: calls at once, texts with their first visible word."""
    broken, shown = 0, False
    for event in events:
        if isinstance(event, STARTS):
            shown = isinstance(event, ToolCallStart) and event.kind != "server"
        elif isinstance(event, (TextDelta, ReasoningDelta)):
            shown = shown or not event.text.isspace()
        elif isinstance(event, ENDS):
            broken += shown and not event.complete
    return broken


def cuts(recording: Recording) -> Iterator[list[Event]]:
    """The events of the stream, cut after each of its bytes, if they differ from those of the previous cut."""
    before: list[Event] = []
    for place in range(len(recording.body) + 1):
        box = streamglot.reader(recording.dialect)
        events = box.feed(recording.body[:place]) + box.close()
        if isinstance(events[-1], StreamError) and events[:-1] != before:
            before = events[:-1]
            yield events


def recorded() -> list[Recording]:
    """Streams with a block that may be cut."""
    return [recording for recording in recordings() if any(isinstance(event, STARTS) for event in recording.events())]


@pytest.mark.parametrize("recording", recorded(), ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_no_cut_has_an_unfinished_block_reported_as_done(recording: Recording) -> None:
    for events in cuts(recording):
        shown = shown_and_broken(events)
        for dialect in WRITERS:
            written = before_the_error(dialect, events)
            assert not written.ended, f"{dialect} tells the answer as finished"
            if dialect in REPORT_OF:
                unfinished = [name for name in written.opened if name not in written.finished]
                assert len(unfinished) >= shown, f"{dialect} tells a block as finished that is not: {events}"


def test_the_recordings_are_cut_in_texts_in_reasoning_and_in_calls() -> None:
    broken = {type(event) for recording in recorded() for events in cuts(recording) for event in events if is_broken(event)}
    assert broken == set(ENDS)


@pytest.mark.parametrize("dialect", WRITERS)
def test_several_truncated_blocks_are_never_finished(dialect: str) -> None:
    """Interleaved blocks are closed one after the other when the stream breaks."""
    thought: list[Event] = [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(complete=False)]
    text: list[Event] = [TextStart(), TextDelta("b"), TextEnd(complete=False)]
    call: list[Event] = [ToolCallStart("c_1", "f"), ToolCallDelta('{"a'), ToolCallEnd(complete=False)]
    written = before_the_error(dialect, [StreamStart("a", "m"), *thought, *text, *call, ERROR])
    assert written.finished == []
    assert not written.ended


def test_a_call_that_the_provider_runs_is_not_reported_as_done() -> None:
    for native in ({"type": "web_search_call", "id": "ws"}, {"type": "mcp_call", "id": "mcp"}):
        start = ToolCallStart("ws", "web_search", "server", Echo("openai_responses", native))
        writer = streamglot.writer("openai_responses")
        body = writer.feed([StreamStart("a", "m"), start, ToolCallDelta("{}"), ToolCallEnd(complete=False), ERROR])
        assert b".done" not in body
        output = frames_of("openai_responses", body)[-1]["response"]["output"]
        assert output[0].get("status") == ("incomplete" if native["type"] == "mcp_call" else None)


def test_a_block_that_was_truncated_is_finished_where_the_stream_ends_properly() -> None:
    """The model was stopped, or the client requested it: the wire format needs its end markers."""
    half: list[Event] = [ToolCallStart("c_1", "f"), ToolCallDelta('{"a'), ToolCallEnd(complete=False)]
    events: list[Event] = [StreamStart("a", "m"), TextStart(), TextDelta("b"), TextEnd(complete=False), *half]
    for dialect in ("anthropic", "agui", "vercel_ui"):
        box = streamglot.writer(dialect)
        frames = frames_of(dialect, box.feed([*events, StreamEnd("length")]) + box.close())
        written = REPORT_OF[dialect](frames)
        assert sorted(written.opened) == sorted(written.finished)
        assert written.ended


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_truncated_response_object_is_not_reported_as_finished(dialect: str) -> None:
    thought: list[Event] = [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd()]
    halves: list[list[Event]] = [
        [TextStart(), TextDelta("Hel"), TextEnd(complete=False)],
        [ToolCallStart("c", "f"), ToolCallDelta('{"a')],
    ]
    for half in halves:
        response = collect([StreamStart("a", "m"), *thought, *half, ERROR])
        events = replay(response)
        assert isinstance(events[-2], ENDS)
        assert not events[-2].complete
        written = before_the_error(dialect, events)
        assert not written.ended
        assert dialect not in REPORT_OF or written.opened[-1] not in written.finished
        if DIALECTS[dialect].has_response:
            body = DIALECTS[dialect].build_response(response)
            assert body.get("error")
            assert "tool_use" not in str(body)
            assert "c" not in [
                call.get("id") for choice in body.get("choices", ()) for call in choice.get("message", {}).get("tool_calls", ())
            ]
