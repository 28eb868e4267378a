"""Patterns in texts that come in pieces are found as in the whole text, and no more text is held than necessary."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from bench.pattern_oracle import expected_matches, least_hold
from hypothesis import given
from hypothesis import strategies as st

from streamglot.errors import ConfigError
from streamglot.patterns.scanner import (
    HOLD_CHARS,
    RESCAN_CHARS,
    Overflow,
    Pattern,
    PatternMatch,
    PatternSet,
    Scanner,
    Segment,
    joined,
)

PATTERNS = {
    "mail": r"\b[a-c]+@[a-c]+\.[a-c]{2,3}",
    "word": r"\bab\b",
    "line": r"(?m)^#.*$",
    "end": r"(?:a+)+$",
    "any case": r"(?i)x[^x@]*y",
    "either": "cab|abc@",
    "start": r"\Aba",
    "inside": r"b\Ba",
    "counted": "(?:a.){2,3}@",
}
texts = st.text(alphabet="abcxyXY@.# \n", max_size=24)


def chars(segment: Segment) -> int:
    assert not isinstance(segment, Overflow)
    return len(segment if isinstance(segment, str) else segment.raw)


def scan(scanner: Scanner, pieces: Iterable[str]) -> list[Segment]:
    return joined([segment for piece in pieces for segment in scanner.feed(piece)] + scanner.close())


def spans(segments: list[Segment]) -> list[tuple[int, int, str]]:
    found, at = [], 0
    for segment in segments:
        size = chars(segment)
        if isinstance(segment, PatternMatch):
            found.append((at, at + size, segment.name))
        at += size
    return found


@pytest.mark.parametrize("name", PATTERNS)
@given(text=texts)
def test_one_pattern_is_found_and_held_as_the_oracle_says(name: str, text: str) -> None:
    check_against_oracle({name: PATTERNS[name]}, text)


@given(text=texts)
def test_all_patterns_together_are_found_and_held_as_the_oracle_says(text: str) -> None:
    check_against_oracle(PATTERNS, text)


def check_against_oracle(patterns: dict[str, str], text: str) -> None:
    compiled = PatternSet([Pattern(name, pattern) for name, pattern in patterns.items()])
    scanner = compiled.scanner()
    segments: list[Segment] = []
    released = 0
    for place, char in enumerate(text, 1):
        given_now = scanner.feed(char)
        released += sum(map(chars, given_now))
        assert len(scanner.held) == place - released
        segments += given_now
        assert released == least_hold(patterns, text[:place], released), "more is held than necessary, or less"
    segments = joined(segments + scanner.close())
    assert spans(segments) == expected_matches(patterns, text)
    assert segments == scan(compiled.scanner(), [text])


def test_a_lookbehind_looks_at_text_that_has_left() -> None:
    compiled = PatternSet([Pattern("id", r"(?<=id=)\d+"), Pattern("é", "(?<=é.)z")])
    text = "id=12 xid=3, id= 4 éxz éz"
    expected = [(3, 5, "id"), (10, 11, "id"), (21, 22, "é")]
    assert spans(compiled.segments(text)) == expected
    scanner = compiled.scanner()
    given_back = [segment for char in text for segment in scanner.feed(char)]
    assert spans(joined(given_back + scanner.close())) == expected
    scanner = compiled.scanner()
    assert scanner.feed("my id=") == ["my id="]
    assert scanner.feed("1") == []
    assert scanner.feed(",") == [PatternMatch("1", "id", "", "1"), ","]


def test_words_are_found_alone_and_longest_first() -> None:
    compiled = PatternSet([], {"animal": ["cat", "cat food", "İstanbul", "C++"]})
    text = "Cat cats CAT FOOD, concat cat_ c cat İSTANBUL İstanbul C++ c++x"
    expected = [text[begin:end] for begin, end, _ in spans(compiled.segments(text))]
    assert expected == ["Cat", "CAT FOOD", "cat", "İSTANBUL", "İstanbul", "C++"]
    for seed in range(20):
        cuts = sorted(random.Random(seed).sample(range(len(text)), 9))
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, None], strict=True)]
        assert scan(compiled.scanner(), pieces) == compiled.segments(text)


def test_only_the_beginning_of_a_word_is_held() -> None:
    scanner = PatternSet([], {"animal": ["cat food"]}).scanner()
    assert scanner.feed("a concat ca") == ["a concat "]
    assert scanner.feed("r") == ["car"]
    assert scanner.feed(" cat food") == [" "]
    assert scanner.feed("s") == ["cat foods"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [([], "no words"), ([" "], "is empty"), (["x" * 201], "more than 200")],
)
def test_word_lists_that_are_refused(words: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        PatternSet([], {"list": words})


def test_a_set_without_patterns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no pattern and no word"):
        PatternSet([])
    with pytest.raises(ConfigError, match="hold_chars"):
        PatternSet([Pattern("a", "a")], hold_chars=10)


def test_text_flows_while_nothing_can_match() -> None:
    scanner = PatternSet([Pattern("key", "sk-[a-z]+")]).scanner()
    assert scanner.feed("all of this leaves, s") == ["all of this leaves, "]
    assert scanner.feed("o it does, sk") == ["so it does, "]
    assert scanner.feed("") == []
    assert scanner.feed("-abc") == []
    assert scanner.feed("d!") == [PatternMatch("sk-abcd", "key", "", "sk-abcd"), "!"]
    assert scanner.close() == []
    assert scanner.feed("x") == []


@pytest.mark.parametrize("piece", [1, 7, 1000, 10**6])
def test_a_candidate_at_the_hold_limit_stops_the_text(piece: int) -> None:
    compiled = PatternSet([Pattern("key", "sk-[a-z]+!")], hold_chars=3000)
    text = "free sk-" + "a" * 2990 + " end sk-" + "b" * 5000 + "! never"
    scanner = compiled.scanner()
    given_back = [segment for at in range(0, len(text), piece) for segment in scanner.feed(text[at : at + piece])]
    assert joined(given_back + scanner.close()) == ["free sk-" + "a" * 2990 + " end ", Overflow(3000)]


@pytest.mark.parametrize("piece", [1, 13, 4000])
def test_long_candidates_that_die_are_released(piece: int) -> None:
    compiled = PatternSet([Pattern("key", "sk-[a-z]+!"), Pattern("n", "[0-9]{4}")])
    text = "x sk-" + "a" * (3 * RESCAN_CHARS) + " 1234 sk-" + "b" * (HOLD_CHARS // 2) + "!"
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    assert scan(compiled.scanner(), pieces) == compiled.segments(text)
    assert [segment.name for segment in compiled.segments(text) if isinstance(segment, PatternMatch)] == ["n", "key"]


def test_lone_surrogates_pass() -> None:
    compiled = PatternSet([Pattern("key", r"\bsk-[a-z]+")], {"word": ["cat"]})
    text = "\ud83d sk-abc \ude00cat\ud800 x"
    assert "".join(segment if isinstance(segment, str) else segment.raw for segment in compiled.segments(text)) == text  # type: ignore[union-attr]  # no overflow
    assert scan(compiled.scanner(), text) == compiled.segments(text)


def test_a_match_that_fails_its_check_hides_no_other() -> None:
    even = Pattern("even", "[0-9]{4}", check=lambda text: int(text) % 2 == 0)
    compiled = PatternSet([even, Pattern("three", "[0-9]{3}", max_chars=3)])
    assert spans(compiled.segments("1113 11124")) == [(0, 3, "three"), (5, 9, "even")]


class Counting:
    """Counts the bytes that a search may look at."""

    width = 0

    def __init__(self, search: object) -> None:
        self._search = search
        self.bytes = 0

    def find(self, buffer: bytes, start: int) -> tuple[int, int] | None:
        self.bytes += len(buffer) - start
        return self._search.find(buffer, start)  # type: ignore[attr-defined,no-any-return]  # a Search

    def end_at(self, buffer: bytes, start: int) -> int | None:
        self.bytes += len(buffer) - start
        return self._search.end_at(buffer, start)  # type: ignore[attr-defined,no-any-return]  # a Search

    def starts(self) -> frozenset[int]:
        return self._search.starts()  # type: ignore[attr-defined,no-any-return]  # a Search

    def hold(self, buffer: bytes, start: int) -> int:
        self.bytes += len(buffer) - start
        return self._search.hold(buffer, start)  # type: ignore[attr-defined,no-any-return]  # a Search


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        (r"(a+)+$", "a"),
        (r"(a|aa)+b", "a" * 2500 + " "),
        (r"(?:a?){30}a{30}!", "a"),
        (r"\b[a-z]+@[a-z]+\.[a-z]+", "ab@ab."),
        (r"x[^y]*y", "xx"),
    ],
)
def test_the_work_grows_with_the_text_and_not_with_its_square(pattern: str, unit: str) -> None:
    work = []
    for size in (40_000, 400_000):
        compiled = PatternSet([Pattern("p", pattern)])
        counter = Counting(compiled.each[0])
        compiled.each = compiled.quick = (counter,)
        scanner = compiled.scanner()
        text = (unit * (size // len(unit)))[:size]
        for at in range(0, size, 4):
            scanner.feed(text[at : at + 4])
        scanner.close()
        work.append(counter.bytes)
    assert work[1] <= 11 * work[0] + 10**6


def test_long_candidates_are_decided_the_same_however_they_are_cut() -> None:
    source = random.Random(7)
    patterns = [Pattern("a", "a+b"), Pattern("key", "key-[a-z]+!"), Pattern("words", r"\bx[a-z ]+y\b")]
    overflows = 0
    for number in range(12):
        compiled = PatternSet(patterns, hold_chars=source.choice((2048, 2500, 4096)))
        lengths = (1, 2047, 2048, 2049, 2175, 2500, 4096)
        text = "".join(
            source.choice(("a" * source.choice(lengths), "b", "key-", "!", "x ", "y", " ")) for _ in range(12 + number)
        )
        results = []
        for size in (1, 17, 2048, 5000, len(text)):
            scanner = compiled.scanner()
            given = [segment for at in range(0, len(text), size) for segment in scanner.feed(text[at : at + size])]
            results.append(joined(given + scanner.close()))
        assert all(result == results[0] for result in results)
        overflows += isinstance(results[0][-1], Overflow)
    assert 0 < overflows < 12
