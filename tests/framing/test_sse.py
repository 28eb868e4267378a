"""Server-sent events: the standard, the three deviations, and the limits."""

from __future__ import annotations

import pytest

from split_checks import every_cut
from streamglot.framing import Frame, Sse
from streamglot.framing.sse import comment, event
from streamglot.limits import Limits


def frames(data: bytes, **limits: int) -> list[Frame]:
    return every_cut(lambda: Sse(Limits(**limits)), data)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_at_lf_crlf_and_cr(end: bytes) -> None:
    assert frames(end.join((b"event: a", b"data: 1", b"", b"data: 2", b"", b""))) == [Frame(b"1", "a"), Frame(b"2")]


def test_unicode_line_separators_do_not_end_a_line() -> None:
    text = "a\u2028b\u0085c\u2029d".encode()
    assert frames(b"data: " + text + b"\n\n") == [Frame(text)]


def test_a_byte_order_mark_is_stripped_once() -> None:
    assert frames(b"\xef\xbb\xbfdata: 1\n\n") == [Frame(b"1")]
    assert frames(b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n")[0].kind == "stray"


def test_one_space_after_the_colon_is_taken_away_and_no_more() -> None:
    assert frames(b"data:1\n\ndata: 1\n\ndata:  1\n\ndata\n\n") == [Frame(b"1"), Frame(b"1"), Frame(b" 1"), Frame(b"")]


def test_data_lines_of_one_event_are_joined() -> None:
    assert frames(b"data: {\ndata: }\n\n") == [Frame(b"{\n}")]


def test_whole_json_documents_in_one_event_are_so_many_frames() -> None:
    assert frames(b'data: {"a":1}\ndata: {"b":2}\n\n') == [Frame(b'{"a":1}'), Frame(b'{"b":2}')]
    assert frames(b'data: {"a":\ndata: 1} \ndata:\ndata:  [2]\ndata: [DONE]\n\n') == [
        Frame(b'{"a":\n1}'),
        Frame(b"[2]"),
        Frame(b"[DONE]"),
    ]
    assert frames('data: {"a":"é\u2028"}\r\ndata: {"b":"😀"}'.encode()) == [
        Frame('{"a":"é\u2028"}'.encode()),
        Frame('{"b":"😀"}'.encode()),
    ], "the end of the input ends them too"
    named = b'event: a\ndata: {"a":1}\nevent: b\ndata: {"b":2}\ndata: {"c":3}\n\n'
    assert frames(named) == [Frame(b'{"a":1}', "a"), Frame(b'{"b":2}', "b"), Frame(b'{"c":3}', "b")]


def test_what_is_not_whole_documents_is_left_to_the_reader() -> None:
    assert frames(b'data: {"a":1}\ndata: {"b":\n\n') == [Frame(b'{"a":1}'), Frame(b'{"b":')]
    assert frames(b'data: {"a":\ndata: {"b":2}\n\n') == [Frame(b'{"a":\n{"b":2}')]
    assert frames(b'data: {"a":1}{"b":2}\n\n') == [Frame(b'{"a":1}{"b":2}')]
    assert frames(b"data: one\ndata: two\n\n") == [Frame(b"one\ntwo")]
    assert frames(b"data: {\ndata: \xff}\n\n") == [Frame(b"{\n\xff}")]
    deep = b"[" * 100_000
    assert frames(b"data: " + deep + b"\ndata: 1\n\n") == [Frame(deep + b"\n1")]


def test_a_name_behind_the_data_belongs_to_its_event_only() -> None:
    assert frames(b"data: 1\nevent: a\n\ndata: {}\ndata: {}\n\n") == [Frame(b"1", "a"), Frame(b"{}"), Frame(b"{}")]


def test_an_event_name_without_data_is_ignored_and_does_not_last() -> None:
    assert frames(b"event: a\n\ndata: 1\n\n") == [Frame(b"1")]


def test_data_may_come_before_the_event_name() -> None:
    assert frames(b"data: 1\nevent: a\n\n") == [Frame(b"1", "a")]


def test_ids_and_retries_are_not_frames() -> None:
    assert frames(b"id: 1\n\nretry: 3\n\nid: 2\ndata: 1\n\n") == [Frame(b"1")]


def test_a_comment_is_a_frame_of_its_own() -> None:
    assert frames(b": still here\n\n:\n\ndata: 1\n\n") == [
        Frame(b"still here", kind="comment"),
        Frame(b"", kind="comment"),
        Frame(b"1"),
    ]


def test_a_line_that_is_not_a_field_is_a_stray_frame() -> None:
    assert frames(b'error: {"a": 1}\n\n{"b": 2}\n') == [Frame(b'error: {"a": 1}', kind="stray"), Frame(b'{"b": 2}', kind="stray")]


def test_an_event_without_its_blank_line_is_still_returned() -> None:
    assert frames(b"data: 1\n\ndata: 2") == [Frame(b"1"), Frame(b"2")]
    assert frames(b"data: 2\n") == [Frame(b"2")]


def test_empty_input_gives_no_events() -> None:
    assert frames(b"") == frames(b"\n\n\n") == []


@pytest.mark.parametrize(
    ("limit", "data"),
    [
        ({"line_bytes": 8}, b"data: 1\n\ndata: 12345678\n\ndata: 2\n\n"),
        ({"event_bytes": 8}, b"data: 1\n\ndata: 1234\ndata: 5678\n\ndata: 2\n\n"),
        ({"event_lines": 2}, b"data: 1\n\ndata: 1\ndata: 2\ndata: 3\n\ndata: 2\n\n"),
    ],
)
def test_a_limit_keeps_what_came_before_it(limit: dict[str, int], data: bytes) -> None:
    boxes: list[Sse] = []

    def make() -> Sse:
        boxes.append(Sse(Limits(**limit)))
        return boxes[-1]

    assert every_cut(make, data) == [Frame(b"1")]
    assert all(box.error and box.error.code == f"limit_{next(iter(limit))}" for box in boxes)


def test_events_are_written_as_frames() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", b"ping") == b"event: ping\ndata: {}\n\n"
    assert comment("a\nb\r\nc") == b": a b c\n\n"
    assert frames(event(b"{}", b"x") + comment("y")) == [Frame(b"{}", "x"), Frame(b"y", kind="comment")]
