"""Writes the blocks of one answer: text, reasoning and calls, one open at a time.

No block consists of white space only, and no white space between two words of the text is lost:

- White space before reasoning stays at the end of the text before it.
- White space before a call waits. It begins the text that follows the call, and is dropped if none follows.
- White space after reasoning or a call begins the text that follows.
- Line breaks between the first reasoning and the first word of the text belong to the notation and are dropped. So is white space
  at the end of an answer that has calls.

The same applies to reasoning: only its first line breaks and its trailing white space are dropped. ``Buffering`` says how pieces
are combined.
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
"""Characters of white space that may wait for the following text. More is an unusual layout, and is emitted as text."""


class Buffering(Struct, frozen=True):
    """When a piece is emitted. ``piece``: at once. ``fragment``: at a quote, bracket, comma or colon, or when ``most``
    characters wait. ``sentence``: at the end of a sentence or line. ``whole``: at the end of the block."""

    text: Literal["piece", "sentence", "whole"] = "piece"
    arguments: Literal["piece", "fragment", "whole"] = "fragment"
    reasoning: Literal["piece", "sentence", "whole"] = "piece"
    most: int = 64


DEFAULT_BUFFERING = Buffering()

_FRAGMENT_ENDS = frozenset('"{}[],:')
_SENTENCE_ENDS = frozenset(".!?\n。！？")


class Emitter:
    """``out`` collects the events; the owner of the emitter takes them from there."""

    def __init__(self, buffering: Buffering = DEFAULT_BUFFERING, prefix: str = "call", keep_space: bool = False) -> None:
        self.out: list[BareEvent] = []
        self.open = ""
        self.calls = 0
        """Complete calls."""
        self.found = 0
        """Started calls."""
        self.call = ""
        """The name of the last started call."""
        self.space = ""
        """White space that waits: after the open block, or before the next one."""
        self.keep_space = keep_space
        self.waiting: list[BareEvent] = []
        """Events that may stand only in or beside a text, and arrived while something else was open."""
        self._buffering = buffering
        self._prefix = prefix
        self._wait: list[str] = []
        self._wait_size = 0
        self._any_arguments = False
        self._thinking = False
        """``space`` belongs to the reasoning and ``_other_space`` to the text, or the other way round."""
        self._other_space = ""
        self.any_text = False
        self._any_thought = False
        self._after_thought = False
        """Reasoning has ended, and no text has begun since."""

    # --- text and reasoning

    def text(self, piece: str) -> None:
        if self.open != "text":
            if self._thinking:
                self.end_reasoning()
            if self._after_thought and not self.any_text:
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
            self.any_text = True
            self._after_thought = False
        self._put("text", self.space + kept if self.space else kept)
        self.space = piece[len(kept) :]

    def skip_lead(self) -> None:
        """Handles a closing tag without its reasoning: white space around it is not text if no text came before."""
        if not self.any_text:
            self.space = ""
            self._after_thought = True

    def start_reasoning(self) -> None:
        if self._thinking:
            return
        if self.open == "text" and self.space:
            self._put("text", self.space)
            self.space = ""
        self.end_text()
        if not self.any_text:
            self.space = ""
        self.space, self._other_space = self._other_space, self.space
        self._thinking = True

    def reasoning(self, piece: str) -> None:
        if self.open != "reasoning":
            self.start_reasoning()
            piece = self.space + piece
            if not self._any_thought:
                piece = piece.lstrip("\r\n")
            self.space = ""
            if not piece.strip():
                self.space = piece[:MAX_SPACE_CHARS]
                return
            self.out.append(ReasoningStart())
            self.open = "reasoning"
            self._any_thought = True
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
        if self._thinking:
            self.space, self._other_space = self._other_space, self.space
            self._thinking = False
        self._after_thought = True
        self._release()

    def end_text(self, echo: Echo | None = None, complete: bool = True) -> None:
        if self.open == "text":
            self._flush()
            self.out.append(TextEnd(echo, complete))
            self.open = ""
            self._release()

    # --- calls

    def start_call(self, name: str, call_id: str) -> None:
        if self._thinking:
            self.end_reasoning()
        self.end_text()
        self.found += 1
        self.call = name
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

    def pause(self, echo: Echo | None = None, complete: bool = True) -> None:
        """Closes the open block, with the white space after it, because something else follows in the answer."""
        if self._thinking:
            self.end_reasoning(complete)
        if self.open == "text" and self.space:
            self._put("text", self.space)
            self.space = ""
        self._end_with(echo, complete)

    def finish(self, echo: Echo | None = None, complete: bool = True) -> None:
        """Ends the answer: closes the open block. Waiting white space is emitted only if no call was found."""
        if self._thinking:
            self.end_reasoning(complete)
        if self.space and not self.found and not self._after_thought:
            if self.open != "text":
                self.out.append(TextStart())
                self.open = "text"
            self._put("text", self.space)
        self._end_with(echo, complete)
        self.space = self._other_space = ""
        self.any_text = self._any_thought = self._after_thought = False

    def _end_with(self, echo: Echo | None, complete: bool) -> None:
        if echo is not None and self.open != "text":
            self.out.append(TextStart())
            self.open = "text"
        self.end_text(echo, complete)

    # --- internals

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
