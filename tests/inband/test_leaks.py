"""What servers leak: tokens at the end of an answer, tags around reasoning, closing tags behind calls."""

from __future__ import annotations

import pytest

from inband.readings import read_all_ways
from streamglot.events import BareEvent
from streamglot.inband import FORMATS
from streamglot.inband.leaks import MAX_WAITING_CHARS, Leaks
from streamglot.inband.scan import END_TOKENS
from vocabulary import *

WRITE = {"name": "write", "parameters": {"properties": {"content": {"type": "string"}}}}
CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"


def through(text: str, size: int, start: BareEvent, end: BareEvent, *after: BareEvent) -> list[BareEvent]:
    delta = ReasoningDelta if isinstance(start, ReasoningStart) else TextDelta
    pieces = [delta(text[at : at + size]) for at in range(0, len(text), size)]
    box, out = Leaks(), []
    for event in (StreamStart(), start, *pieces, end, *after):
        out += box.feed(event)
    return out + box.close()


def left(events: list[BareEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, (TextDelta, ReasoningDelta)))


@pytest.mark.parametrize("token", END_TOKENS)
def test_a_token_at_the_very_end_is_removed_and_inside_it_is_text(token: str) -> None:
    for format in ("none", "any", "hermes", "mistral", "glm4x", "muse_glimmer"):
        assert read_all_ways(f"Hello there.{token}", format, starts_in_reasoning=False)["text"] == "Hello there."
        inside = f"Hello {token} there."
        assert read_all_ways(inside, format, starts_in_reasoning=False)["text"] == inside
    for size in range(1, 20):
        ends = (TextEnd(), Usage(1, 1), StreamEnd("end"))
        assert left(through(f"Hi.{token}\n{token}", size, TextStart(), *ends)) == "Hi."
        assert left(through(f"{token}Hi {token} so<", size, TextStart(), *ends)) == f"{token}Hi {token} so<"
        assert left(through(f"Hi.{token}", size, TextStart(), TextEnd(), ToolCallStart("a", "f"), ToolCallEnd())) == f"Hi.{token}"
    assert through("a" + token * 200, 7, TextStart(), TextEnd(), StreamEnd("end"))[-1] == StreamEnd("end")
    assert len(token * 200) > MAX_WAITING_CHARS


def test_events_keep_their_order_while_a_token_waits() -> None:
    found = through("Hi.</s>", 3, TextStart(), TextEnd(), Usage(1, 1), StreamEnd("end"))
    assert found[-3:] == [TextEnd(), Usage(1, 1), StreamEnd("end")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>Let me analyze", "Let me analyze"),
        ("First</think>", "First"),
        ("<think>a</think>", "a"),
        ("<think>a</think><think>b", "ab"),
        ("I write <think> here", "I write <think> here"),
        ("the `</think>` tag", "the `</think>` tag"),
        ("a < b </thi", "a < b </thi"),
    ],
)
def test_tags_in_reasoning_are_marks_wherever_they_are_cut(text: str, expected: str) -> None:
    for size in range(1, len(text) + 1):
        assert left(through(text, size, ReasoningStart(), ReasoningEnd(), StreamEnd("end"))) == expected


def test_a_closing_tag_of_a_value_behind_a_call_is_not_content() -> None:
    for text in (f"{CODER}\n</parameter>", CODER.replace("</tool_call>", "</parameter>\n</tool_call>")):
        found = read_all_ways(text, "qwen3_coder", starts_in_reasoning=False)
        assert (found["text"], found["complete"]) == ("", [True])
    assert read_all_ways("a </parameter> b", "qwen3_coder", starts_in_reasoning=False)["text"] == "a </parameter> b"


def test_a_value_of_several_lines_loses_one_line_end_on_each_side() -> None:
    found = read_all_ways("<write>\n<content>\na\n\nb\n</content>\n</write>", "tool_tags", [WRITE])
    assert found["calls"] == [["write", '{"content": "a\\n\\nb"}']]
    assert FORMATS["tool_tags"].example.count("Paris") == 1
