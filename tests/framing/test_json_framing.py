"""JSON lines, streamed arrays, and the depth counter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_checks import every_cut
from streamglot.framing import Frame, JsonArray, JsonDepth, NdJson
from streamglot.framing.lines import Surrogates, Utf8, ndjson_line, whole_characters
from streamglot.limits import Limits

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def test_json_lines() -> None:
    assert every_cut(NdJson, b'{"a": 1}\r\n\n  \n{"b": 2}') == [Frame(b'{"a": 1}'), Frame(b'{"b": 2}')]
    assert ndjson_line(b"{}") == b"{}\n"


def test_json_lines_have_a_limit() -> None:
    box = NdJson(Limits(line_bytes=4))
    assert box.feed(b"{}\n{ 1 }\n{}\n") == [Frame(b"{}")]
    assert box.error is not None
    assert box.feed(b"{}\n") == box.close() == []


@given(st.lists(st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=4), st.sampled_from([None, 2]))
def test_a_streamed_array_gives_its_elements(elements: list[dict[str, Any]], indent: int | None) -> None:
    given_frames = every_cut(JsonArray, json.dumps(elements, indent=indent, ensure_ascii=False).encode("utf-8", "replace"), 1)
    assert len(given_frames) == len(elements)
    for frame, element in zip(given_frames, elements, strict=True):
        assert json.loads(frame.data) == json.loads(json.dumps(element, ensure_ascii=False).encode("utf-8", "replace"))


def test_an_array_that_was_cut_leaves_its_last_element_unfinished() -> None:
    assert every_cut(JsonArray, b'[{"a": 1},\r\n{"b": "}') == [Frame(b'{"a": 1}'), Frame(b'{"b": "}')]


def test_an_element_has_a_limit() -> None:
    boxes: list[JsonArray] = []

    def make() -> JsonArray:
        boxes.append(JsonArray(Limits(event_bytes=10)))
        return boxes[-1]

    assert every_cut(make, b'[{"a": 1},{"b": "0123456789"},{"c": 3}]') == [Frame(b'{"a": 1}')]
    assert all(box.error for box in boxes)


@given(values, st.integers(1, 5))
def test_depth_knows_when_a_value_is_whole(value: object, size: int) -> None:
    text = json.dumps(value)
    depth = JsonDepth()
    for position in range(0, len(text), size):
        depth.feed(text[position : position + size])
    assert depth.complete


@pytest.mark.parametrize("text", ['{"a": "}"', '{"a": "\\"', '["', "", "  ", '{"a": [1, 2}', "}"])
def test_depth_knows_when_it_is_not(text: str) -> None:
    depth = JsonDepth()
    for character in text:
        depth.feed(character)
    assert not depth.complete


def test_the_depth_shows_where_a_value_ends() -> None:
    assert JsonDepth().feed('{"a": "\\"}"} {') == 12
    assert JsonDepth().feed('x{"a": 1}y', 1) == 9
    assert JsonDepth().feed("12") == -1


def test_utf8_holds_a_code_point_that_was_cut() -> None:
    box = Utf8()
    data = "\ufeffaé漢😀".encode()
    assert "".join(box.feed(data[i : i + 1]) for i in range(len(data))) + box.close() == "aé漢😀"
    box = Utf8()
    assert box.feed(b"\xff\xe6") + box.close() == "��"


def test_halves_of_a_surrogate_pair_are_joined() -> None:
    box = Surrogates()
    assert box.feed("a\ud83d") == "a"
    assert box.feed("\ude00b") == "😀b"
    assert box.feed("\ude00\ud83d") == "�"
    assert box.close() == "�"
    assert box.feed("") == box.close() == ""
    assert whole_characters("plain") == "plain"
