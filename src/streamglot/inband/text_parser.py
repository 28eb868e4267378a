"""Reads the text of one answer: prose, reasoning and calls, separated by the markers of a format.

Prose is emitted as it arrives. Inside a code fence nothing is a marker. A call that turns out not to be one becomes text again,
and so does its closing tag; the text after its opener is read once more, unless it was long: every character is read a bounded
number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .declared import Declared
from .emitter import Emitter
from .engines.engine import Engine
from .format import Format
from .reader import CallReader
from .scan import SPECIAL_TOKENS, Malformed, Markers, Source, Unrelated, Wait, markers_of

REREAD_CHARS = 2048
"""Characters after a failed opener that are searched for calls once more."""

MAX_OWED = 1024
"""Openers that became text and wait for their closers."""

_QUOTES = {"`": "`", "'": "'", '"': '"', "“": "”", "‘": "’", "(": ")"}
_Read = Callable[[CallReader, str], Wait]
_FENCES = ("```", "~~~")
_FENCE_MARKERS = {fence: Markers((fence,)) for fence in _FENCES}


class _Certain(Exception):
    """A probe has found that a call begins here."""


class _Probe(Emitter):
    def start_call(self, name: str, call_id: str) -> None:  # noqa: ARG002  # only the start matters
        raise _Certain


class _Mode:
    """The markers that apply while the text is of one kind."""

    def __init__(self, engines: dict[str, Engine], words: tuple[str, ...]) -> None:
        self.engines = engines
        self.markers = markers_of((*engines, *words))


class TextParser:
    """The parser of one text. ``whole_calls``: no call starts before its end is read. ``failed`` is called for markup that is
    not a call: with the reason, what was read of it, and whether it is an incomplete call (it has started, or the text ended
    inside it). It raises, or returns to treat it as text."""

    def __init__(
        self,
        format: Format,
        declared: Declared,
        emitter: Emitter,
        *,
        begins_in_reasoning: bool,
        calls: bool,
        reasoning: bool,
        whole_calls: bool,
        failed: Callable[[Malformed, str, bool], None],
    ) -> None:
        self.source = Source()
        self.reader = CallReader(self.source, emitter, declared)
        self.reader.calls = calls
        self.reader.whole_calls = whole_calls
        self.idle = False
        """Waiting in prose or reasoning, not inside a call."""
        self._emitter = emitter
        self._format = format
        self._declared = declared
        self._calls = calls
        self._reasoning = reasoning
        self._failed = failed
        self._owed: list[tuple[str, ...]] = []
        """For each opener that became text: its closers, which are text too."""
        self._line_blank = True
        self._begins = begins_in_reasoning and reasoning
        think = format.think
        self._openers = frozenset(think.openers) if reasoning else frozenset()
        self._closers = frozenset(think.closers) if reasoning else frozenset()
        self._drop = frozenset() if format.untouched else frozenset((*format.drop, *SPECIAL_TOKENS))
        self._last = ""
        self._labels = tuple(word + end for word in think.label for end in ("\n", "\r\n", *think.closers))
        openers = {word: engine for engine in format.engines for word in engine.openers_for(declared)}
        structure = {word: engine for word, engine in openers.items() if engine.structure}
        self._stray = frozenset(word for engine in format.engines for word in engine.closers) if calls else frozenset()
        tags = (*self._openers, *self._closers)
        self._modes = {
            "text": _Mode(openers if calls else structure, (*tags, *self._drop, *self._stray, *_FENCES)),
            "reasoning": _Mode(
                {word: engine for word, engine in openers.items() if engine.in_reasoning != "no"}, (*tags, *self._drop)
            ),
        }
        self._steps: Wait = self._run()
        self.first: re.Pattern[str] = self._modes["text"].markers.first

    # --- the interface

    def push(self, piece: str) -> None:
        self.source.push(piece)
        next(self._steps, None)

    def close(self, cut: bool = False) -> None:
        self.source.closed = True
        self.source.cut = cut
        for _ in self._steps:
            raise AssertionError("a grammar does not terminate")  # pragma: no cover  # none waits on a closed source

    # --- the loop

    def _run(self) -> Wait:
        think = self._format.think
        if think.prepend and self._reasoning:
            self._emitter.text(think.prepend)
        if self._begins:
            self.reader.mode = "reasoning"
            yield from self._label()
        else:
            yield from self._beginning()
        while True:
            while self.reader.at_start:
                self.reader.at_start = False
                yield from self._beginning()
            mode = self._modes[self.reader.mode]
            self.first = mode.markers.first
            self.idle = True
            sink = self._text if self.reader.mode == "text" else self._emitter.reasoning
            marker = yield from self.source.stream(mode.markers, sink)
            self.idle = False
            if not marker:
                return
            yield from self._act(marker, mode)

    def _text(self, piece: str) -> None:
        self._last = piece[-1:]
        end = piece.rfind("\n") + 1
        if end:
            self._line_blank = not piece[end:].strip()
        elif piece.strip():
            self._line_blank = False
        self._emitter.text(piece)

    def prose_went_by(self, last: str) -> None:
        """Prose that ended with this visible character was passed on without the parser."""
        self._line_blank = False
        self._last = last

    def _beginning(self) -> Wait:
        """Handles markers that count only at the beginning of the answer."""
        if self._labels and self._reasoning:
            word = yield from self.source.spaced(self._labels)
            if word:
                self._give_closer_back(word)
                self.reader.mode = "reasoning"
                return
        for engine in self._format.engines:
            if engine.start_openers and (self._calls or engine.structure):
                space = opener = ""
                if "" in engine.start_openers:
                    if not (yield from self.source.peek()):
                        return
                else:
                    space, opener = yield from self.source.behind_space(engine.start_openers)
                    if not opener:
                        continue
                yield from self._engine(engine, opener, engine.begin, space)
                return

    def _act(self, marker: str, mode: _Mode) -> Wait:
        inside = self.reader.mode == "reasoning"
        engine = mode.engines.get(marker)
        quote = _QUOTES.get(self._last, "") if not inside and self._emitter.open == "text" else ""
        if quote and (yield from self.source.peek()) == quote:
            # The text mentions the marker.
            self._text(marker)
        elif engine is not None and self.reader.to_user and not engine.structure:
            self._text(marker)
        elif engine is not None:
            if inside and not self._calls and not engine.structure:
                yield from self._call_begins(engine, marker)
            else:
                yield from self._engine(engine, marker)
        elif marker in self._closers and inside:
            self._emitter.end_reasoning()
            self.reader.mode = "text"
        elif marker in self._openers:
            if inside:
                if self._emitter.open == "reasoning":
                    self._emitter.reasoning(marker)
            else:
                self._emitter.start_reasoning()
                self.reader.mode = "reasoning"
            yield from self._label()
        elif marker in self._closers:
            stray = self._format.think.stray
            if stray == "keep" or (stray == "start" and self._emitter.open == "text") or self._is_owed(marker):
                self._text(marker)
            else:
                self._emitter.skip_lead()
        elif marker in self._stray:
            if not inside and (self.reader.to_user or self._is_owed(marker)):
                self._text(marker)
        elif marker not in self._drop:
            yield from self._fence(marker)
        elif quote:
            self._text(marker)

    def _is_owed(self, marker: str) -> bool:
        if self._owed and marker in self._owed[-1]:
            self._owed.pop()
            return True
        return False

    def _label(self) -> Wait:
        """The word after an opening tag that is not reasoning. A closing tag after it is read as such."""
        if self._labels:
            while (yield from self.source.literal(tuple(self._drop))):
                pass
            self._give_closer_back((yield from self.source.literal(self._labels)))

    def _give_closer_back(self, label: str) -> None:
        self.source.give_back(next((closer for closer in self._closers if label.endswith(closer)), ""))

    def _fence(self, fence: str) -> Wait:
        """A code fence: everything up to its end is text."""
        opens = self._line_blank
        size = 3 + (yield from self.source.run(fence[0]))
        self._text(fence[0] * size)
        if opens:
            yield from self._fence_body(fence, size)

    def _fence_body(self, fence: str, size: int) -> Wait:
        while True:
            if not (yield from self.source.stream(_FENCE_MARKERS[fence], self._text)):
                return
            closes = self._line_blank
            run = 3 + (yield from self.source.run(fence[0]))
            self._text(fence[0] * run)
            if closes and run >= size:
                return

    # --- calls

    def _engine(self, engine: Engine, opener: str, read: _Read | None = None, space: str = "") -> Wait:
        source, reader = self.source, self.reader
        inside = reader.mode == "reasoning"
        if inside and engine.in_reasoning == "marker" and not engine.special:
            self._emitter.end_reasoning()
            reader.mode = "text"
        before = self._emitter.found
        source.record(opener)
        try:
            yield from (read or engine.read)(reader, opener)
        except Malformed as reason:
            started = reader.started
            reader.abandon()
            if space and not started and self._emitter.found == before:
                self._text(space)
            self._malformed(reason, engine, opener, started, self._emitter.found > before)
            if opener.startswith("```") and self._emitter.found == before:
                yield from self._fence_body("```", 3)
        else:
            source.forget()
        if self._emitter.found > before:
            self._line_blank = True
            if reader.mode == "reasoning" and engine.in_reasoning == "call":
                reader.mode = "text"

    def _malformed(self, reason: Malformed, engine: Engine, opener: str, started: bool, any_call: bool) -> None:
        source = self.source
        trail = source.rewind()
        at_end = source.closed and source.at >= len(source.text)
        doubtful = engine.weak or opener in engine.start_openers or self.reader.mode == "reasoning"
        if started or not (doubtful or (engine.structure and not at_end)):
            self._failed(reason, trail, started or (at_end and bool(trail.removeprefix(opener).strip())))
        if self.reader.mode == "reasoning" and any_call:
            self.reader.mode = "text"
        if started:
            # The part that was delivered belongs to the broken call; the rest of what was read, and what follows, is text.
            self._put_back(trail if reason.rest is None else reason.rest)
            return
        if any_call:
            self._put_back(trail)
            return
        rest = trail[len(opener) :] if trail.startswith(opener) else trail
        if not engine.special:
            if engine.closers and len(self._owed) < MAX_OWED and not isinstance(reason, Unrelated):
                self._owed.append(engine.closers)
            if self.reader.mode == "reasoning":
                self._emitter.reasoning(opener)
            elif opener:
                self._text(opener)
        self._put_back(rest)

    def _put_back(self, rest: str) -> None:
        if len(rest) <= REREAD_CHARS:
            self.source.give_back(rest)
        elif self.reader.mode == "reasoning":
            self._emitter.reasoning(rest)
        else:
            self._text(rest)

    def _call_begins(self, engine: Engine, opener: str) -> Wait:
        """Used if calls are switched off: checks whether a call would end the reasoning here. If so, the rest is text."""
        source = self.source
        certain = engine.in_reasoning == "marker"
        source.record(opener)
        if not certain:
            probe = CallReader(source, _Probe(), self._declared)
            try:
                yield from engine.read(probe, opener)
            except _Certain:
                certain = True
            except Malformed:
                certain = False
        rest = source.rewind()[len(opener) :]
        if certain:
            self._emitter.end_reasoning()
            self.reader.mode = "text"
            self._text(opener)
        else:
            self._emitter.reasoning(opener)
        source.give_back(rest)
