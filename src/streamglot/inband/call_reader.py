"""The context of an engine: the source that it reads from, and the calls that it writes.

An emitted ToolCallStart cannot be taken back, so each call has a point at which it is *certain*:

- After a strong marker (a special token, or a tag that prose does not use) a call is certain as soon as its name is known to be a
  declared tool, or, without declared tools, a well-formed name. It starts there, and its arguments stream. If it turns out to be
  malformed later, it ends with ``complete=False``. The part of it that was read but not delivered is text, and so is the text
  after it.
- If the notation looks like ordinary text, the call is *held*. Tags named after tools start a call when its first argument is
  complete. Bare JSON and Python calls are valid or not as a whole: they start when they end. Both start when more than
  ``HOLD_CHARS`` of arguments wait. Until then everything that was read can become text again, with nothing lost.
- With ``whole_calls`` every call is held until its end, so that none can break after its start.

The same text gives the same events wherever it is split, because characters are counted, never pieces.
"""

from __future__ import annotations

from .emitter import Emitter
from .literals import Notation, decoded_string, value
from .parameters import Declared
from .scan import Malformed, Source, Wait

HOLD_CHARS = 512
"""Characters of arguments that a held call may collect before it starts: long values should stream, short ones can wait."""


class CallReader:
    """The calls of one text. ``started``: the current call has been emitted."""

    __slots__ = (
        "_emitter", "_held", "_held_size", "_pending", "announced", "at_start", "calls", "declared", "mode", "raw", "rendered",
        "source", "started", "to_user", "whole_calls",
    )  # fmt: skip

    def __init__(self, source: Source, emitter: Emitter, declared: Declared) -> None:
        self.source = source
        self.declared = declared
        self.started = False
        self.calls = True
        self.whole_calls = False
        self.raw = False
        """The current message of a channel format is a call that became text: its end is text too."""
        self.at_start = False
        """A message of a channel format has ended: markers that count only at the beginning of the answer count again."""
        self.rendered = False
        """The server dropped the special tokens of a channel format: only the words of its headers remain."""
        self.to_user = False
        """The current message of a channel format is addressed to the user: markup in it is not a call."""
        self.announced = ""
        """The declared tool to which the current message of a channel format is addressed, until its call starts."""
        self.mode = "text"
        """The kind of unmarked text: "text" or "reasoning"."""
        self._emitter = emitter
        self._pending: tuple[str, str] | None = None
        self._held: list[str] = []
        self._held_size = 0

    @property
    def on_new_line(self) -> bool:
        """Whether no text stands on the current line: text that passed by, not text that the current engine has read."""
        return self._emitter.open != "text" or "\n" in self._emitter.space

    @property
    def nothing_before(self) -> bool:
        """Whether the answer has neither text nor calls so far."""
        return not (self._emitter.any_text or self._emitter.found)

    def name(self, written: str) -> str:
        """The declared tool of this name. Raises Malformed if there is none, unless the format allows any name."""
        name = self.declared.resolve(written)
        if name is None:
            raise Malformed(f"{written[:80]!r} is not a declared tool")
        return name

    def text(self, piece: str) -> None:
        """Passes on text that is not part of a call."""
        self._emitter.text(piece)
        self.source.checkpoint()

    def start(self, name: str, call_id: str = "", hold: bool = False) -> None:
        self._pending = (name, call_id)
        self._held.clear()
        self._held_size = 0
        if not hold:
            self.commit()

    def commit(self) -> None:
        """Marks the call as certain and starts it."""
        if not self.whole_calls:
            self._begin()

    def _begin(self) -> None:
        if self._pending is None:
            return
        name, call_id = self._pending
        self._pending = None
        self.announced = ""
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
        """Reads one value and passes it on as part of the arguments. If it breaks, everything except its last token has been
        passed on."""
        try:
            yield from value(self.source, self.arguments, notation)
        except Malformed as reason:
            if reason.rest is None:
                reason.rest = ""
            raise

    def decoded(self) -> Wait:
        """Reads a JSON string that contains the arguments, and passes them on. If they break, the error knows what was not passed
        on; the record of the source would depend on the split."""
        try:
            yield from decoded_string(self.source, self.arguments)
        finally:
            if self.started:
                self.source.checkpoint()

    def end(self) -> None:
        self._begin()
        self._emitter.end_call(True)
        self.started = False
        self.source.checkpoint()

    def abandon(self) -> None:
        """Handles a malformed call: ends it if it has started, discards it if not."""
        self._pending = None
        self._held.clear()
        if self.started:
            self._emitter.end_call(False)
            self.started = False
