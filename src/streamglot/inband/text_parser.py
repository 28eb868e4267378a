"""Reads the text of one answer: prose, reasoning and calls, separated by the markers of a format.

Prose is emitted as it arrives. Inside a code fence nothing is a marker. A word of the notation is dropped only where it can be
structure; elsewhere the text mentions it, and it is text. A call that turns out not to be one becomes text again,
and so does its closing tag; the text after its opener is read once more, unless it was long: every character is read a bounded
number of times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from typing import Literal

from .call_reader import CallReader
from .emitter import Emitter
from .engines import FormatEngine
from .format import Format
from .parameters import Declared
from .prose import (
    FENCES,
    Mode,
    Prose,
    Quotations,
    closers_of,
    is_glued,
    is_half_call,
    is_inserted,
    is_mention,
    is_phrase,
    is_token,
)
from .scan import END_TOKENS, MAX_SPACE_CHARS, SPECIAL_TOKENS, Malformed, Source, Unfinished, Unrelated, Wait, markers_of, nowhere


class _Certain(Exception):
    """A probe has found that a call begins here."""


class _Probe(Emitter):
    """Emits nothing."""

    def start_call(self, name: str, call_id: str) -> None:  # noqa: ARG002  # only the start matters
        raise _Certain


def call_begins(engine: FormatEngine, source: Source, declared: Declared, opener: str) -> Generator[None, None, bool]:
    """Whether the engine finds a call after this opener, without emitting it. The source keeps a record of what was read."""
    try:
        yield from engine.read(CallReader(source, _Probe(), declared), opener)
    except _Certain:
        return True
    except Malformed:
        return False
    return False


REREAD_CHARS = 2048
"""Characters after a failed opener that are searched for calls once more."""

MAX_PIECE_CHARS = 65_536
"""Characters that are read at once. A longer piece is divided: whether a value is too long must not depend on the split."""

_Read = Callable[[CallReader, str], Wait]


class _AnyCase(frozenset[str]):
    """Words in lower case that count in any case."""

    __slots__ = ()

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and super().__contains__(word.lower())


class TextParser:
    """The parser of one text. ``whole_calls``: no call starts before its end is read. ``late_closer``: the answer may have begun in
    the reasoning. ``failed`` is called for markup that is
    not a call: with the reason, what was read of it, and whether it is an incomplete call (it has started, or the text ended
    inside it). It raises, or returns whether an error is reported: then the markup is left out. Otherwise it is text."""

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
        failed: Callable[[Malformed, str, bool], bool],
        late_closer: bool = False,
    ) -> None:
        self.source = Source()
        self.reader = CallReader(self.source, emitter, declared)
        self.reader.whole_calls = whole_calls
        self.idle = False
        """Waiting in prose or reasoning, not inside a call."""
        self.closed: Literal["", "mark", "late"] = ""
        """A mark has closed the reasoning in which the answer began: "late" if the answer had been taken for text."""
        self._origin: Literal["known", "reasoning", "text"] = "text" if late_closer else "known"
        """What the answer was taken for before its first mark."""
        if begins_in_reasoning and reasoning:
            self._origin = "reasoning"
        self._emitter = emitter
        self._format = format
        self._declared = declared
        calls = self.reader.calls = calls and (not format.only_declared or bool(declared.schemas))
        self._calls = calls
        self._reasoning = reasoning
        self._failed = failed
        self.prose = Prose(emitter, self.reader)
        self._spans: Counter[str] = Counter()
        """Words that were dropped, and wait for the marker that ends what they began."""
        self._due: Counter[str] = Counter()
        """The closers of calls that broke: as many of each belong to these calls."""
        self._leaks = False
        """The server passes on special tokens: the answer began with one."""
        think = format.think
        words = _AnyCase if think.any_case else frozenset
        self._openers = words(think.openers) if reasoning else frozenset()
        self._closers = words(think.closers) if reasoning else frozenset()
        self._restarts = calls and any(engine.restarts for engine in format.engines)
        self._drop = frozenset() if format.untouched else frozenset((*format.drop, *SPECIAL_TOKENS))
        self._last = frozenset(END_TOKENS) - self._drop
        self._labels = tuple(word + end for word in think.label for end in ("\n", "\r\n", *think.closers))
        openers = {word: engine for engine in format.engines for word in engine.openers_for(declared)}
        structure = {word: engine for word, engine in openers.items() if engine.structure}
        self._stray = frozenset(word for engine in format.engines for word in engine.closers) if calls else frozenset()
        self._span_words = frozenset(engine.span for engine in format.engines if engine.span)
        self._closers_of = closers_of((*self._drop, *self._stray))
        tags = (*self._openers, *self._closers)
        folded = tags if think.any_case else ()
        droppable = (*(self._drop - self._span_words), *self._last)
        self._inner = frozenset(engine.inner for engine in format.engines if engine.inner) if calls else frozenset()
        closers = tuple(word for word in self._closers if not is_phrase(word))
        self._modes = {
            "text": Mode(
                openers if calls else structure,
                (*tags, *self._drop, *self._last, *self._inner, *self._stray, *self._closers_of, *FENCES),
                (*droppable, *self._stray, *closers),
                folded,
            ),
            "reasoning": Mode(
                {word: engine for word, engine in openers.items() if engine.in_reasoning != "no"},
                (*tags, *self._drop, *self._last),
                droppable,
                folded,
            ),
        }
        self._quotations = Quotations(self.source, self.prose, self.reader, emitter, self._modes)
        self._steps: Wait = self._run()
        self.first: re.Pattern[str] = self._modes["text"].markers.first

    # --- the interface

    def push(self, piece: str) -> None:
        if len(piece) > MAX_PIECE_CHARS:
            for at in range(0, len(piece), MAX_PIECE_CHARS):
                self.push(piece[at : at + MAX_PIECE_CHARS])
            return
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
        if self._origin == "reasoning":
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
            marker = yield from self.source.stream(mode.markers, self.prose.put)
            self.idle = False
            if not marker:
                if self.reader.announced:
                    self._failed(Unfinished("the call that the header announces is missing"), f"to={self.reader.announced}", True)
                return
            yield from self._act(marker, mode)

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

    def _act(self, marker: str, mode: Mode) -> Wait:
        inside = self.reader.mode == "reasoning"
        engine = mode.engines.get(marker)
        if (yield from self._is_quoted(marker, mode)):
            return
        if engine is not None:
            if (yield from self._is_text(engine, marker)):
                self.prose.put(marker)
            elif inside and not self._calls and not engine.structure:
                yield from self._call_begins(engine, marker)
            else:
                yield from self._engine(engine, marker)
        elif marker in self._closers and inside:
            if self._origin == "reasoning":
                self._origin, self.closed = "known", "mark"
            self._emitter.end_reasoning()
            self.reader.mode = "text"
            self.reader.at_start = self._restarts
            self.prose.interrupted()
        elif marker in self._openers:
            yield from self._thought_begins(marker)
        elif marker in self._closers:
            yield from self._stray_closer(marker, mode)
        elif marker in self._stray:
            if self.reader.to_user or self.prose.is_owed(marker):
                self.prose.text(marker)
            elif self._due[marker] > 0:
                self._due[marker] -= 1
            elif self.prose.place == "structure":
                self.prose.interrupted()
            else:
                yield from self._drop_at_end(marker, mode)
        elif marker in self._drop:
            yield from self._drop_word(marker, mode)
        elif marker in self._last:
            yield from self._drop_at_end(marker, mode)
        elif marker in self._inner:
            if self.prose.place != "structure" or not self._emitter.found:
                self.prose.put(marker)
        elif marker in self._closers_of:
            self.prose.text(marker)
            self.prose.owe(self._closers_of[marker])
        else:
            yield from self.prose.fence(self.source, marker)

    def _is_quoted(self, marker: str, mode: Mode) -> Generator[None, None, bool]:
        """Whether quotes enclose the marker, alone or with the markup that it begins. Then the text mentions it, and it is text."""
        if self.reader.mode == "reasoning" and marker in self._closers and not self.prose.quote_opens:
            return False
        if (yield from self._quotations.markers(marker, mode)):
            return True
        if marker in self._closers or marker in self._openers:
            return False
        engine = mode.engines.get(marker)
        wraps = marker in self._drop or marker in self._stray
        return (engine is not None or wraps) and (yield from self._quotations.call(marker, engine))

    def _is_text(self, engine: FormatEngine, marker: str) -> Generator[None, None, bool]:
        """Whether this opener cannot count here."""
        if self.reader.to_user and not engine.structure:
            return True
        if engine.span:
            self._spans[engine.span] -= 1
            if self._spans[engine.span] < 0:
                self._spans[engine.span] = 0
                return True
        if self.prose.place != "text":
            return False
        following = yield from self.source.peek()
        if not following or not is_mention(self.prose.last, following):
            return False
        if marker in engine.ends:
            return not (yield from self.source.ahead(engine.openers))
        # Nothing in any notation begins with the end of a sentence, and no name with a space.
        return marker.endswith("=") or not following.isspace()

    def _thought_begins(self, marker: str) -> Wait:
        """Handles an opening tag of the reasoning."""
        if self.reader.mode == "reasoning":
            if self._emitter.open == "reasoning":
                self.prose.put(marker)
        elif self.prose.place == "text" and (yield from self._mentions_thought(marker)):
            self.prose.text(marker)
            self.prose.owe(*self._closers)
            return
        else:
            self._origin = "known"
            self._emitter.start_reasoning()
            self.reader.mode = "reasoning"
            self.prose.interrupted()
        yield from self._label()

    def _mentions_thought(self, marker: str) -> Generator[None, None, bool]:
        """Whether a sentence mentions this opening tag, alone or with the closing tag."""
        if is_phrase(marker) or not self.prose.in_sentence:
            return is_phrase(marker)
        return is_mention(self.prose.last, (yield from self.source.peek())) or (yield from self.source.follows((*self._closers,)))

    def _stray_closer(self, marker: str, mode: Mode) -> Wait:
        """Handles a closing tag of the reasoning in the text."""
        stray = self._format.think.stray
        if stray == "keep" or self.prose.is_owed(marker):
            self.prose.text(marker)
        elif self._origin == "text" and not is_mention(self.prose.last, (yield from self.source.peek())):
            self._origin, self.closed = "known", "late"
            if self.prose.place != "text":
                self._emitter.skip_lead()
                self.prose.interrupted()
        elif self.prose.place != "text":
            self._emitter.skip_lead()
            self.prose.interrupted()
        elif stray == "start" or is_phrase(marker):
            self.prose.text(marker)
        elif not is_glued(self.prose.last, (yield from self.source.peek())):
            yield from self._drop_at_end(marker, mode)

    def _drop_word(self, marker: str, mode: Mode) -> Wait:
        """Handles a word that wraps the answer, or a special token. It is dropped only where it can be that."""
        if self.prose.is_owed(marker):
            self.prose.put(marker)
        elif marker in self._span_words:
            following = yield from self.source.peek()
            if following.isspace() or is_mention(" ", following):
                self.prose.put(marker)
            else:
                self._spans[marker] += 1
        elif self.prose.place != "text":
            self._leaks = self._leaks or marker in SPECIAL_TOKENS
            self.prose.interrupted()
        else:
            following = yield from self.source.peek()
            if marker in SPECIAL_TOKENS:
                dropped = self._leaks and not self.prose.last.isspace() and (following.isspace() or following in ("", "<"))
            else:
                dropped = self.reader.mode == "reasoning" and is_token(marker) and is_inserted(self.prose.last, following)
                quotation = self.prose.quotation
                dropped = dropped and not (quotation is not None and quotation.opens)
            if not dropped:
                yield from self._drop_at_end(marker, mode)

    def _drop_at_end(self, marker: str, mode: Mode) -> Wait:
        """Drops a word after which the text ends, or a call or a header begins. Otherwise it is text. Other words that may be
        dropped can stand between."""
        run = ""
        wanted = self._calls and not self.reader.to_user
        engines = {word: engine for word, engine in mode.engines.items() if wanted or engine.structure}
        while len(run) <= MAX_SPACE_CHARS:
            space, word = yield from self.source.behind_space((*mode.droppable, *engines))
            if word in engines:
                yield from self._engine(engines[word], word, None, marker + run + space)
                return
            if not word:
                if (yield from self.source.ahead(())):
                    self.prose.interrupted()
                    return
                break
            run += space + word
        self.prose.put(marker + run)
        if marker in self._closers_of:
            self.prose.owe(self._closers_of[marker])

    def _label(self) -> Wait:
        """The word after an opening tag that is not reasoning. A closing tag after it is read as such."""
        if self._labels:
            while (yield from self.source.literal(tuple(self._drop))):
                pass
            self._give_closer_back((yield from self.source.literal(self._labels)))

    def _give_closer_back(self, label: str) -> None:
        self.source.give_back(next((closer for closer in self._closers if label.endswith(closer)), ""))

    # --- calls

    def _engine(self, engine: FormatEngine, opener: str, read: _Read | None = None, lead: str = "") -> Wait:
        """Reads a call or a header. ``lead``: what was read before the opener and is text if nothing of that kind follows."""
        source, reader = self.source, self.reader
        inside = reader.mode == "reasoning"
        before = self._emitter.found
        source.record(opener)
        try:
            yield from (read or engine.read)(reader, opener)
        except Malformed as reason:
            started = reader.started
            reader.abandon()
            if lead and not started and self._emitter.found == before:
                self.prose.put(lead)
            if self._malformed(reason, engine, opener, started, self._emitter.found > before):
                yield from self._leave_out(engine)
            elif opener.startswith("```") and self._emitter.found == before:
                yield from self.prose.fence_body(source, "```", 3)
        else:
            trail = source.rewind()
            if self._emitter.found == before and self.prose.place == "text" and engine.closers and trail.endswith(engine.closers):
                # The text mentions an opener and its closer.
                self.prose.put(lead + trail)
            elif trail or self._emitter.found > before:
                if inside and engine.structure and self._emitter.open == "reasoning":
                    self._emitter.end_reasoning()
                self.prose.interrupted()
        if self._emitter.found > before and reader.mode == "reasoning":
            reader.mode = "text"

    def _malformed(self, reason: Malformed, engine: FormatEngine, opener: str, started: bool, any_call: bool) -> bool:
        """Whether the rest of the markup must be left out, because an error is reported for it."""
        source = self.source
        trail = source.rewind()
        rest = trail[len(opener) :] if trail.startswith(opener) else trail
        at_end = source.at_end or isinstance(reason, Unfinished)
        doubtful = engine.weak or opener in engine.start_openers or isinstance(reason, Unrelated)
        half = started or (at_end and (any_call or is_half_call(rest, self._declared)))
        counts = started or (not doubtful and (half or not (engine.structure or self.reader.mode == "reasoning")))
        if counts and self._failed(reason, trail, half) and half:
            self.prose.interrupted()
            self.reader.mode = "text"
            rest = trail if started and reason.rest is None else (reason.rest or "")
            if len(rest) <= REREAD_CHARS and not at_end:
                source.give_back(rest)
            return True
        if started or any_call:
            # The part that was delivered belongs to the call; the rest of what was read, and what follows, is text.
            self._due.update(engine.closers if started else ())
            self.prose.interrupted()
            self.reader.mode = "text"
            self._put_back(trail if reason.rest is None or not started else reason.rest)
            return False
        if at_end and self._ends_thought(engine, rest):
            self.reader.mode = "text"
        if not engine.special or self.prose.place == "text" or self.reader.whole_calls:
            if not isinstance(reason, Unrelated):
                self.prose.owe(*engine.closers)
            if opener:
                self.prose.put(opener)
        self._put_back(rest)
        return False

    def _leave_out(self, engine: FormatEngine) -> Wait:
        """Leaves out the rest of a call that broke: up to its closing markers, or the next call."""
        calls = [word for word, other in self._modes["text"].engines.items() if not other.weak]
        markers = markers_of((*engine.closers, *calls))
        mark = yield from self.source.stream(markers, nowhere)
        if mark in engine.closers:
            while (yield from self.source.spaced((*engine.closers, engine.inner) if engine.inner else engine.closers)):
                pass
        elif mark:
            self.source.give_back(mark)

    def _ends_thought(self, engine: FormatEngine, rest: str) -> bool:
        """Whether an opener without a call has ended the reasoning: the answer ends with it, and the reasoning was not closed."""
        if engine.in_reasoning != "marker" or engine.structure or is_mention(self.prose.last, rest[:1]):
            return False
        return not any(closer in rest for closer in self._closers)

    def _put_back(self, rest: str) -> None:
        if len(rest) <= REREAD_CHARS:
            self.source.give_back(rest)
        else:
            self.prose.put(rest)

    def _call_begins(self, engine: FormatEngine, opener: str) -> Wait:
        """Used if calls are switched off: checks whether a call would end the reasoning here. If so, the rest is text."""
        source = self.source
        certain = engine.in_reasoning == "marker" and not is_mention(self.prose.last, (yield from source.peek()))
        source.record(opener)
        if not certain:
            certain = yield from call_begins(engine, source, self._declared, opener)
        rest = source.rewind()[len(opener) :]
        if certain:
            self._emitter.end_reasoning()
            self.reader.mode = "text"
        self.prose.put(opener)
        source.give_back(rest)
