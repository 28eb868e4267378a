"""One chain of boxes for each choice of an answer, and ids of calls that are unique in their conversation.

Some upstreams count the calls of each answer from one, so that two turns have a ``call_1`` each. A client that looks up a call
by its id then confuses the second call with the first. Ids that a reader or an in-band parser makes begin with a prefix that is
unique to the exchange (``call_prefix``). ``UniqueCallIds`` replaces the ids of an upstream that repeat one of the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import structs

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
    ToolCallStart,
    ToolResult,
    as_events,
    as_list,
    not_an_event,
)
from ..messages import Request, ToolCallPart
from .stage import Output, Stage

_OF_ALL = (StreamStart, KeepAlive, Choice)
"""Events that no choice has for itself. A box of one choice gives no ``Choice``."""


class EventBox(Protocol):
    """A box for the events of one choice. It is fed with one event at a time."""

    def feed(self, event: BareEvent, /) -> Sequence[Event]: ...
    def close(self) -> Sequence[Event]: ...


class PerChoice:
    """Makes a box for every choice and hides the wrapping from it: each box sees one whole stream. ``make`` returns a new box,
    which is fed with one event at a time; ``first`` is the box of choice 0, if it exists already. ``feed`` takes the events of
    one read, or one event, and ``close`` gives what the boxes still held. Raises ``TypeError`` for what is not an event.

    The StreamStart and a StreamError belong to all choices: every box sees them, they leave once. An error that a box reports
    ends the stream. Where there are several choices the others go on first: the error takes the place of the end of choice 0,
    which is the last event of every stream.
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


# --- ids of calls

_WITHOUT_AN_ID: Final = EVENT_KINDS - {ToolCallStart, ToolResult, Choice}
"""Events that hold no id of a call. A read of nothing else passes as it is."""


class UniqueCallIds(Stage):
    """Gives a new id to each call whose id an earlier call has, in the history (``request``) or in this answer. The new id is
    ``prefix`` and a number. The results of a renamed call get its new id too. ``taken`` are the ids so far."""

    def __init__(self, prefix: str) -> None:
        self.taken: set[str] = set()
        self._prefix = prefix
        self._number = 0
        self._renamed: dict[tuple[int, str], str] = {}

    def request(self, request: Request) -> Request:
        for message in request.messages:
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    self.taken.add(part.call_id)
        return request

    def feed(self, events: Iterable[Event] | Event) -> list[Output]:
        if type(events) is list and _WITHOUT_AN_ID.issuperset(map(type, events)):
            return [*events]
        return [
            Choice(event.index, self._unique(event.event, event.index)) if isinstance(event, Choice) else self._unique(event, 0)
            for event in as_list(events)
        ]

    def _unique(self, event: BareEvent, choice: int) -> BareEvent:
        if isinstance(event, ToolCallStart):
            call_id = event.call_id
            if not call_id or call_id in self.taken:
                call_id = self._renamed[choice, event.call_id] = self._new_id()
                event = structs.replace(event, call_id=call_id)
            self.taken.add(call_id)
        elif isinstance(event, ToolResult) and (choice, event.call_id) in self._renamed:
            return structs.replace(event, call_id=self._renamed[choice, event.call_id])
        return event

    def _new_id(self) -> str:
        while True:
            self._number += 1
            call_id = f"{self._prefix}_{self._number}"
            if call_id not in self.taken:
                return call_id
