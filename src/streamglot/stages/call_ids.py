"""Ids of tool calls that are unique in their conversation, whatever the upstream says.

Some upstreams count the calls of each answer from one, so that two turns have a ``call_1`` each. A client that looks up a call
by its id then confuses the second call with the first. Ids that a reader or an in-band parser makes begin with a prefix that is
unique to the exchange (``call_prefix``). This stage replaces the ids of an upstream that repeat one of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from ..events import EVENT_KINDS, BareEvent, Choice, Event, ToolCallStart, ToolResult, as_list
from ..messages import Request, ToolCallPart
from .stage import Output, Stage

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
