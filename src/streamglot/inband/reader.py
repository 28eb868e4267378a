"""What an engine works with: the source it reads from, and the calls it writes.

A ToolCallStart that has gone out can not be taken back, so each call has a point at which it is *certain*:

- behind a strong marker (a special token, or a tag that prose does not use) a call is certain as soon as its name is
  known to be a declared tool, or, without declared tools, a well-formed name. It starts there, and its arguments
  stream. If it turns out malformed after that, it ends with ``complete=False`` and what follows is text.
- where the notation looks like ordinary text (bare JSON, Python calls, tags named after tools) the call is *held*:
  it starts when its first argument is whole, when it ends, or when more than ``HOLD_CHARS`` of arguments wait. Until
  then everything that was read can become text again, with nothing lost.

The same text gives the same events wherever it is cut, because only characters are counted, never pieces.
"""

from __future__ import annotations

from .declared import Declared
from .emitter import Emitter
from .scan import Malformed, Source

HOLD_CHARS = 512
"""Arguments that a held call may collect before it starts: long values are worth streaming, short ones are worth waiting."""


class Reader:
    """The calls of one text. ``started`` tells whether the call that is being read has gone out already."""

    __slots__ = ("_emitter", "_held", "_held_size", "_pending", "calls", "declared", "mode", "raw", "source", "started")

    def __init__(self, source: Source, emitter: Emitter, declared: Declared) -> None:
        self.source = source
        self.declared = declared
        self.started = False
        self.calls = True
        self.raw = False
        """The message of a channel format that is being read is a call, and calls are not wanted: its end is text too."""
        self.mode = "text"
        """What unmarked text is by now: "text" or "reasoning"."""
        self._emitter = emitter
        self._pending: tuple[str, str] | None = None
        self._held: list[str] = []
        self._held_size = 0

    def name(self, written: str) -> str:
        """The declared tool of this name; Malformed where there is none, unless the format takes any name."""
        name = self.declared.resolve(written)
        if name is None:
            raise Malformed(f"{written[:80]!r} is no declared tool")
        return name

    def start(self, name: str, call_id: str = "", hold: bool = False) -> None:
        self._pending = (name, call_id)
        self._held.clear()
        self._held_size = 0
        if not hold:
            self.commit()

    def commit(self) -> None:
        """The call is certain now."""
        if self._pending is None:
            return
        name, call_id = self._pending
        self._pending = None
        self.started = True
        self._emitter.start_call(name, call_id)
        for piece in self._held:
            self._emitter.arguments(piece)
        self._held.clear()
        self.source.checkpoint()

    def arguments(self, piece: str) -> None:
        if self._pending is not None:
            self._held.append(piece)
            self._held_size += len(piece)
            if self._held_size > HOLD_CHARS:
                self.commit()
            return
        self._emitter.arguments(piece)
        self.source.checkpoint()

    def end(self) -> None:
        self.commit()
        self._emitter.end_call(True)
        self.started = False
        self.source.checkpoint()

    def abandon(self) -> None:
        """The call turned out malformed: ends it if it has started, forgets it if not."""
        self._pending = None
        self._held.clear()
        if self.started:
            self._emitter.end_call(False)
            self.started = False
