"""Snapshots of an answer that is still being collected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from recordings import Recording, recordings
from streamglot import Collect, Snapshot, collect
from vocabulary import *

CITE = Citation("http://a")


def fed(*events: Event, extensions: bool = False) -> Collect:
    box = Collect(extensions=extensions)
    box.feed_all(events)
    return box


def test_nothing_is_there_before_the_first_event() -> None:
    empty = Collect().snapshot()
    assert (empty.text, empty.choices, empty.error, empty.response()) == ("", [], None, Response())


def test_the_open_block_is_shown() -> None:
    box = fed(StreamStart("r", "m", 7), ReasoningStart(), ReasoningDelta("h"), ReasoningDelta("m"))
    assert box.snapshot().choices[0].parts == [ReasoningPart("hm")]
    box.feed_all([ReasoningEnd(), TextStart(), TextDelta("He"), CITE, TextDelta("llo"), Usage(3)])
    seen = box.snapshot()
    assert (seen.id, seen.model, seen.created, seen.text) == ("r", "m", 7, "Hello")
    assert seen.usage == TokenCounts(3)
    assert seen.choices[0].open == TextStart()
    assert seen.choices[0].parts == [ReasoningPart("hm"), TextPart("Hello", [CITE])]
    box.feed_all([TextEnd(), TextStart(refusal=True), TextDelta("no")])
    assert box.snapshot().text == "Hello"
    assert box.snapshot().choices[0].parts[-1] == RefusalPart("no")


def test_a_call_that_is_still_coming_is_not_complete() -> None:
    box = fed(StreamStart(), ToolCallStart("a", "f"), ToolCallDelta('{"x":'))
    assert box.snapshot().choices[0].parts == [ToolCallPart("a", "f", '{"x":', complete=False)]


def test_a_snapshot_stays_as_it_was() -> None:
    box = fed(StreamStart(), TextStart(), TextDelta("one"), extensions=True)
    seen = box.snapshot()
    later: list[Event] = [TextDelta(" two"), TextEnd(), ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(), StepEnd(1)]
    later += [Media("audio/wav", "AA", id="x"), Extra("d", {}), Choice(1, TextStart()), Choice(1, Extra("d", {}))]
    box.feed_all(later)
    between = box.snapshot()
    box.feed_all([Media("audio/wav", "BB", id="x"), Usage(3), StreamEnd()])
    whole = box.close()[0]
    assert seen.response() == collect([StreamStart(), TextStart(), TextDelta("one")], extensions=True)
    assert between.choices[0].parts[-1] == MediaPart("audio/wav", "AA", id="x")
    assert whole.choices[0].parts[-1] == MediaPart("audio/wav", "AABB", id="x")
    assert box.snapshot().response() == whole


def test_the_end_is_shown() -> None:
    seen = fed(StreamStart(), Choice(1, StreamEnd("length", "max", "##")), StreamError("c", "m")).snapshot()
    assert seen.error == StreamError("c", "m")
    choice = seen.choices[0]
    assert (choice.index, choice.stop_reason, choice.raw_stop_reason, choice.stop_sequence) == (1, "length", "max", "##")


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: f"{recording.dialect}-{recording.name}")
def test_a_snapshot_is_what_the_events_so_far_add_up_to(recording: Recording) -> None:
    events = recording.events()
    box = Collect(extensions=True)
    for number, event in enumerate(events):
        box.feed(event)
        if number % 7 == 0 or number + 1 == len(events):
            assert box.snapshot().response() == collect(events[: number + 1], extensions=True)


def lines_run(work: Callable[[], Any]) -> int:
    """How many lines of Python a piece of work runs: a measure of its cost that no other process disturbs."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_the_cost_of_a_snapshot_does_not_grow_with_the_answer() -> None:
    """Lines are counted and lists are compared by identity: a snapshot copies none of the lists that grow."""
    short = fed(StreamStart(), TextStart(), TextDelta("a"))
    long = fed(StreamStart(), *[event for _ in range(500) for event in (TextStart(), TextDelta("a"), TextEnd())], TextStart())
    long.feed_all(TextDelta("a") for _ in range(50_000))
    assert lines_run(long.snapshot) == lines_run(short.snapshot)
    one, two = long.snapshot(), long.snapshot()
    assert one.choices[0]._pieces is two.choices[0]._pieces
    assert one.choices[0]._parts is two.choices[0]._parts
    assert len(one.text) == 50_500


def test_snapshots_are_typed_as_such() -> None:
    assert isinstance(fed(StreamStart()).snapshot(), Snapshot)
