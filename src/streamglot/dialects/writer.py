"""What all writers share: one rule for each kind of event, what could not be said is counted, an end is always written.

A dialect's writer fills ``rules`` with a method for each event that its wire can say; the others count as lost. It appends
bytes to ``self.pieces``; the events of one ``feed`` leave as one piece of bytes.

Clients act on what says "done" or "stop": they run a call, or give up a retry. What the end of a block that broke off
(``complete`` is False) says is therefore kept until the stream ends properly, and never written before an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from ..errors import UpstreamTruncated
from ..events import (
    Choice,
    Event,
    ReasoningEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    TextEnd,
    ToolCallEnd,
    Usage,
)

encode = msgspec.json.Encoder().encode
"""Any value to JSON: the one encoder of all writers."""

_Rules = Mapping[type, Callable[[Any], None]]


class Writer:
    """The mirror of a reader: events in, bytes out.

    ``strict`` writes the fields of the dialect's own specification only. ``id``, ``model`` and ``created`` stand in where
    the events do not say them. ``lost`` counts what this dialect has no word for, by the name of the event.
    """

    dialect: ClassVar[str]
    folded: ClassVar[dict[str, str]] = {}
    """Events that this dialect says in another form, and in which: for the table in docs/dialects.md."""
    headers: ClassVar[dict[str, str]] = {}
    """What an HTTP answer in this dialect says in its headers, beside its content type."""

    def __init__(self, *, strict: bool = False, id: str = "", model: str = "", created: int = 0) -> None:
        self.strict = strict
        self.id = id
        self.model = model
        self.created = created
        self.usage: Usage | None = None
        self.lost: Counter[str] = Counter()
        self.pieces: list[bytes] = []
        self.started = False
        self.done = False
        self._ends_of_broken_blocks: list[bytes] = []
        self._rules = self._with_broken_ends_kept(self.rules())

    # --- the box

    def feed(self, events: Iterable[Event]) -> bytes:
        rules = self._rules
        for event in events:
            if self.done:
                break
            rule = rules.get(type(event))
            if rule is None:
                self.lose(event)
            else:
                rule(event)
        return self._taken()

    def close(self) -> bytes:
        """The end of the events. Where they stopped without an end, an error is written in its place."""
        if not self.done:
            self.feed_end(UpstreamTruncated("the events stopped before the end of the stream").as_event())
        return self._taken()

    # --- what a dialect fills in

    def rules(self) -> Mapping[type, Callable[[Any], None]]:
        """The method for each type of event."""
        raise NotImplementedError

    def write_start(self) -> None:
        """The first bytes of a stream; ``id``, ``model`` and ``created`` are known."""

    def write_end(self, event: StreamEnd) -> None:
        raise NotImplementedError

    def write_error(self, event: StreamError) -> None:
        raise NotImplementedError

    # --- what a dialect uses

    def begin(self, event: StreamStart) -> None:
        self.id = event.id or self.id
        self.model = event.model or self.model
        self.created = event.created or self.created
        self.ensure_started()

    def ensure_started(self) -> None:
        if not self.started:
            self.started = True
            self.write_start()

    def feed_end(self, event: StreamEnd | StreamError) -> None:
        self.done = True
        if isinstance(event, StreamEnd):
            self.ensure_started()
            self.pieces += self._ends_of_broken_blocks
            self.write_end(event)
        else:
            self.write_error(event)

    def keep_usage(self, event: Usage) -> None:
        self.usage = event

    def lose(self, event: Event) -> None:
        name = type(event.event if isinstance(event, Choice) else event).__name__
        self.lost[name] += 1

    def _with_broken_ends_kept(self, rules: _Rules) -> _Rules:
        ends = {kind: rules[kind] for kind in (TextEnd, ReasoningEnd, ToolCallEnd) if kind in rules}

        def end(event: TextEnd | ReasoningEnd | ToolCallEnd) -> None:
            before = len(self.pieces)
            ends[type(event)](event)
            if not event.complete:
                self._ends_of_broken_blocks += self.pieces[before:]
                del self.pieces[before:]

        return {**rules, **dict.fromkeys(ends, end)}

    def _taken(self) -> bytes:
        taken = b"".join(self.pieces)
        self.pieces.clear()
        return taken
