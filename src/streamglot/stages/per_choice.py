"""One chain of boxes for each choice of an answer, for requests that ask for several choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..events import (
    EVENT_KINDS,
    BareEvent,
    Choice,
    Event,
    KeepAlive,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    as_events,
    not_an_event,
)

_OF_ALL = (StreamStart, KeepAlive, Choice)
"""Events that no choice has for itself. A box of one choice gives no ``Choice``."""


class EventBox(Protocol):
    """A box for the events of one choice. It is fed with one event at a time."""

    def feed(self, event: BareEvent, /) -> Sequence[Event]: ...
    def close(self) -> Sequence[Event]: ...


class PerChoice:
    """Makes a box for every choice and hides the wrapping from it: each box sees one whole stream. ``make`` returns a new box,
    which is fed with one event at a time; ``first`` is the box of choice 0, if it exists already. ``feed`` takes the events of one read, or one event, and ``close`` gives what the boxes
    still held. Raises ``TypeError`` for what is not an event.

    The StreamStart and a StreamError belong to all choices: every box sees them, they leave once. An error that a box
    reports ends the stream. Where there are several choices the others go on first: the error takes the place of the end
    of choice 0, which is the last event of every stream.
    """

    def __init__(self, make: Callable[[], EventBox], first: EventBox | None = None) -> None:
        self._make = make
        self._boxes: dict[int, EventBox] = {0: first or make()}
        self._start: StreamStart | None = None
        self._error: StreamError | None = None
        self._over = False

    def feed(self, events: Iterable[Event] | Event) -> list[Event]:
        """What the boxes make of these events."""
        if type(events) is not list:
            events = as_events(events)
        out: list[Event] = []
        for event in events:
            if type(event) is TextDelta and not self._over:  # nearly all events
                out += self._without_errors(self._boxes[0].feed(event))
                if self._error is not None and len(self._boxes) == 1:
                    self._over = True
                    out.append(self._error)
            else:
                out += self._event(event)
        return out

    def _event(self, event: Event) -> list[Event]:
        if type(event) not in EVENT_KINDS:
            raise not_an_event(event)
        if self._over:
            return []
        if isinstance(event, Choice):
            return self._wrapped(event.index, self._box(event.index).feed(event.event))
        if type(event) is StreamStart:
            self._start = event
        out: list[Event] = []
        if type(event) is StreamError:
            for index in list(self._boxes)[1:]:
                out += self._wrapped(index, self._boxes[index].feed(event))
            self._error = self._error or event
        out += self._without_errors(self._boxes[0].feed(event))
        if self._error is not None and (len(self._boxes) == 1 or type(event) in (StreamEnd, StreamError)):
            self._over = True
            return [*(given for given in out if type(given) is not StreamEnd), self._error]
        return out

    def close(self) -> list[Event]:
        """What the boxes still held."""
        out: list[Event] = []
        for index in list(self._boxes)[1:]:
            out += self._wrapped(index, self._boxes[index].close())
        return [*out, *self._without_errors(self._boxes[0].close())]

    def _box(self, index: int) -> EventBox:
        if index not in self._boxes:
            self._boxes[index] = self._make()
            if self._start is not None:
                self._boxes[index].feed(self._start)
        return self._boxes[index]

    def _wrapped(self, index: int, events: Sequence[Event]) -> list[Event]:
        return [Choice(index, event) for event in self._without_errors(events) if not isinstance(event, _OF_ALL)]

    def _without_errors(self, events: Sequence[Event]) -> Sequence[Event]:
        """The first error of any choice is kept for the end."""
        if not events or type(events[-1]) is not StreamError:
            return events
        last = events[-1]
        self._error = self._error or (last if isinstance(last, StreamError) else None)
        return events[:-1]
