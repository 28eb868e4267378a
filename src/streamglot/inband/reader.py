"""What an engine works with: the source it reads from, and the calls it writes.

A ToolCallStart that has gone out can not be taken back, so each call has a point at which it is *certain*:

- behind a strong marker (a special token, or a tag that prose does not use) a call is certain as soon as its name is
  known to be a declared tool, or, without declared tools, a well-formed name. It starts there, and its arguments
  stream. If it turns out malformed after that, it ends with ``complete=False``. What was read of it and not delivered is
  text, and so is what follows.
- where the notation looks like ordinary text the call is *held*. Tags named after tools start a call when its first
  argument is whole. Bare JSON and Python calls are valid or not as a whole: they start when they end. Both start when
  more than ``HOLD_CHARS`` of arguments wait. Until then everything that was read can become text again, with nothing
  lost.
- with ``whole_calls`` every call is held until its end, so that none can break after its start.

The same text gives the same events wherever it is cut, because only characters are counted, never pieces.
"""

from __future__ import annotations

from .declared import Declared
from .emitter import Emitter
from .json_scan import decoded_string, value
from .json_strings import Notation
from .scan import Malformed, Source, Wait

HOLD_CHARS = 512
"""Characters of arguments that a held call may collect before it starts: long values are worth streaming, short ones are
worth waiting for."""


class Reader:
    """The calls of one text. ``started`` tells whether the call that is being read has gone out already."""

    __slots__ = (
        "_emitter", "_held", "_held_size", "_pending", "at_start", "calls", "declared", "mode", "raw", "rendered", "source",
        "started", "to_user", "whole_calls",
    )  # fmt: skip

    def __init__(self, source: Source, emitter: Emitter, declared: Declared) -> None:
        self.source = source
        self.declared = declared
        self.started = False
        self.calls = True
        self.whole_calls = False
        self.raw = False
        """The message of a channel format that is being read is a call, and calls are not wanted: its end is text too."""
        self.at_start = False
        """A message of a channel format has ended: what counts only as the first thing in the answer counts again."""
        self.rendered = False
        """The server dropped the special tokens of a channel format: the words of its headers stand alone."""
        self.to_user = False
        """The message of a channel format that is being read is addressed to the user: no markup in it is a call."""
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

    def text(self, piece: str) -> None:
        """Hands on text that the engine has found to be nothing else."""
        self._emitter.text(piece)
        self.source.checkpoint()

    def start(self, name: str, call_id: str = "", hold: bool = False) -> None:
        self._pending = (name, call_id)
        self._held.clear()
        self._held_size = 0
        if not hold:
            self.commit()

    def commit(self) -> None:
        """The call is certain now."""
        if not self.whole_calls:
            self._begin()

    def _begin(self) -> None:
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
        if self._pending is None:
            self._emitter.arguments(piece)
            self.source.checkpoint()
            return
        self._held.append(piece)
        if not self.whole_calls:
            self._held_size += len(piece)
            if self._held_size > HOLD_CHARS:
                self._begin()

    def value(self, notation: Notation) -> Wait:
        """Reads one value and hands it on as a part of the arguments. Where it breaks, all but its last word has gone out."""
        try:
            yield from value(self.source, self.arguments, notation)
        except Malformed as reason:
            if reason.rest is None:
                reason.rest = ""
            raise

    def decoded(self) -> Wait:
        """Reads a JSON string with the arguments in it, and hands them on."""
        yield from decoded_string(self.source, self.arguments)
        if self._pending is None:
            self.source.checkpoint()

    def end(self) -> None:
        self._begin()
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
