"""One chain of boxes for each choice of an answer, for requests that ask for several choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..events import BareEvent, Choice, Event, KeepAlive, StreamEnd, StreamError, StreamStart


class EventBox(Protocol):
    def feed(self, item: BareEvent) -> list[BareEvent]: ...
    def close(self) -> list[BareEvent]: ...


class PerChoice:
    """Makes a box for every choice and hides the wrapping from it: each box sees one whole stream.

    The StreamStart and a StreamError belong to all choices: every box sees them, they leave once. An error that a box
    reports ends the stream. Where there are several choices the others go on first: the error takes the place of the end
    of choice 0, which is the last event of every stream.
    """

    def __init__(self, make: Callable[[], EventBox]) -> None:
        self._make = make
        self._boxes: dict[int, EventBox] = {0: make()}
        self._start: StreamStart | None = None
        self._error: StreamError | None = None
        self._over = False

    def feed(self, event: Event) -> list[Event]:
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

    def _wrapped(self, index: int, events: list[BareEvent]) -> list[Event]:
        return [Choice(index, event) for event in self._without_errors(events) if not isinstance(event, (StreamStart, KeepAlive))]

    def _without_errors(self, events: list[BareEvent]) -> list[BareEvent]:
        """The first error of any choice is kept for the end."""
        if not events or type(events[-1]) is not StreamError:
            return events
        self._error = self._error or events[-1]
        return events[:-1]
