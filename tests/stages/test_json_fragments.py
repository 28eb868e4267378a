"""Fragments of arguments that end at bounds of JSON."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from split_checks import random_cuts
from streamglot.events import Choice, Event, ToolCallDelta, ToolCallEnd, ToolCallStart
from streamglot.stages import JsonFragments

ARGUMENTS = [
    '{"location": "Paris"}',
    '{"a\\"b": [1.5e-10, true, null, "x\\u00e9\\\\", {"k": {}}], "z": -12}',
    '[ "\\ud83d\\ude00" , 123456 , false ]',
    '"alone"',
    "42",
    "{}",
    '{"text": "' + "some words and more " * 30 + '", "n": 1}',
    '{"text": "' + "\\ud83d\\ude00\\n\\\\" * 60 + '", "key": "' + "x" * 300 + '"}',
    '{"' + "k" * 200 + '": 1}',
    json.dumps({"nested": [{"path": "/tmp/x", "lines": [1, 22, 333]}] * 3}, indent=2),
]
MOST = 61


def fragments(pieces: list[str], most: int = MOST, **call: Any) -> list[str]:
    stage = JsonFragments(most)
    out = stage.feed([ToolCallStart("c", "f", **call)])
    for piece in pieces:
        out += stage.feed([ToolCallDelta(piece)])
    out += stage.feed([ToolCallEnd()])
    assert isinstance(out[-1], ToolCallEnd)
    return [event.args for event in out if isinstance(event, ToolCallDelta)]


def bounds(text: str) -> set[int]:
    """Where a fragment may end: behind each token of JSON. A long string may be cut between its characters."""
    found: set[int] = set()
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\],:\s]|[^{}\[\],:\s"]+', text):
        found.add(token.end())
        is_key = re.match(r"\s*:", text[token.end() :])
        if token[0][0] == '"' and len(token[0]) > MOST and not is_key:
            characters = r'(?:\\ud83d\\ude00|\\u[0-9a-f]{4}|\\.|[^"\\])'
            found |= {token.start() + 1 + inner.end() for inner in re.finditer(characters, token[0][1:-1])}
    return found


@pytest.mark.parametrize("text", ARGUMENTS)
def test_fragments_end_at_bounds_and_their_text_is_unchanged(text: str) -> None:
    allowed = bounds(text)
    for pieces in ([text], list(text), *(random_cuts(text, seed) for seed in range(20))):
        got = fragments(pieces)
        assert "".join(got) == text
        assert len(got) <= len(pieces) + 1
        ends = {sum(map(len, got[: number + 1])) for number in range(len(got))}
        assert ends <= allowed, (sorted(ends - allowed), got)


def test_fragments_still_stream() -> None:
    """The document's own pieces, and those of a cut in every bad place."""
    assert fragments(['{"location":', '"}']) == ['{"location":', '"}']
    pieces = ['{"loc', 'ation": "Par', 'is", "n": 12', '3, "ok": tr', 'ue, "e": "\\', 'u00e9"', "}"]
    assert fragments(pieces) == ["{", '"location": ', '"Paris", "n": ', '123, "ok": ', 'true, "e": ', '"\\u00e9"', "}"]
    long = fragments(['{"text": "', *("word " for _ in range(100)), '"}'])
    assert len(long) > 5
    assert max(map(len, long)) <= MOST + 5


def test_what_is_no_json_text_passes() -> None:
    assert fragments(["select ", "1"], kind="custom") == ["select ", "1"]
    assert fragments(["{'a': un", "quoted"]) == ["{'a': ", "unquoted"]
    assert fragments(['{"a": "broken']) == ['{"a": ', '"broken']


def test_choices_are_apart() -> None:
    stage = JsonFragments()
    events: list[Event] = [ToolCallStart("a", "f"), Choice(1, ToolCallStart("b", "g"))]
    events += [ToolCallDelta("[1"), Choice(1, ToolCallDelta("[2")), ToolCallDelta("0]"), Choice(1, ToolCallDelta("0]"))]
    out = stage.feed([*events, ToolCallEnd(), Choice(1, ToolCallEnd())])
    assert [event.args for event in out if isinstance(event, ToolCallDelta)] == ["[", "10]"]
    inner = [event.event for event in out if isinstance(event, Choice)]
    assert [event.args for event in inner if isinstance(event, ToolCallDelta)] == ["[", "20]"]


def test_random_json_in_random_cuts() -> None:
    source = random.Random(7)

    def value(depth: int) -> Any:
        if depth and source.random() < 0.5:
            many = source.randrange(4)
            return (
                [value(depth - 1) for _ in range(many)]
                if source.random() < 0.5
                else {str(n): value(depth - 1) for n in range(many)}
            )
        return source.choice([True, None, 1.25e-7, -3, "a b", 'q"\\', "😀é", ""])

    for seed in range(200):
        text = json.dumps({"v": value(4)}, ensure_ascii=source.random() < 0.5)
        got = fragments(random_cuts(text, seed))
        assert "".join(got) == text
        assert {sum(map(len, got[: number + 1])) for number in range(len(got))} <= bounds(text)
