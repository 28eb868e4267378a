"""AWS event stream: lengths, checksums, headers of every type, exceptions and limits, split anywhere."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_checks import every_cut
from streamglot.framing import AwsEventStream, Frame
from streamglot.framing.aws_eventstream import frame
from streamglot.limits import Limits

EVENT = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}


def frames(data: bytes, **limits: int) -> list[Frame]:
    return every_cut(lambda: AwsEventStream(Limits(**limits)), data)


def fault(data: bytes, **limits: int) -> tuple[list[Frame], str]:
    """The frames before the fault, and its code: the same for the whole input and byte by byte."""
    box = AwsEventStream(Limits(**limits))
    given = [*box.feed(data), *box.close()]
    assert frames(data, **limits) == given
    assert box.error is not None
    assert box.feed(frame(b"more", EVENT)) == []
    assert box.close() == []
    return given, box.error.code


def message(headers: bytes, data: bytes = b"{}", total: int | None = None, size: int | None = None) -> bytes:
    """A message built by hand, with correct checksums."""
    lengths = struct.pack(
        ">II", 16 + len(headers) + len(data) if total is None else total, len(headers) if size is None else size
    )
    body = lengths + struct.pack(">I", crc32(lengths)) + headers + data
    return body + struct.pack(">I", crc32(body))


def test_messages_come_out_whole_with_the_name_of_their_event() -> None:
    assert frames(frame(b'{"a": 1}', EVENT) + frame(b"", {}) + frame(b'{"b": 2}', {":event-type": "metadata"})) == [
        Frame(b'{"a": 1}', "chunk"),
        Frame(b""),
        Frame(b'{"b": 2}', "metadata"),
    ]
    assert frames(frame(b"1", EVENT) * 3) == [Frame(b"1", "chunk")] * 3


def test_empty_input_gives_no_frames() -> None:
    box = AwsEventStream()
    assert [*box.feed(b""), *box.close()] == []
    assert box.error is None


def test_an_exception_is_marked_and_named() -> None:
    data = frame(b'{"message": "slow down"}', {":exception-type": "throttlingException", ":message-type": "exception"})
    assert frames(data) == [Frame(b'{"message": "slow down"}', "throttlingException", "exception")]
    assert frames(frame(b"{}", {":message-type": "exception"})) == [Frame(b"{}", "exception", "exception")]


def test_an_error_without_a_payload_has_its_message_in_a_header() -> None:
    headers = {":message-type": "error", ":error-code": "InternalError", ":error-message": "it broke"}
    assert frames(frame(b"", headers)) == [Frame(b'{"message":"it broke"}', "InternalError", "exception")]
    assert frames(frame(b"", {":message-type": "error"}))[0].event == "error"


def test_header_values_of_every_type_are_skipped() -> None:
    values = {0: b"", 1: b"", 2: b"x", 3: b"xx", 4: b"x" * 4, 5: b"x" * 8, 6: b"\x00\x03abc", 8: b"x" * 8, 9: b"x" * 16}
    headers = b"".join(b"\x01h" + bytes((kind,)) + value for kind, value in values.items())
    assert frames(message(headers + b"\x0b:event-type\x07\x00\x05chunk")) == [Frame(b"{}", "chunk")]


@pytest.mark.parametrize(
    "headers", [b"\x05ab", b"\x01h", b"\x01h\x07\x00", b"\x01h\x07\x00\x09abc", b"\x01h\x04xx", b"\x01h\x0axx"]
)
def test_headers_that_make_no_sense_are_a_fault(headers: bytes) -> None:
    assert fault(frame(b"{}", EVENT) + message(headers)) == ([Frame(b"{}", "chunk")], "bad_frame")


@pytest.mark.parametrize(("total", "size"), [(15, 0), (0, 0), (18, 3), (20, 4_000_000_000)])
def test_lengths_that_cannot_be_are_a_fault(total: int, size: int) -> None:
    assert fault(message(b"", total=total, size=size)) == ([], "bad_frame")


def test_a_wrong_checksum_is_a_fault_and_keeps_what_came_before() -> None:
    good = frame(b'{"a": 1}', EVENT)
    for place in range(len(good)):
        broken = bytearray(good)
        broken[place] ^= 0x40
        assert fault(good + bytes(broken)) == ([Frame(b'{"a": 1}', "chunk")], "bad_checksum")


def test_text_instead_of_frames_is_a_fault() -> None:
    assert fault(b"data: {}\n\ndata: {}\n\n")[1] == "bad_checksum"


def test_a_message_that_is_too_long_passes_a_limit_before_it_is_there() -> None:
    assert fault(frame(b"x" * 200, EVENT)[:50], event_bytes=150) == ([], "limit_event_bytes")


def test_the_end_inside_a_message_is_a_truncation() -> None:
    data = frame(b"{}", EVENT)
    assert fault(data + data[:-1]) == ([Frame(b"{}", "chunk")], "upstream_truncated")
    assert fault(data[:5]) == ([], "upstream_truncated")


def test_many_kinds_of_headers_are_not_all_remembered() -> None:
    names = [f"event{number}" for number in range(200)]
    box = AwsEventStream()
    given = box.feed(b"".join(frame(b"{}", {":event-type": name}) for name in names))
    assert [one.event for one in given] == names
    assert len(box._meanings) == 64


def test_a_long_message_byte_by_byte_costs_linear_time() -> None:
    data = frame(b"x" * 300_000, EVENT)
    box = AwsEventStream()
    given = [one for place in range(len(data)) for one in box.feed(data[place : place + 1])]
    assert [len(one.data) for one in given] == [300_000]


def test_our_frames_are_read_by_the_official_parser() -> None:
    botocore = pytest.importorskip("botocore.eventstream")
    buffer = botocore.EventStreamBuffer()
    buffer.add_data(frame('{"a": "é"}'.encode(), EVENT))
    (read,) = buffer
    assert (read.headers, read.payload) == (EVENT, '{"a": "é"}'.encode())


@given(st.binary(max_size=200), st.integers(0, 60))
def test_any_bytes_give_frames_or_a_fault(data: bytes, cut: int) -> None:
    frames(data)
    frames(frame(b"{}", EVENT)[:cut] + data)
    frames(message(data))
