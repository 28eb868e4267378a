"""The text and the reasoning that a parser passes on, and what tells markup from text that mentions or quotes it.

A model that explains its own notation writes the same words as one that uses it. What stands around a word shows the difference:
a template writes its words without a space around them, and a sentence separates them with spaces.

Markup is quoted if a quotation mark or backticks stand before it, and the same behind it. It is read as a call would be, without
emitting anything. The parser emits it afterwards: as text if it is quoted, as a call if not. So a call after a quotation mark is
held until its end, up to ``MAX_HELD_CHARS``. Three things are quoted:

- Markup that ends directly before the closing quotation mark. An apostrophe before a call has none behind it.
- A call that breaks off before the closing mark (``<tool_call>{"name": ...}</tool_call>``): it could not be run anyway.
- A call in an open code span at the end of the text. As text the user gets everything that the model wrote, and there is nothing
  to run. Other quotation marks are also apostrophes and inch marks: there the call counts, and its end is the usual error.

A quoted call that is the whole answer is meant as a call: nothing explains it.

A mark inside a word or behind one may close a quotation instead. Therefore the last two need a mark that opens one.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Literal

from msgspec import Struct

from .call_reader import CallReader
from .emitter import Emitter
from .engines import FormatEngine
from .parameters import Declared
from .scan import MAX_HELD_CHARS, NAME_CHARS, Malformed, Markers, Source, Unfinished, Wait, markers_of

QUOTES = {"`": "`", "'": "'", '"': '"', "“": "”", "‘": "’", "(": ")"}

MAX_QUOTED_MARKERS = 16
"""Markers in a row that one pair of quotes may contain. A header has at most four; each further one costs another look ahead."""

# --- mentions

BLANK = (" ", "\t")
_SENTENCE_GOES_ON = frozenset(" \t.,;:!?)")
_NAME_PARTS = re.compile(r"[\w-]+")
_NAME_AND_NOTATION = re.compile(r"""(?:<[^<>\s]{1,64}>)*["']?[\w.:/-]+["']? ?[({\[<=|>]""")


class Quotation(Struct, frozen=True):
    """A quotation that may have begun. ``closing``: what closes it. ``opens``: its mark follows a space or a bracket, so it
    cannot close a quotation. ``first``: no text precedes it."""

    closing: str
    opens: bool
    first: bool

    @property
    def ticks(self) -> int:
        """The number of backticks of a code span, 0 if it is another quotation."""
        return self.closing.count("`")


def is_mention(before: str, following: str) -> bool:
    """Whether a word between these two characters is part of a sentence. "" stands for the end of the text."""
    return before in BLANK and (not following or following in _SENTENCE_GOES_ON)


def is_inserted(before: str, following: str) -> bool:
    """Whether a token between these two characters was inserted into a text: it is attached to a word, or begins a line."""
    return before not in BLANK or following.isalnum()


def is_glued(before: str, following: str) -> bool:
    """Whether a word between these two characters separates two texts, as a template writes it: it follows a word or a sentence
    without a space and the next one begins at once, or it has a line of its own."""
    if before == "\n":
        return following in ("\r", "\n")
    return (before.isalnum() or before in ".!?…。！？") and (following.isalnum() or following in ("\r", "\n"))


def is_phrase(word: str) -> bool:
    """Whether this marker consists of plain words, which sentences contain too."""
    return word[0].isalpha()


def is_token(word: str) -> bool:
    """Whether this word has a form that neither prose nor HTML uses."""
    return "|" in word or "｜" in word or ":" in word


def closers_of(words: Iterable[str]) -> dict[str, str]:
    """For each beginning of a tag that one of these words closes: that word."""
    return {f"<{word[2:-1]}{end}": word for word in words if word.startswith("</") for end in (">", " ")}


def is_half_call(rest: str, declared: Declared) -> bool:
    """Whether a text that ended after a marker ended inside a call. ``rest``: what follows the marker. It is a call if a
    declared name, the beginning of one, or JSON follows. Without declared tools the notation must have gone on after a name."""
    text = rest[:NAME_CHARS].strip()
    if not text or (rest[0] in BLANK and text[0].isalpha()):
        return False
    if text[0] in "{[":
        return True
    if not declared.schemas:
        return _NAME_AND_NOTATION.match(text) is not None
    parts = [text[found.start() :] for found in _NAME_PARTS.finditer(text)]
    return any(name.startswith(part) or _begins_with(part, name) for part in parts for name in declared.schemas)


def _begins_with(text: str, name: str) -> bool:
    return text.startswith(name) and _NAME_PARTS.match(text, len(name)) is None


# --- what is passed on

FENCES = ("```", "~~~")
SENTENCE_ENDS = frozenset(".!?:…。！？\n")
_FENCE_MARKERS = {fence: Markers((fence,)) for fence in FENCES}
_TAIL_CHARS = 16
"""Characters before a marker that are remembered. A code span begins with one to three backticks and perhaps a space."""


_BEFORE_CLOSING = frozenset(string.ascii_letters + string.digits + ".,;!?)]}")
"""Characters before a mark that closes a quotation, or is an apostrophe. Other scripts write no space before an opening one."""


class Prose:
    """``place``: what stands before the next character, apart from white space: nothing, something that is not text, or text.
    ``line_blank``: only white space stands before it on its line."""

    __slots__ = ("_emitter", "_owed", "_reader", "_tail", "line_blank", "place")

    def __init__(self, emitter: Emitter, reader: CallReader) -> None:
        self._emitter = emitter
        self._reader = reader
        self._owed: Counter[str] = Counter()
        self._tail = ""
        self.place: Literal["start", "structure", "text"] = "start"
        self.line_blank = True

    @property
    def last(self) -> str:
        """The last character, "" if something else than text stands before."""
        return self._tail[-1:]

    @property
    def quote_opens(self) -> bool:
        """Whether a quotation mark at the last place would open a quotation, because a space or a bracket stands before it."""
        return self._opens(self._tail[:-1])

    @property
    def in_sentence(self) -> bool:
        """Whether a space precedes, and before it a word or a mark inside of a sentence."""
        return self.last in BLANK and self._tail[-2:-1] not in SENTENCE_ENDS

    @property
    def quotation(self) -> Quotation | None:
        """The quotation that the last characters may begin: with a quotation mark, with backticks, or with backticks and a space,
        as Markdown writes a code span."""
        before = self._tail.removesuffix(" ").rstrip("`")
        ticks = self._tail[len(before) :]
        if not ticks.startswith("`"):
            quote, before = QUOTES.get(self.last, ""), self._tail[:-1]
            closing = quote if quote != ")" else ""
        else:
            closing = ticks[::-1]
        opens = self._opens(before)
        if not closing or len(ticks) == _TAIL_CHARS or (ticks.endswith(" ") and not opens) or before[-1:] in _BEFORE_CLOSING:
            return None
        return Quotation(closing, opens, not before)

    @staticmethod
    def _opens(before: str) -> bool:
        return not before or before[-1].isspace() or before[-1] in "([{"

    def put(self, piece: str) -> None:
        """Passes on a piece of the current mode."""
        if self._reader.mode == "text":
            self.text(piece)
        else:
            self._note(piece)
            self._emitter.reasoning(piece)

    def text(self, piece: str) -> None:
        end = piece.rfind("\n") + 1
        if end:
            self.line_blank = not piece[end:].strip()
        elif piece.strip():
            self.line_blank = False
        self._note(piece)
        self._emitter.text(piece)

    def _note(self, piece: str) -> None:
        self._tail = piece[-_TAIL_CHARS:] if len(piece) >= _TAIL_CHARS else (self._tail + piece)[-_TAIL_CHARS:]
        if self.place != "text" and piece.strip():
            self.place = "text"

    def went_by(self, piece: str) -> None:
        """Notes a piece that ends with a visible character and was passed on without the parser."""
        self._tail = piece[-_TAIL_CHARS:] if len(piece) >= _TAIL_CHARS else (self._tail + piece)[-_TAIL_CHARS:]
        self.line_blank = False
        self.place = "text"

    def interrupted(self) -> None:
        """Notes that something was read that is not text."""
        self.place = "structure"
        self._tail = ""
        self.line_blank = True

    # --- openers that became text: as many of their closers are text too

    def owe(self, *closers: str) -> None:
        for closer in closers:
            self._owed[closer] += 1

    def is_owed(self, closer: str) -> bool:
        if self._owed[closer] > 0:
            self._owed[closer] -= 1
            return True
        return False

    # --- code fences

    def fence(self, source: Source, fence: str) -> Wait:
        """A code fence: everything up to its end is text."""
        opens = self.line_blank
        size = 3 + (yield from source.run(fence[0]))
        self.text(fence[0] * size)
        if opens:
            yield from self.fence_body(source, fence, size)

    def fence_body(self, source: Source, fence: str, size: int) -> Wait:
        while True:
            if not (yield from source.stream(_FENCE_MARKERS[fence], self.text)):
                return
            closes = self.line_blank
            run = 3 + (yield from source.run(fence[0]))
            self.text(fence[0] * run)
            if closes and run >= size:
                return


# --- quotations

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
