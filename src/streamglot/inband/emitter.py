"""Writes the blocks of one answer: text, reasoning and calls, one open at a time.

White space beside structure is noise: no block consists of white space alone. What stands at the end of a text waits
for the text that follows it, and is dropped where none does. How pieces are put together is the ``Buffering``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from ..events import (
    BareEvent,
    Echo,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

MAX_SPACE_CHARS = 4096
"""White space that may wait for the text behind it."""


class Buffering(Struct, frozen=True):
    """When a piece goes out. ``piece``: at once. ``fragment``: at a quote, bracket, comma or colon, or when ``most``
    characters wait. ``sentence``: at the end of a sentence or line. ``whole``: at the end of the block."""

    text: Literal["piece", "sentence", "whole"] = "piece"
    arguments: Literal["piece", "fragment", "whole"] = "fragment"
    reasoning: Literal["piece", "sentence", "whole"] = "piece"
    most: int = 64


DEFAULT_BUFFERING = Buffering()

_FRAGMENT_ENDS = frozenset('"{}[],:')
_SENTENCE_ENDS = frozenset(".!?\n。！？")


class Emitter:
    """``out`` collects the events; whoever owns the emitter takes them from there."""

    def __init__(self, buffering: Buffering = DEFAULT_BUFFERING, prefix: str = "call", keep_space: bool = False) -> None:
        self.out: list[BareEvent] = []
        self.open = ""
        self.calls = 0
        """Calls that came whole."""
        self.found = 0
        """Calls that were begun."""
        self.space = ""
        self.keep_space = keep_space
        self.after_reasoning = False
        self.waiting: list[BareEvent] = []
        """Events that may stand only in or beside a text, and came while something else was open."""
        self._buffering = buffering
        self._prefix = prefix
        self._wait: list[str] = []
        self._wait_size = 0
        self._any_arguments = False

    # --- text and reasoning

    def text(self, piece: str) -> None:
        if self.open != "text":
            if self.after_reasoning:
                piece = (self.space + piece).lstrip("\r\n")
                self.space = ""
            if not piece:
                return
        kept = piece if self.keep_space else piece.rstrip()
        if not kept:
            self.space += piece
            if len(self.space) <= MAX_SPACE_CHARS:
                return
            kept, piece, self.space = self.space, self.space, ""
        if self.open != "text":
            self.out.append(TextStart())
            self.open = "text"
            self.after_reasoning = False
        self._put("text", self.space + kept if self.space else kept)
        self.space = piece[len(kept) :]

    def start_reasoning(self) -> None:
        self.end_text()
        self.space = ""

    def reasoning(self, piece: str) -> None:
        if self.open != "reasoning":
            if self.open == "text":
                self.start_reasoning()
            piece = (self.space + piece).lstrip("\r\n")
            self.space = ""
            if not piece.strip():
                self.space = piece[:MAX_SPACE_CHARS]
                return
            self.out.append(ReasoningStart())
            self.open = "reasoning"
        kept = piece.rstrip()
        if not kept:
            self.space += piece
            if len(self.space) <= MAX_SPACE_CHARS:
                return
            kept, piece, self.space = self.space, self.space, ""
        self._put("reasoning", self.space + kept if self.space else kept)
        self.space = piece[len(kept) :]

    def end_reasoning(self, complete: bool = True) -> None:
        if self.open == "reasoning":
            self._flush()
            self.out.append(ReasoningEnd(complete=complete))
            self.open = ""
        self.space = ""
        self.after_reasoning = True
        self._release()

    def end_text(self, echo: Echo | None = None, complete: bool = True) -> None:
        if self.open == "text":
            self._flush()
            self.out.append(TextEnd(echo, complete))
            self.open = ""
            self._release()

    # --- calls

    def start_call(self, name: str, call_id: str) -> None:
        if self.open == "reasoning":
            self.end_reasoning()
        self.end_text()
        self.found += 1
        self.out.append(ToolCallStart(call_id or f"{self._prefix}_{self.found}", name))
        self.open = "call"
        self._any_arguments = False

    def arguments(self, piece: str) -> None:
        if piece:
            self._any_arguments = True
            self._put("arguments", piece)

    def end_call(self, complete: bool) -> None:
        if complete and not self._any_arguments:
            self._put("arguments", "{}")
        self._flush()
        self.out.append(ToolCallEnd(None, complete))
        self.open = ""
        self.calls += complete
        self._release()

    # --- the end

    def finish(self, echo: Echo | None = None, complete: bool = True) -> None:
        """No more text: closes the open block. White space that waits is kept only where no call was found."""
        if self.open == "reasoning":
            self.end_reasoning(complete)
        if self.space and not self.found and not self.after_reasoning:
            space, self.space = self.space, ""
            if self.open != "text":
                self.out.append(TextStart())
                self.open = "text"
            self._put("text", space)
        self.space = ""
        if echo is not None and self.open != "text":
            self.out.append(TextStart())
            self.open = "text"
        self.end_text(echo, complete)

    # --- inside

    def _put(self, kind: str, piece: str) -> None:
        rule = getattr(self._buffering, kind)
        if rule == "piece":
            self.out.append(_DELTAS[kind](piece))
            return
        self._wait.append(piece)
        self._wait_size += len(piece)
        if rule == "fragment":
            if piece[-1] in _FRAGMENT_ENDS or self._wait_size >= self._buffering.most:
                self._flush()
        elif rule == "sentence" and piece[-1] in _SENTENCE_ENDS:
            self._flush()

    def _flush(self) -> None:
        if self._wait:
            kind = {"text": "text", "reasoning": "reasoning"}.get(self.open, "arguments")
            self.out.append(_DELTAS[kind]("".join(self._wait)))
            self._wait.clear()
            self._wait_size = 0

    def _release(self) -> None:
        if self.waiting:
            self.out += self.waiting
            self.waiting.clear()


_DELTAS: dict[str, Callable[[str], BareEvent]] = {"text": TextDelta, "reasoning": ReasoningDelta, "arguments": ToolCallDelta}
