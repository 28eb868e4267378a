"""The order of events: the table, the checker, the diagram."""

from __future__ import annotations

import pytest

from streamglot import GrammarError, check
from streamglot.events import EVENT_TYPES, decode, encode
from streamglot.grammar import TABLE, OpenBlocks, diagram
from vocabulary import *

START, END = StreamStart("id", "model", 1), StreamEnd("end", "stop")
TEXT: list[Event] = [TextStart(), TextDelta("hi"), Usage(1, 2), KeepAlive(), TextEnd()]


def test_a_whole_stream() -> None:
    check([KeepAlive("waiting"), START, *TEXT, *TEXT, Usage(3, 4), END])
    check([START, *TEXT, StreamError("x", "y")])
    check([StreamError("x", "y")])


def test_choices_have_a_state_of_their_own() -> None:
    other: list[Event] = [Choice(1, event) for event in TEXT]  # type: ignore[arg-type]  # none of them is a Choice
    check([START, TEXT[0], other[0], TEXT[1], other[1], other[4], Choice(1, END), TEXT[4], END])
    check([START, other[0], StreamError("x", "y")])


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([TextDelta("x")], "state 'before'"),
        ([START, START], "state 'idle'"),
        ([START, TextStart(), TextStart()], "state 'text'"),
        ([START, TextStart(), ToolCallDelta("x")], "state 'text'"),
        ([START, ToolCallStart("a", "b"), StreamError("x", "y")], "state 'tool_call'"),
        ([START, END, END], "state 'done'"),
        ([START, *TEXT], "stopped in state 'idle'"),
        ([START, Choice(0, TextStart())], "not wrapped"),
        ([Choice(1, TextStart())], "while the stream is 'before'"),
        ([START, END, Choice(1, TextStart())], "while the stream is 'done'"),
        ([START, Choice(1, START)], "belongs to the whole stream"),
        ([START, Choice(1, TextStart()), END], r"before its choices \[1\]"),
    ],
)
def test_events_that_the_table_does_not_allow(events: list[Event], says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        check(events)


def test_every_event_has_its_place() -> None:
    placed = {kind for row in TABLE.values() for kind in row}
    assert placed == set(EVENT_TYPES) - {Choice}


def test_the_diagram_shows_every_state_and_event() -> None:
    drawn = diagram()
    assert all(state in drawn for state in TABLE)
    assert all(kind.__name__ in drawn for kind in EVENT_TYPES if kind is not Choice)


def test_events_are_lines_of_json() -> None:
    for event in (*TEXT, START, END, Choice(2, END)):
        assert decode(encode(event)) == event
    assert encode(TextDelta("é")) == '{"type":"text_delta","text":"é"}'.encode()


def test_open_blocks_are_closed_in_the_order_of_the_grammar() -> None:
    blocks = OpenBlocks()
    events: list[Event] = [
        StreamStart(),
        TextStart(),
        TextDelta("one"),
        Choice(2, ToolCallStart("c", "look")),
        Choice(1, ReasoningStart()),
        Choice(3, TextStart()),
        Choice(3, TextEnd()),
    ]
    blocks.feed(events)
    blocks.feed([TextDelta("two"), Usage(1, 2)])
    assert blocks
    assert blocks.starts == {0: TextStart(), 1: ReasoningStart(), 2: ToolCallStart("c", "look")}
    closing = blocks.close()
    assert closing == [Choice(2, ToolCallEnd(complete=False)), Choice(1, ReasoningEnd(complete=False)), TextEnd(complete=False)]
    assert not blocks
    assert blocks.close() == []
    check([*events, *closing, *(Choice(index, StreamEnd("end")) for index in (1, 2, 3)), StreamEnd("end")])


def test_a_block_that_somebody_ended_is_whole_unless_it_is_a_call() -> None:
    for start, end in (
        (TextStart(), TextEnd()),
        (ReasoningStart(), ReasoningEnd()),
        (ToolCallStart("c", "n"), ToolCallEnd(complete=False)),
    ):
        blocks = OpenBlocks()
        blocks.follow(start)
        assert blocks.close(broken=False) == [end]
