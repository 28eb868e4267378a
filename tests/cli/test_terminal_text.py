"""Text of others on a terminal, and markdown cut into blocks."""

from __future__ import annotations

import io
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.screen import screen_lines
from cli.shell import Shell, text_answer
from streamglot import Event, StreamError, TextDelta, TextEnd, TextStart, ToolCallEnd
from streamglot.cli.answer import cost
from streamglot.cli.output import markdown
from streamglot.cli.output.markdown import MarkdownPrinter, split_blocks
from streamglot.cli.output.printers import PlainPrinter
from streamglot.cli.output.terminal import WordWrap, neutral, wrapped
from streamglot.events import ReasoningDelta, ReasoningEnd, ReasoningStart, StepEnd, ToolCallDelta, ToolCallStart
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
        ("- one\n\ntwo\n", "- one\n\n"),
        ("1. one\n   ```\n   x\n   ```\n", ""),
        ("| a |\n|---|\n| 1 |\n", ""),
        ("| a |\n|---|\n| 1 |\n\n", "| a |\n|---|\n| 1 |\n\n"),
        ("one\n#", ""),
        ("# one\n", "# one\n"),
    ],
)
def test_where_blocks_end(text: str, whole: str) -> None:
    assert split_blocks(text)[0] == whole


def rendered(*pieces: str | Event) -> str:
    """What stays on the screen. Every piece is drawn as soon as it arrives."""
    out = io.StringIO()
    with patch.multiple(markdown, FRAMES=float("inf"), IDLE_FACTOR=0):
        printer = MarkdownPrinter(out, out)
        for piece in (*pieces, TextEnd()):
            printer.feed(TextDelta(piece) if isinstance(piece, str) else piece)
        printer.close()
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


WHOLE = """\
- one
- two

# Title
Some words.

More words, [a link](https://x.example).

1. first
   ```
   code of the item
   ```

2. second

```py
x = 1

y = 2
```
After.

| a | b |
|---|---|
| 1 | 2 |

> quoted

***
- after the rule

<div>
</div>

```
```

Last.
"""
SHOWN = """\
 • one
 • two

                 Title

Some words.

More words, a link (https://x.example).

 1 first

    code of the item

 2 second


 x = 1

 y = 2


After.


 a  b
 ────
 1  2


▌ quoted

----------------------------------------

 • after the rule

<div> </div>

Last.
"""


def test_html_is_shown_as_text() -> None:
    assert (
        rendered("Use <b>bold</b> and\n\n<details>\nmore\n</details>\n") == "Use <b>bold</b> and\n\n<details> more </details>\n"
    )


@pytest.mark.parametrize("size", [1, 7, 50, len(WHOLE)])
def test_blocks_are_separated_in_the_same_way_however_the_text_came(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert rendered(*(WHOLE[at : at + size] for at in range(0, len(WHOLE), size))) == SHOWN


PIECES = (
    *("a b\n", "# h\n", "- x\n", "  y\n", "\n", "```\n", "~~~\n", "> q\n", "| a | b |\n", "|---|---|\n", "---\n", "===\n"),
    *("    c\n", "1. n\n", "2) n\n", "<div>\n", "</div>\n", "`x`\n", "text", "* ", "**b**", "\t"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_rendered_text_does_not_depend_on_its_pieces(pieces: list[str]) -> None:
    whole = rendered("".join(pieces))
    assert rendered(*pieces) == whole == rendered(*"".join(pieces))
    assert not whole.startswith("\n")
    assert not whole.endswith("\n\n")


def test_a_paragraph_goes_on_in_the_next_text_block() -> None:
    assert rendered("One ", TextEnd(), TextStart(), "sentence.") == "One sentence.\n"


def test_the_next_model_turn_begins_a_paragraph() -> None:
    assert rendered("Look.", TextEnd(), StepEnd(1), TextStart(), "Found.") == "Look.\n\nFound.\n"


def test_text_around_reasoning_and_calls_has_no_empty_lines() -> None:
    call = (ToolCallStart("c", "f"), ToolCallDelta("{}"), ToolCallEnd())
    shown = rendered(ReasoningStart(), ReasoningDelta("Hm."), ReasoningEnd(), "One.\n\n", TextEnd(), *call, TextStart(), "Two.")
    assert shown == "Hm.\nOne.\n→ f({})\nTwo.\n"


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


PARAGRAPHS = [
    "# Title\n\n",
    "First ",
    "words ",
    *("and more words " for _ in range(12)),
    "\n\nSecond ",
    "end.\n\n",
    "- one\n",
    "- two\n",
]


@pytest.mark.parametrize("command", ["query", "replay"])
def test_a_slow_answer_leaves_every_block_once_on_the_screen(shell: Shell, command: str) -> None:
    shell.add_recording("slow", text_answer(*PARAGRAPHS), gap=0.03)
    shell.add_recording("fast", text_answer("".join(PARAGRAPHS)))
    shown = []
    for name in ("slow", "fast"):
        options = ["-m", name, "go"] if command == "query" else [str(shell.recordings / name)]
        with shell.terminal(command, *options) as terminal:
            assert terminal.end() == 0
        shown.append(screen_lines(terminal.seen))
    slow, fast = shown
    assert slow == fast
    assert [line.strip()[:11] for line in slow[:3]] == ["Title", "", "First words"]
    assert slow[-5:] == ["Second end.", "", " • one", " • two", ""]


@pytest.mark.parametrize(
    ("columns", "text", "shown"),
    [
        (11, "one two three", "one two\nthree"),
        (14, "one two three", "one two three"),
        (11, "  one two three", "  one two\n  three"),
        (11, "one\n\ntwo three four\n", "one\n\ntwo three\nfour\n"),
        (11, "see https://long.example/path now", "see\nhttps://long.example/path now"),
        (11, "a  b      c d", "a  b\nc d"),
        (9, "\u4f60\u597d\u4e16\u754c\u4f60\u597d", "\u4f60\u597d\u4e16\u754c\n\u4f60\u597d"),
        (11, "a\tbc de", "a\tbc\nde"),
        (10, "e\u0301a e\u0301a e\u0301aab", "e\u0301a e\u0301a\ne\u0301aab"),
        (1, "a b", "a\nb"),
    ],
)
def test_lines_are_wrapped_between_words(columns: int, text: str, shown: str) -> None:
    assert wrapped(text, columns) == shown


@given(st.text(alphabet="ab \n\t\u4f60"), st.integers(1, 12))
def test_wrapped_lines_do_not_depend_on_their_pieces(text: str, columns: int) -> None:
    box = WordWrap(columns)
    assert "".join(map(box.feed, text)) + box.close() == wrapped(text, columns)
    assert wrapped(text, columns).split() == text.split() or "\u4f60" in text


def test_reasoning_is_wrapped_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    for err, shown in ((Tty(), "The thoughts of the\nmodel.\n"), (io.StringIO(), "The thoughts of the model.\n")):
        printer = PlainPrinter(io.StringIO(), err)
        for word in ("The thou", "ghts of", " the mo", "del."):
            printer.feed(ReasoningDelta(word))
        printer.feed(ReasoningEnd())
        printer.close()
        assert err.getvalue() == shown


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True
