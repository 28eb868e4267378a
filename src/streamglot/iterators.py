"""The iterators that ``read``, ``write`` and ``translate`` give.

Theory of operation. A pump takes one item from the source, feeds it to a box and gives what the box returned. There is a plain pump and
an asynchronous one; everything else is the same. The source is drained after the end that the dialect itself defines, so that its
connection can be used again. It is closed at once where nothing more is wanted from it: after an error, after an end by a policy, and
when the iterator is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from .dialects.common.reader import Reader
from .dialects.common.writer import Writer
from .errors import StreamglotError
from .events import Event, StreamEnd, StreamError
from .messages import Response
from .stages import Collect, Snapshot

In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")
Made_co = TypeVar("Made_co", covariant=True)


class Box(Protocol[In_contra, Made_co]):
    @property
    def over(self) -> bool:
        """Whether nothing more is wanted from the source."""

    def feed(self, item: In_contra, /) -> Made_co: ...
    def close(self) -> Made_co: ...


class ByteStream(Iterator[bytes]):
    """What ``write`` and ``translate`` give for a plain source: an iterator over bytes. ``close()`` ends it early and closes what it
    reads from; so does leaving a ``with`` block. ``straight`` are the reader and the writer of a box that has nothing between."""

    def __init__(
        self,
        source: Iterable[Any],  # Any: bytes for one box, events for another
        box: Box[Any, bytes],  # Any: the same
        straight: tuple[Reader, Writer] | None = None,
    ) -> None:
        self._source = source
        self._items = iter(source)
        made = _made(self._items, source, box) if straight is None else _passed_on(self._items, source, box, *straight)
        self._pieces = made
        """A generator, because one costs less for each piece than a method."""

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """Ends the stream early. What it reads from is closed too."""
        self._pieces.close()
        _close(self._items, self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# Any: bytes for one box, events for another
def _made(items: Iterator[Any], source: object, box: Box[Any, bytes]) -> Generator[bytes, None, None]:
    """What the box makes of the items."""
    try:
        for item in items:
            if made := box.feed(item):
                yield made
            if box.over:
                _close(items, source)
                break
        if made := box.close():
            yield made
    except BaseException:
        _close(items, source)
        raise


def _passed_on(
    items: Iterator[bytes], source: object, box: Box[bytes, bytes], reader: Reader, writer: Writer
) -> Generator[bytes, None, None]:
    """The same for a reader and a writer alone, in fewer steps."""
    read, write = reader.feed, writer.feed
    try:
        for chunk in items:
            events = read(chunk)
            if made := write(events):
                yield made
            if writer.done and events and type(events[-1]) is StreamError:
                _close(items, source)
                break
        if made := box.close():
            yield made
    except BaseException:
        _close(items, source)
        raise


class AsyncByteStream(AsyncIterator[bytes]):
    """What ``write`` and ``translate`` give for an asynchronous source: an asynchronous iterator over bytes. ``aclose()`` ends it early
    and closes what it reads from; so does leaving an ``async with`` block."""

    # Any: bytes for one box, events for another
    def __init__(self, source: AsyncIterable[Any], box: Box[Any, bytes]) -> None:
        self._source = source
        self._items = aiter(source)
        self._box = box
        self._over = False

    async def __anext__(self) -> bytes:
        while not self._over:
            made = await _apumped(self)
            if made:
                return made
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the stream early. What it reads from is closed too."""
        self._over = True
        await _aclose(self._items, self._source)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class _AnswerSoFar:
    """Keeps the answer while its events are taken. The events of a read are added up together, when somebody asks or all of them
    have been taken."""

    _over: bool

    def __init__(self) -> None:
        self._collect = Collect()
        self._events: list[Event] = []
        self._taken = self._added = 0
        self._ended = False
        self._response: Response | None = None

    def _take(self) -> Event | None:
        if self._taken >= len(self._events):
            return None
        event = self._events[self._taken]
        self._taken += 1
        if type(event) is StreamEnd or type(event) is StreamError:
            self._ended = True
        return event

    def _give(self, events: list[Event]) -> None:
        self._add()
        self._events, self._taken, self._added = events, 0, 0

    def _drop(self) -> None:
        """Forgets the events that were not taken."""
        self._add()
        self._events, self._taken, self._added = [], 0, 0

    def _add(self) -> None:
        if self._added < self._taken:
            self._collect.feed(self._events[self._added : self._taken])
            self._added = self._taken

    def snapshot(self) -> Snapshot:
        """The answer so far: what the events that were taken add up to. It may be taken after every event."""
        self._add()
        return self._collect.snapshot()

    def response(self) -> Response:
        """The whole ``Response``, once the stream has ended or was closed. Before that it raises ``StreamglotError``; ``snapshot``
        shows the answer so far."""
        if not (self._ended or self._over):
            raise StreamglotError(
                "the stream has not ended: read it to its end first; snapshot() gives the answer so far", code="incomplete_output"
            )
        if self._response is None:
            self._add()
            self._response = self._collect.close()[0]
        return self._response


class EventStream(_AnswerSoFar, Iterator[Event]):
    """What ``read`` gives for a plain source: an iterator over events that keeps the answer. ``response()`` is the whole answer at the
    end, ``snapshot()`` the answer so far. ``close()`` ends it early and closes what it reads from; so does leaving a ``with``
    block."""

    def __init__(self, source: Iterable[bytes], box: Box[bytes, list[Event]]) -> None:
        super().__init__()
        self._source = source
        self._items = iter(source)
        self._box = box
        self._over = False

    def __next__(self) -> Event:
        while (event := self._take()) is None:
            if self._over:
                raise StopIteration
            self._give(_pumped(self))
        return event

    def close(self) -> None:
        """Ends the stream early. What it reads from is closed too."""
        self._over = True
        self._drop()
        _close(self._items, self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncEventStream(_AnswerSoFar, AsyncIterator[Event]):
    """What ``read`` gives for an asynchronous source: an asynchronous iterator over events that keeps the answer. ``response()`` is the
    whole answer at the end, ``snapshot()`` the answer so far. ``aclose()`` ends it early and closes what it reads from; so does
    leaving an ``async with`` block."""

    def __init__(self, source: AsyncIterable[bytes], box: Box[bytes, list[Event]]) -> None:
        super().__init__()
        self._source = source
        self._items = aiter(source)
        self._box = box
        self._over = False

    async def __anext__(self) -> Event:
        while (event := self._take()) is None:
            if self._over:
                raise StopAsyncIteration
            self._give(await _apumped(self))
        return event

    async def aclose(self) -> None:
        """Ends the stream early. What it reads from is closed too."""
        self._over = True
        self._drop()
        await _aclose(self._items, self._source)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class _Pump(Protocol[Out]):
    _source: Iterable[Any]  # Any: what the box takes
    _items: Iterator[Any]  # Any: the same
    _box: Box[Any, Out]  # Any: the same
    _over: bool


class _AsyncPump(Protocol[Out]):
    _source: AsyncIterable[Any]  # Any: what the box takes
    _items: AsyncIterator[Any]  # Any: the same
    _box: Box[Any, Out]  # Any: the same
    _over: bool


_END = object()


def _pumped(pump: _Pump[Out]) -> Out:
    """What the box makes of the next item of the source, or of its end."""
    try:
        item = next(pump._items, _END)
    except BaseException:
        pump._over = True
        raise
    if item is _END:
        pump._over = True
        return pump._box.close()
    try:
        made = pump._box.feed(item)
        if pump._box.over:
            pump._over = True
            _close(pump._items, pump._source)
            return _last(pump._box, made)
    except BaseException:
        pump._over = True
        _close(pump._items, pump._source)
        raise
    return made


async def _apumped(pump: _AsyncPump[Out]) -> Out:
    try:
        item = await anext(pump._items, _END)
    except BaseException:
        pump._over = True
        raise
    if item is _END:
        pump._over = True
        return pump._box.close()
    try:
        made = pump._box.feed(item)
        if pump._box.over:
            pump._over = True
            await _aclose(pump._items, pump._source)
            return _last(pump._box, made)
    except BaseException:
        pump._over = True
        await _aclose(pump._items, pump._source)
        raise
    return made


def _last(box: Box[Any, Out], made: Out) -> Out:  # Any: what the box takes
    joined: Any = made  # Any: bytes or a list, and both can be joined
    both: Out = joined + box.close()
    return both


def _close(*sources: object) -> None:
    """Closes the iterator of a source, and the source itself where that is another object."""
    for source in dict.fromkeys(map(_Same, sources)):
        close = getattr(source.one, "close", None)
        if callable(close):
            close()


async def _aclose(*sources: object) -> None:
    for source in dict.fromkeys(map(_Same, sources)):
        close = getattr(source.one, "aclose", None)
        if callable(close):
            await close()


class _Same:
    """An object that is equal to itself only."""

    def __init__(self, one: object) -> None:
        self.one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.one is other.one

    def __hash__(self) -> int:
        return id(self.one)
