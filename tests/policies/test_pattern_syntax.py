"""Expressions are parsed and written again with the same meaning. Those that cannot be matched in a stream are refused with a
reason."""

from __future__ import annotations

import pytest
import re2  # type: ignore[import-untyped]  # google-re2 has no type information
from hypothesis import given
from hypothesis import strategies as st

from streamglot.errors import ConfigError
from streamglot.patterns.expressions import MAX_PROGRAM, fixed_width, occurs, parse, write
from streamglot.patterns.scanner import Pattern, PatternSet


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "backreference"),
        (r"(?P<n>a)(?P=n)", "backreference"),
        ("a(?=b)", "lookahead"),
        ("a(?!b)", "negative lookahead"),
        ("(?<!a)b", "negative lookbehind"),
        ("(?<=a+)b", "no fixed length"),
        ("(?<=a|bc)b", "no fixed length"),
        ("(?<=a)b|c", "first alternative only"),
        ("b(?<=a)", "very start"),
        ("(?<=a", "has no `\\)`"),
        ("a*", "matches the empty text"),
        ("a?|b", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(?:)", "matches the empty text"),
        ("a*?b", "lazy"),
        ("a++b", "possessive"),
        ("(?>a)b", "atomic"),
        ("(?(1)a)", "conditional"),
        ("(?x)a b", "verbose"),
        ("(?U)a+", "ungreedy"),
        ("(?#note)a", "unknown kind"),
        ("(a", "has no `\\)`"),
        ("a)", "without its"),
        ("*a", "nothing to repeat"),
        ("[a", "has no `\\]`"),
        ("a\\", "ends with a backslash"),
        (r"\0", "octal"),
        (r"\y", "not supported"),
        (r"\p{", "names no class"),
        (r"\x{110000}", "names no character"),
        (r"\u12", "names no character"),
        ("a{3,2}", "counts from 3 to 2"),
        ("a{1001}", "1000 at most"),
        ("a" * 2001, "2001 characters"),
        ("[z-a]", "RE2 refuses"),
        ("(?:(?:ab){500}){500}", "RE2 refuses"),
        (r"(?:\pL\pN\pP){300}", f"the maximum is {MAX_PROGRAM}"),
    ],
)
def test_patterns_that_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PatternSet([Pattern("p", pattern)])


@pytest.mark.parametrize(
    ("pattern", "text", "matched"),
    [
        (r"(?i)straße[\d]", "STRASSE straße7 STRAßE8", ["straße7", "STRAßE8"]),
        (r"(?i:a)b", "AB Ab ab aB", ["Ab", "ab"]),
        (r"(?i)a(?-i)b", "AB Ab", ["Ab"]),
        (r"(?P<year>\d{4})-(?<month>\d\d)", "2026-11", ["2026-11"]),
        (r"a.c", "a\nc abc", ["abc"]),
        (r"(?s)a.c", "a\nc abc", ["a\nc", "abc"]),
        (r"[]a]+", "]a] b", ["]a]"]),
        (r"[^]a]+", "]b]", ["b"]),
        (r"[[:digit:]x-]+", "1x-y", ["1x-"]),
        (r"[\]\\]+", "]\\x", ["]\\"]),
        (r"\Qa.b\E+", "a.bb axb", ["a.bb"]),
        (r"\Q\Ex\Q[", "x[", ["x["]),
        (r"\x41\x{42}\u0043\U00000044\t\pL\p{Lu}", "ABCD\tzZ", ["ABCD\tzZ"]),
        (r"\$\{x\}", "${x}", ["${x}"]),
        ("a{b", "a{b", ["a{b"]),
        (r"x\Z", "x x", ["x"]),
        (r"\Ax|\zy|^z", "xyz", ["x"]),
        (r"(?m)^b$", "a\nb\nc", ["b"]),
        (r"a{2}|b{1,}|c{0,1}d", "aabbcd", ["aa", "bb", "cd"]),
        (r"(?:a{0}b)+", "bb", ["bb"]),
    ],
)
def test_patterns_mean_what_they_say(pattern: str, text: str, matched: list[str]) -> None:
    for pieces in ([text], list(text)):
        scanner = PatternSet([Pattern("p", pattern)]).scanner()
        segments = [segment for piece in pieces for segment in scanner.feed(piece)] + scanner.close()
        assert [segment.text for segment in segments if not isinstance(segment, str)] == matched  # type: ignore[union-attr]  # no overflow


atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", "(?i:b)", r"\x{61}"])
trees = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(pattern=trees, text=st.text(alphabet="abB1\n", max_size=12))
def test_a_tree_is_written_with_the_same_meaning(pattern: str, text: str) -> None:
    options = re2.Options()
    options.longest_match = True
    raw, again = (re2.compile(written, options) for written in (pattern, write(parse(pattern, whole=True).body)))
    assert [found.span() for found in raw.finditer(text)] == [found.span() for found in again.finditer(text)]


def test_widths() -> None:
    widths = {"ab": 2, "a|b": 1, "(?:ab){3}": 6, r"\ba": 1, "a|bc": None, "a+": None, "(?:a|b)c": 2, "(?:a+)b": None}
    assert {pattern: fixed_width(parse(pattern).body) for pattern in widths} == widths


def test_whole_texts_may_be_tested_with_patterns_that_match_nothing() -> None:
    assert occurs("", "anything")
    assert occurs(r"^a*\Z", "aa")
    assert not occurs(r"^a*$", "ab")
    with pytest.raises(ConfigError, match="lookahead"):
        occurs("a(?=b)", "ab")
