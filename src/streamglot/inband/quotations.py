"""Finds out whether a text quotes a call: a quotation mark or backticks stand before the markup, and the same behind it.

The markup is read as a call would be, without emitting anything. The parser emits it afterwards: as text if it is quoted, as a call
if not. So a call after a quotation mark is held until its end, up to ``MAX_HELD_CHARS``. Three things are quoted:

- Markup that ends directly before the closing quotation mark. An apostrophe before a call has none behind it.
- A call that breaks off before the closing mark (``<tool_call>{"name": ...}</tool_call>``): it could not be run anyway.
- A call in an open code span at the end of the text. As text the user gets everything that the model wrote, and there is nothing
  to run. Other quotation marks are also apostrophes and inch marks: there the call counts, and its end is the usual error.

A mark inside a word or behind one may close a quotation instead. Therefore the last two need a mark that opens one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

from .emitter import Emitter
from .engines.engine import Engine
from .mentions import MAX_QUOTED_MARKERS, Quotation
from .prose import FENCES
from .reader import CallReader
from .scan import MAX_HELD_CHARS, Cut, Malformed, Markers, Source, markers_of

MAX_BROKEN_CHARS = 2048
"""Characters between the place where a quoted call breaks and the closing mark: a sentence, not a page."""


class Mode(Protocol):
    """The markers that apply while the text is of one kind."""

    engines: dict[str, Engine]
    markers: Markers


class _Silent(Emitter):
    """Counts the calls and emits nothing. Text that is no part of a call ends the reading."""

    def start_call(self, name: str, call_id: str) -> None:  # noqa: ARG002  # only the number matters
        self.found += 1

    def arguments(self, piece: str) -> None:  # noqa: ARG002  # they are read again
        return None

    def end_call(self, complete: bool) -> None:  # noqa: ARG002  # the call has been counted
        return None

    def text(self, piece: str) -> None:  # noqa: ARG002  # what it says does not matter
        raise Malformed("text follows")


def is_quoted(
    quotation: Quotation, marker: str, reader: CallReader, emitter: Emitter, modes: Mapping[str, Mode]
) -> Generator[None, None, bool]:
    """Whether the markup that begins with this marker is quoted. If so, it has been read with its closing mark. ``reader`` and
    ``emitter`` are those of the text, and are not changed."""
    source = reader.source
    silent = _Silent()
    silent.open = emitter.open
    probe = CallReader(source, silent, reader.declared)
    probe.whole_calls, probe.mode, probe.rendered = reader.whole_calls, reader.mode, reader.rendered
    try:
        for _ in range(MAX_QUOTED_MARKERS):
            mode = modes[probe.mode]
            engine = mode.engines.get(marker)
            if engine is not None:
                try:
                    yield from engine.read(probe, marker)
                except Malformed as reason:
                    return (yield from _is_quoted_part(quotation, source, engine, mode, reason))
            if (yield from _closes(quotation, source)):
                return silent.found > 0 or quotation.opens
            marker = yield from source.spaced(word for word in modes[probe.mode].markers.words if word not in FENCES)
            if not marker:
                return False
    except Malformed:
        return False
    return False


def _closes(quotation: Quotation, source: Source) -> Generator[None, None, bool]:
    if not (yield from source.literal((quotation.closing,))):
        return False
    if quotation.ticks and (yield from source.peek()) == "`":
        source.give_back(quotation.closing)
        return False
    return True


def _is_quoted_part(
    quotation: Quotation, source: Source, engine: Engine, mode: Mode, reason: Malformed
) -> Generator[None, None, bool]:
    """Whether a call that broke is quoted. Without a strong marker it is text anyway."""
    if engine.weak or not quotation.opens or source.trail_size > MAX_HELD_CHARS:
        return False
    if source.at_end or isinstance(reason, Cut):
        source.skip(len(source.text))
        return quotation.ticks > 0
    closing = ("`",) if quotation.ticks else tuple(word + quotation.closing for word in (*engine.closers, *engine.ends))
    markers = markers_of((*closing, "\n\n", *mode.engines))
    size = 0

    def count(piece: str) -> None:
        nonlocal size
        size += len(piece)
        if size > MAX_BROKEN_CHARS:
            raise Malformed("no closing mark follows")

    while True:
        mark = yield from source.stream(markers, count)
        if mark not in closing:
            return False
        if not quotation.ticks or 1 + (yield from source.run("`")) == quotation.ticks:
            return True
