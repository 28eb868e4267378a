"""The tokens of JSON in pieces: the same for every cut, and the same judgement as the standard library's."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamglot.json.tokenizer import BEGIN_STRING, END_STRING, KEY, SCALAR, Token, Tokenizer, escape, run

DEPTH = 30
texts = st.text(st.characters() | st.sampled_from('"\\/\n\t\x00é😀\ud83d\ude00'), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
documents = st.builds(
    lambda value, plain, indent: json.dumps(value, ensure_ascii=plain, indent=indent),
    values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
INSERTED = st.sampled_from([*'{}[]:,"\\ \n\t-+.019eEntu', "\\u", "\\ud83d", "\\ude00", "true", "\xa0", "\x00", "😀", "NaN", "١"])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A document in which a piece is left out, or something else stands."""
    text = draw(documents)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(INSERTED | st.just("")) + text[at + draw(st.integers(0, 3)) :]


def read(text: str, cuts: list[int]) -> tuple[list[Token], str, int]:
    """The tokens with their places in the whole text, the fault, and its place."""
    tokenizer, tokens = Tokenizer(DEPTH), []
    places = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(places):
        tokens += [(kind, at + start, to + start, own, level) for kind, at, to, own, level in tokenizer.feed(text[start:end])]
        if tokenizer.fault:
            return tokens, tokenizer.fault, tokenizer.fault_at + start
    tokens += [(kind, len(text), len(text), own, level) for kind, _, _, own, level in tokenizer.close()]
    return tokens, tokenizer.fault, len(text)


def value_of(text: str) -> Any:
    """The value that the tokens stand for."""
    tokens = iter(read(text, [])[0])

    def value(token: Token) -> Any:
        kind, at, _, own, _ = token
        if kind == SCALAR:
            return json.loads(own)
        if kind == BEGIN_STRING:
            return json.loads(text[at : next(tokens)[2]])
        if kind == "[":
            return list(items("]"))
        return {json.loads(f'"{key[3]}"'): (next(tokens), value(next(tokens)))[1] for key in parts("}")}

    def parts(end: str) -> Any:
        for token in tokens:
            if token[0] == end:
                return
            if token[0] != ",":
                yield token

    def items(end: str) -> Any:
        return map(value, parts(end))

    return value(next(tokens))


def is_json(text: str) -> bool:
    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(documents)
def test_the_tokens_of_a_document_are_its_value(text: str) -> None:
    assert read(text, [])[1] == ""
    assert value_of(text) == json.loads(text)


@given(documents | damaged(), st.data())
def test_any_cut_gives_the_same_tokens_and_the_same_fault(text: str, data: st.DataObject) -> None:
    whole = read(text, [])
    assert read(text, list(range(1, len(text)))) == whole
    assert read(text, data.draw(st.lists(st.integers(0, len(text)), max_size=4))) == whole


@pytest.mark.parametrize(
    "text", ['{"a\\ud83d\\ude00": ["\\u00e9\\n\\ud83d", -1.5e+3, true], "b": {}}', '"\\ud83d\\ud83d\\ude00"', " 12 "]
)
def test_every_cut_of_a_document_gives_the_same_tokens(text: str) -> None:
    whole = read(text, [])
    assert whole[1] == ""
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert read(text, [first, second]) == whole


@given(damaged())
@example('{"a": "\\x"}')
@example('["\\u12"]')
@example("[١]")
@example("[1,]")
@example('{"a"}')
@example("[1\xa0]")
@example("")
@example('"a\nb"')
def test_what_is_json_is_judged_as_by_the_standard_library(text: str) -> None:
    assert (read(text, [])[1] == "") == is_json(text)


def test_a_fault_is_at_the_character_that_shows_it() -> None:
    for text, at, fault in (
        ('{"a": 1 2}', 8, "a comma or the end is missing before '2'"),
        ("[tru]", 4, "'tru' is not a JSON value"),
        ('["a\tb"]', 3, "a string contains a control character"),
        ('["a\\qb"]', 6, "the text is not valid JSON: a string has an escape that JSON does not have"),
        ("[1]]", 3, "there is text after the JSON value"),
        ("[}", 1, "there is '}' where a value must be"),
        ('{"a" 1}', 5, "a colon is missing before '1'"),
        ("[1", 2, "a comma or the end is missing"),
        ('["a', 3, "the end of a string is missing"),
    ):
        assert read(text, [])[1:] == (fault, at)


def test_the_depth_has_a_limit() -> None:
    assert read("[" * DEPTH + "]" * DEPTH, [])[1] == ""
    assert read("[" * (DEPTH + 1), [])[1:] == (f"the value is nested more than {DEPTH} times", DEPTH)


def test_halves_of_a_pair_are_one_character() -> None:
    assert escape("\\ud83d\\ude00x", 0) == (12, "😀")
    for cut in range(1, 12):
        assert escape("\\ud83d\\ude00"[:cut], 0) is None
    assert escape("\\ud83dx", 0) == (6, "\ud83d")
    assert escape("\\ud83d\\n", 0) == (6, "\ud83d")
    assert escape("a\\q", 1) == (3, "q")
    assert escape("\\u12x", 0) == (0, "")


@given(st.text(st.characters() | st.sampled_from("\n\t\\é😀\ud83d\ude00"), max_size=12), st.booleans())
def test_the_text_of_a_string_comes_back(text: str, plain: bool) -> None:
    written, found, at = json.dumps(text, ensure_ascii=plain)[1:-1], "", 0
    while at < len(written):
        at, meaning = run(written, at)
        found += meaning
        if at < len(written):
            end, meaning = escape(written + '"', at) or (0, "")
            assert end > at
            found, at = found + meaning, end
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(text))


def test_strings_are_read_without_going_back() -> None:
    long = "a\\n" * 100_000
    assert [token[0] for token in read(f'["{long}', [])[0]] == ["[", BEGIN_STRING]
    assert [token[0] for token in read(f'{{"{long}": 1}}', [3])[0]] == ["{", KEY, ":", SCALAR, "}"]
    assert read(f'["{long}"]', [])[0][-2][0] == END_STRING
