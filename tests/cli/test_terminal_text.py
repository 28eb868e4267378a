"""Text of others on a terminal, and markdown cut into blocks."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamglot import Event, StreamError, TextDelta, TextEnd, TextStart, ToolCallEnd
from streamglot.cli.output.cost import cost
from streamglot.cli.output.markdown import MarkdownPrinter, split_blocks
from streamglot.cli.output.terminal import neutral
from streamglot.cli.output.text_output import PlainPrinter
from streamglot.messages import TokenCounts


@given(st.text(), st.text())
def test_no_control_character_survives_wherever_it_is_cut(first: str, second: str) -> None:
    whole = neutral(first + second)
    assert whole == neutral(first) + neutral(second)
    assert not any((ord(mark) < 32 and mark not in "\n\t") or 127 <= ord(mark) < 160 for mark in whole)


@given(st.text(alphabet="ab `~#-\n"))
def test_blocks_are_cut_without_a_loss(text: str) -> None:
    whole, rest = split_blocks(text)
    assert whole + rest == text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("one\n\ntwo", "one\n\n"),
        ("one", ""),
        ("```py\nx\n\ny\n", ""),
        ("```py\nx\n\ny\n```\nz", "```py\nx\n\ny\n```\n"),
        ("text\n```\nx", "text\n"),
        ("- one\n\n- two\n\n", ""),
        ("````\n```\n\n````\n", "````\n```\n\n````\n"),
    ],
)
def test_where_blocks_end(text: str, whole: str) -> None:
    assert split_blocks(text)[0] == whole


def test_rendered_text_is_whole_however_it_came() -> None:
    text = "# Title\n\nSome words here.\n\n```\ncode\n```\n\n1. one\n2. two\n"
    shown = []
    for size in (1, 7, len(text)):
        out = io.StringIO()
        printer = MarkdownPrinter(out, io.StringIO())
        events: list[Event] = [TextStart(), *(TextDelta(text[at : at + size]) for at in range(0, len(text), size)), TextEnd()]
        for event in events:
            printer.feed(event)
        printer.close()
        shown.append([line.strip() for line in out.getvalue().splitlines() if line.strip()])
    assert shown[0] == shown[1] == shown[2]
    assert "code" in shown[0]


def test_a_truncated_call_is_marked() -> None:
    out, err = io.StringIO(), io.StringIO()
    printer = PlainPrinter(out, err)
    for event in (ToolCallEnd(complete=False), StreamError("x", "y")):
        printer.feed(event)
    assert "(cut off)" in out.getvalue()
    assert printer.error == StreamError("x", "y")


def test_the_cost_is_shown_if_the_price_is_known() -> None:
    counts = TokenCounts(1000, 10)
    assert cost(counts, "local", "local").startswith("nothing")
    assert cost(counts, "no-such-model", "openai") == "unknown"
    assert cost(TokenCounts(), "gpt-4o", "openai") == "unknown"
    assert cost(counts, "gpt-4o", "openai") == "$0.0026"
    assert cost(counts, "openai/gpt-4o", "openrouter") == "$0.0026"
    assert cost(counts, "openai/gpt-4o", "openai") == "$0.0026"
    assert cost(TokenCounts(-5, 1), "gpt-4o", "openai") == "unknown"
