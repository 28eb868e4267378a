"""Removes what a server leaks where no notation is read, and the blocks stay as they are.

- Tokens that end an answer, at its very end. Inside the text they are text.
- The tags around reasoning that the upstream itself calls reasoning: ``<think>`` and ``</think>`` in any place where they are not
  mentioned by a sentence or in quotes.

Only a piece that ends with what may be one of them waits for the next one.
"""

from __future__ import annotations

import re

from ..events import BareEvent, KeepAlive, ReasoningDelta, ReasoningEnd, StepEnd, StreamEnd, TextDelta, TextEnd, Usage
from .prose import QUOTES, is_mention
from .scan import END_TOKENS, Markers

MAX_TOKENS = 16
"""Tokens at the end of an answer that are removed. More are an unusual text."""
MAX_WAITING_CHARS = 512
"""Characters that may wait for the end of the answer: these tokens, with white space between them."""

_HEADS = "|".join(
    sorted({re.escape(token[:size]) for token in END_TOKENS for size in range(1, len(token))}, key=len, reverse=True)
)
_TOKEN = f"(?:{'|'.join(map(re.escape, END_TOKENS))})"
_MAY_END = re.compile(rf"(?=<)(?:{_TOKEN}\s*){{0,{MAX_TOKENS}}}(?:{_HEADS})?\Z")
_ENDS = re.compile(rf"(?:{_TOKEN}\s*){{1,{MAX_TOKENS}}}\Z")
_TAGS = Markers(("<think>", "</think>"))


class Leaks:
    """A box over the events of one choice. ``tokens``, ``tags``: which of them are removed."""

    def __init__(self, tokens: bool = True, tags: bool = True) -> None:
        self._tokens = tokens
        self._tags = tags
        self.held = ""
        """Text that waits. While there is none, text without ``<`` leaves as it is."""
        self._after: list[BareEvent] = []
        """What came after the held text: it cannot leave before it."""
        self._tail = ""
        """The beginning of a tag, or a tag with nothing behind it yet, with which the reasoning ends so far."""
        self._last = ""

    def feed(self, event: BareEvent) -> list[BareEvent]:
        if isinstance(event, TextDelta):
            return self._text(event) if self._tokens else [event]
        if isinstance(event, ReasoningDelta):
            return self._reasoning(event.text) if self._tags else [event]
        if isinstance(event, ReasoningEnd):
            left = self._marked("", True)
            return [*left, *self._release(event)]
        if not self.held:
            return [event]
        if isinstance(event, (TextEnd, Usage, KeepAlive)):
            self._after.append(event)
            return []
        if isinstance(event, (StreamEnd, StepEnd)):
            self.held = _ENDS.sub("", self.held)
        return self._release(event)

    def close(self) -> list[BareEvent]:
        return self._release()

    def _release(self, *more: BareEvent) -> list[BareEvent]:
        out: list[BareEvent] = [TextDelta(self.held)] if self.held else []
        out += self._after
        self.held, self._after = "", []
        return [*out, *more]

    def _text(self, event: TextDelta) -> list[BareEvent]:
        text = event.text
        if not self.held and "<" not in text:
            return [event]
        text = self.held + text
        before = self._after
        found = _MAY_END.search(text)
        place = found.start() if found is not None and len(text) - found.start() <= MAX_WAITING_CHARS else len(text)
        self.held, self._after = text[place:], []
        return [*([TextDelta(text[:place])] if place else []), *before]

    def _reasoning(self, text: str) -> list[BareEvent]:
        if not self._tail and "<" not in text:
            self._last = text[-1:] or self._last
            return [ReasoningDelta(text)]
        return self._marked(text, False)

    def _marked(self, text: str, at_end: bool) -> list[BareEvent]:
        """The reasoning without its tags."""
        text, at, parts = self._tail + text, 0, []
        self._tail = ""
        for found in _TAGS.pattern.finditer(text):
            before = text[found.start() - 1] if found.start() else self._last
            following = text[found.end() : found.end() + 1]
            if not following and not at_end:
                parts.append(text[at : found.start()])
                at, self._tail = len(text), text[found.start() :]
                break
            quoted = QUOTES.get(before, "") == following != ""
            parts.append(text[at : found.end() if quoted or (following and is_mention(before, following)) else found.start()])
            at = found.end()
        if at < len(text):
            end = len(text) if at_end else _TAGS.tail(text, at)
            parts.append(text[at:end])
            self._tail = text[end:]
        given = "".join(parts)
        self._last = "" if at_end else given[-1:] or self._last
        return [ReasoningDelta(given)] if given else []
