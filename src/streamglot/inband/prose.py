"""The text and the reasoning that a parser passes on, with what it must remember of them to judge the next marker."""

from __future__ import annotations

import string
from collections import Counter
from typing import Literal

from .emitter import Emitter
from .mentions import BLANK, QUOTES, Quotation
from .reader import CallReader
from .scan import Markers, Source, Wait

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
