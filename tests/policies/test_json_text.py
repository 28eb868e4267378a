"""Patterns in JSON that comes in pieces: decoded strings are searched, and valid JSON stays valid JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamglot.patterns.scanner import Overflow, Pattern, PatternMatch, PatternSet, Segment, joined
from streamglot.policies.arguments import JsonScanner

PATTERNS = PatternSet([Pattern("key", r"sk-[a-z\n\"é😀]+!"), Pattern("number", r"\b[0-9]{4}\b"), Pattern("cross", r"b\",")])


def scan(pieces: list[str] | str, patterns: PatternSet = PATTERNS) -> list[Segment]:
    scanner = JsonScanner(patterns)
    return joined([segment for piece in pieces for segment in scanner.feed(piece)] + scanner.close())


def redacted(written: str) -> str:
    out = []
    for segment in scan(list(written)):
        assert not isinstance(segment, Overflow)
        out.append(segment if isinstance(segment, str) else segment.written(f"<{segment.name}>"))
    return "".join(out)


def test_strings_are_decoded_and_replacements_escaped() -> None:
    value = {"a": 'x sk-a\nb"é😀! y', "sk-k!": [1234, "1234", 12345, -1234.0, True, None], "z": {"c": "\\n sk-"}}
    expected = {"a": "x <key> y", "<key>": ["<number>", "<number>", 12345], "z": {"c": "\\n sk-"}}
    for ascii_only in (True, False):
        result = json.loads(redacted(json.dumps(value, ensure_ascii=ascii_only).replace("-1234.0, true, null", "1")))
        assert result == {**expected, "<key>": [*expected["<key>"], 1]}


def test_replacements_are_escaped_where_they_stand() -> None:
    assert PatternMatch("", "", "", "", in_string=True).written('a"\n') == 'a\\"\\n'
    assert PatternMatch("", "", "", "", bare=True).written("é") == '"é"'
    assert PatternMatch("", "", "", "").written('a"') == 'a"'


def test_a_match_never_crosses_a_quotation_mark() -> None:
    assert scan('{"a":"b","c":1}') == ['{"a":"b","c":1}']


@pytest.mark.parametrize(
    "written",
    [
        "",
        '{"a": "\\u00e9\\/\\b\\f\\t\\r"}',
        '"\\ud83d\\ude00 \\ud83d x \\ud83d\\n \\ud83d\\u0041 \\udc00"',
        '"\\q \\u12',
        '"\\u12G4 \\',
        '"\\ud83d',
        '"\\ud83d\\ud',
        '{"a": sk-, 12',
        '{"a": 1234',
        "no json at all 1234 sk-ab!",
        '"sk-ab',
        '"\\u0073k-ab!"',
        '"s\\u006b-\\u0061"',
    ],
)
def test_free_text_leaves_exactly_as_it_was_written(written: str) -> None:
    for pieces in ([written], list(written), [written[:5], written[5:]]):
        assert "".join(segment if isinstance(segment, str) else segment.raw for segment in scan(pieces)) == written  # type: ignore[union-attr]  # no overflow
        assert scan(pieces) == scan([written])


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='sk-ab!1234 \\"\n\té😀', max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='sk-a!"', max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values, ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_any_json_in_any_cut_stays_json(value: Any, ascii_only: bool, cuts: list[int]) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    json.loads(redacted(written))
    places = sorted(min(cut, len(written)) for cut in cuts)
    pieces = [written[begin:end] for begin, end in zip([0, *places], [*places, len(written)], strict=True)]
    assert scan(pieces) == scan([written])


def test_held_text_is_reported_as_it_was_written() -> None:
    scanner = JsonScanner(PATTERNS)
    assert scanner.feed('{"a": "x s\\u006b-\\u00') == ['{"a": "x ']
    assert scanner.held == "s\\u006b-\\u00"


def test_the_hold_limit_holds_in_json_too() -> None:
    patterns = PatternSet([Pattern("key", "sk-[a-z]+!")], hold_chars=2048)
    scanner = JsonScanner(patterns)
    assert scanner.feed('{"a": "sk-' + "a" * 3000) == ['{"a": "', Overflow(2048)]
    assert scanner.feed('!"}') == []
    assert scanner.close() == []
    for number in ("1" * 5000, "1" * 5000 + "x"):
        assert scan([number], patterns) == scan(list(number), patterns) == [Overflow(2048)]
    assert scan(["1" * 2000 + "x"], patterns) == scan(list("1" * 2000 + "x"), patterns) == ["1" * 2000 + "x"]
