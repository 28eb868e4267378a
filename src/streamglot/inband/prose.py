"""The text and the reasoning that a parser passes on, with what it must remember of them to judge the next marker."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from .emitter import Emitter
from .mentions import BLANK
from .reader import CallReader
from .scan import Markers, Source, Wait

FENCES = ("```", "~~~")
SENTENCE_ENDS = frozenset(".!?:…。！？\n")
_FENCE_MARKERS = {fence: Markers((fence,)) for fence in FENCES}


class Prose:
    """``last``: the last character, "" if something else than text stands before. ``quote_opens``: a quotation mark at its place
    would open a quotation, because a space stands before it. ``place``: what stands before the next
    character, apart from white space: nothing, something that is not text, or text. ``line_blank``: only white space stands
    before it on its line."""

    __slots__ = ("_before", "_emitter", "_owed", "_reader", "last", "line_blank", "place", "quote_opens")

    def __init__(self, emitter: Emitter, reader: CallReader) -> None:
        self._emitter = emitter
        self._reader = reader
        self._owed: Counter[str] = Counter()
        self._before = ""
        self.last = ""
        self.quote_opens = True
        self.place: Literal["start", "structure", "text"] = "start"
        self.line_blank = True

    @property
    def in_sentence(self) -> bool:
        """Whether a space precedes, and before it a word or a mark inside of a sentence."""
        return self.last in BLANK and self._before not in SENTENCE_ENDS

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
        self._before = piece[-2] if len(piece) > 1 else self.last
        self.quote_opens = not self._before or self._before.isspace()
        self.last = piece[-1:]
        if self.place != "text" and piece.strip():
            self.place = "text"

    def went_by(self, piece: str) -> None:
        """Notes a piece that ends with a visible character and was passed on without the parser."""
        self._before = piece[-2] if len(piece) > 1 else self.last
        self.quote_opens = not self._before or self._before.isspace()
        self.line_blank = False
        self.last = piece[-1]
        self.place = "text"

    def interrupted(self) -> None:
        """Notes that something was read that is not text."""
        self.place = "structure"
        self.last = ""
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
