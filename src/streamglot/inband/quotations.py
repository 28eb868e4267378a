"""Finds out whether a text quotes markup: a quotation mark or backticks stand before it, and the same behind it.

The markup is read as a call would be, without emitting anything. The parser emits it afterwards: as text if it is quoted, as a call
if not. So a call after a quotation mark is held until its end, up to ``MAX_HELD_CHARS``. Three things are quoted:

- Markup that ends directly before the closing quotation mark. An apostrophe before a call has none behind it.
- A call that breaks off before the closing mark (``<tool_call>{"name": ...}</tool_call>``): it could not be run anyway.
- A call in an open code span at the end of the text. As text the user gets everything that the model wrote, and there is nothing
  to run. Other quotation marks are also apostrophes and inch marks: there the call counts, and its end is the usual error.

A quoted call that is the whole answer is meant as a call: nothing explains it.

A mark inside a word or behind one may close a quotation instead. Therefore the last two need a mark that opens one.
"""

from __future__ import annotations

from collections.abc import Generator

from .emitter import Emitter
from .engines.engine import FormatEngine
from .mentions import MAX_QUOTED_MARKERS, QUOTES, Quotation
from .prose import FENCES, Prose
from .reader import CallReader
from .scan import MAX_HELD_CHARS, Malformed, Source, Unfinished, markers_of

MAX_BROKEN_CHARS = 2048
"""Characters between the place where a quoted call breaks and the closing mark: a sentence, not a page."""


_STRING_QUOTES = ('"', "'")
_BEFORE_STRINGS = ("{", "[", "=")
"""How openers end that a string may follow: its quotation mark does not close a quotation."""


class Mode:
    """The markers that apply while the text is of one kind. ``droppable``: those that are dropped at the end of the answer."""

    def __init__(
        self, engines: dict[str, FormatEngine], words: tuple[str, ...], droppable: tuple[str, ...], folded: tuple[str, ...] = ()
    ) -> None:
        self.engines = engines
        self.markers = markers_of((*engines, *words), folded)
        self.droppable = droppable


class _CallCounter(Emitter):
    """Counts the calls and emits nothing. Text that is no part of a call ends the reading."""

    def start_call(self, name: str, call_id: str) -> None:  # noqa: ARG002  # only the number matters
        self.found += 1

    def arguments(self, piece: str) -> None:  # noqa: ARG002  # they are read again
        return None

    def end_call(self, complete: bool) -> None:  # noqa: ARG002  # the call has been counted
        return None

    def text(self, piece: str) -> None:  # noqa: ARG002  # what it says does not matter
        raise Malformed("text follows")


class Quotations:
    """The quotations of one text. What is quoted is passed on as text; everything else can be read again."""

    def __init__(self, source: Source, prose: Prose, reader: CallReader, emitter: Emitter, modes: dict[str, Mode]) -> None:
        self._source = source
        self._prose = prose
        self._reader = reader
        self._emitter = emitter
        self._modes = modes

    def markers(self, marker: str, mode: Mode) -> Generator[None, None, bool]:
        """Whether quotes enclose the marker, alone or with the markers that follow."""
        source = self._source
        quote = QUOTES.get(self._prose.last, "")
        if not quote:
            return False
        run = [marker]
        while (yield from source.peek()) != quote or (quote in _STRING_QUOTES and run[-1].endswith(_BEFORE_STRINGS)):
            word = "" if len(run) == MAX_QUOTED_MARKERS else (yield from source.literal(mode.markers.words))
            if not word:
                source.give_back("".join(run[1:]))
                return False
            run.append(word)
        self._prose.put("".join(run))
        return True

    def call(self, marker: str, engine: FormatEngine | None) -> Generator[None, None, bool]:
        """Whether quotes enclose the markup that begins with the marker. ``engine`` reads it, if it is not a word around it."""
        source = self._source
        quotation = self._prose.quotation
        structure = engine is not None and engine.structure
        if quotation is None or (self._reader.to_user and not structure):
            return False
        if structure and not quotation.opens:
            # A message may end with a quotation, and the next one may begin with another.
            return False
        source.record(marker, whole=True)
        quoted = yield from _is_quoted(quotation, marker, self._reader, self._emitter, self._modes)
        trail = source.rewind()
        if quoted:
            self._prose.put(trail)
        else:
            source.give_back(trail)
            source.skip(len(marker))
        return quoted


def _is_quoted(
    quotation: Quotation, marker: str, reader: CallReader, emitter: Emitter, modes: dict[str, Mode]
) -> Generator[None, None, bool]:
    """Whether the markup that begins with this marker is quoted. If so, it has been read with its closing mark. ``reader`` and
    ``emitter`` are those of the text, and are not changed."""
    source = reader.source
    silent = _CallCounter()
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
                if quotation.first and silent.found and (yield from source.ahead(())):
                    return False
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
    quotation: Quotation, source: Source, engine: FormatEngine, mode: Mode, reason: Malformed
) -> Generator[None, None, bool]:
    """Whether a call that broke is quoted. Without a strong marker it is text anyway."""
    if engine.weak or not quotation.opens or source.trail_size > MAX_HELD_CHARS:
        return False
    if source.at_end or isinstance(reason, Unfinished):
        source.skip(len(source.text))
        return quotation.ticks > 0 and not quotation.first
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
