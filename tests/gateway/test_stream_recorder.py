"""How chunks of a stream are combined, and when they are written to the buffer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from streamglot.gateway.resumable import LARGE_BYTES, PIECES, StreamRecorder
from streamglot.store import Chunk

SSE = {"content-type": "text/event-stream"}


class Noted:
    """A buffer that records its calls."""

    def __init__(self, has_reader: bool = False) -> None:
        self.chunks: list[tuple[int, int, bytes]] = []
        self.ended = False
        self.is_wanted = has_reader
        self.on_reader: Callable[[], None] = lambda: None

    def open(
        self, stream_id: str, caller: str, on_stop: Callable[[], None], on_reader: Callable[[], None], head: str = ""
    ) -> None:
        assert (stream_id, caller, head) == ("s", "me", '{"content-type":"text/event-stream"}')
        on_stop()
        self.on_reader = on_reader

    async def claim(self, stream_id: str, caller: str, head: str) -> bool:
        raise NotImplementedError

    def has_reader(self, stream_id: str) -> bool:
        assert stream_id == "s"
        return self.is_wanted

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        assert stream_id == "s"
        self.chunks.append((first, last, data))

    def end(self, stream_id: str, head: str | None = None) -> None:
        assert (stream_id, head) == ("s", None)
        self.ended = True

    def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        raise NotImplementedError

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        raise NotImplementedError

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        raise NotImplementedError

    async def expire(self) -> None: ...

    def report(self) -> None: ...

    async def close(self) -> None: ...


def kept(buffer: Noted, numbered: bool = False, awaited: bool = False) -> StreamRecorder:
    stopped: list[bool] = []
    stream = StreamRecorder(buffer, "s", "me", lambda: stopped.append(True), SSE, numbered=numbered, awaited=awaited)
    assert stopped == [True]
    return stream


def write(stream: StreamRecorder, data: bytes) -> None:
    """As the outlet does."""
    if stream.plain:
        stream.pieces.append(data)
    else:
        assert stream.wrote(data) == data


def test_without_readers_chunks_are_written_at_the_end() -> None:
    buffer = Noted()
    stream = kept(buffer)
    for number in range(3):
        write(stream, b"data: %d\n\n" % number)
        stream.look()
    assert buffer.chunks == []
    stream.end()
    assert (buffer.chunks, buffer.ended) == ([(1, 3, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")], True)


def test_chunks_are_written_at_once_while_there_is_a_reader() -> None:
    buffer = Noted()
    stream = kept(buffer)
    write(stream, b"data: 0\n\n")
    buffer.is_wanted = True
    buffer.on_reader()
    write(stream, b"data: 1\n\n")
    assert buffer.chunks == [(1, 1, b"data: 0\n\n"), (2, 2, b"data: 1\n\n")]
    buffer.is_wanted = False
    write(stream, b"data: 2\n\n")
    write(stream, b"data: 3\n\n")
    assert len(buffer.chunks) == 2
    stream.end()
    assert buffer.chunks[2:] == [(3, 4, b"data: 2\n\ndata: 3\n\n")]


@pytest.mark.parametrize("has_reader", [False, True])
def test_an_announced_reader_makes_chunks_go_at_once(has_reader: bool) -> None:
    buffer = Noted(has_reader)
    stream = kept(buffer, awaited=not has_reader)
    write(stream, b"data: 0\n\n")
    assert buffer.chunks == [(1, 1, b"data: 0\n\n")]


@pytest.mark.parametrize("numbered", [False, True])
def test_many_chunks_are_written_without_a_reader(numbered: bool) -> None:
    buffer = Noted()
    stream = kept(buffer, numbered=numbered)
    for _ in range(PIECES + 1):
        if numbered:
            stream.wrote(b"data: 0\n\n")
        else:
            write(stream, b"data: 0\n\n")
    stream.look()
    assert [chunk[:2] for chunk in buffer.chunks] == [(1, PIECES + 1)]


def test_large_chunks_are_written_at_once() -> None:
    buffer = Noted()
    stream = kept(buffer)
    stream.look()
    large = b"data: %b\n\n" % (b"x" * LARGE_BYTES)
    write(stream, large)
    stream.look()
    assert buffer.chunks == [(1, 1, large)]


def test_event_ids_are_added_to_frames() -> None:
    buffer = Noted()
    stream = kept(buffer, numbered=True)
    assert stream.wrote(b": hello\n\nevent: x\ndata: 0\n\n") == b": hello\n\nid: 1\nevent: x\ndata: 0\n\n"
    assert stream.wrote(b"data: 1\n\n") == b"id: 2\ndata: 1\n\n"
    stream.end()
    assert buffer.chunks == [(1, 2, b": hello\n\nid: 1\nevent: x\ndata: 0\n\nid: 2\ndata: 1\n\n")]


def test_comments_wait_for_the_event_that_they_stand_before() -> None:
    buffer = Noted(has_reader=True)
    stream = kept(buffer)
    write(stream, b": still here\n\n")
    assert buffer.chunks == []
    write(stream, b"data: 0\n\n")
    assert buffer.chunks == [(1, 1, b": still here\n\ndata: 0\n\n")]


def test_comments_after_the_last_event_wait_for_the_next() -> None:
    buffer = Noted()
    stream = kept(buffer)
    for data in (b"data: 0\n\n", b": still\n\n", b": here\n\n"):
        write(stream, data)
    buffer.on_reader()
    assert buffer.chunks == [(1, 1, b"data: 0\n\n")]
    write(stream, b"data: 1\n\n")
    stream.end()
    assert buffer.chunks[1:] == [(2, 2, b": still\n\n: here\n\ndata: 1\n\n")]
