"""Holds reasoning until a sentence is complete.

Some clients show each piece of reasoning as a line of its own, and drawing a page again for every token is slow.
Text and tool calls are not held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..events import BareEvent, Choice, Event, ReasoningDelta, ReasoningEnd, as_list
from .stage import Output, Stage

MAX_SENTENCE_CHARS: Final = 2000
"""Characters that one sentence may hold back: some ten times the length of a long one. A thought without an end, such as a
list or a table, still flows."""
_END: Final = re.compile(r"\n|[.!?…][\"'”’)\]]{0,3}\s|[。！？]")
"""The end of a sentence: a line end, a full stop that white space follows (so that 3.14 is not cut), or a wide full stop. No
alternative looks ahead, so that the place of the cut does not depend on how the text came."""
_LOOK_BACK: Final = 4
"""Characters of held text that may be the beginning of an end: a full stop and three closing marks."""


class SentenceBuffer(Stage):
    """Holds reasoning until the end of a sentence, a line or the block, or until ``max_chars`` characters wait. The same text
    gives the same pieces, however it was cut."""

    def __init__(self, max_chars: int = MAX_SENTENCE_CHARS) -> None:
        self._max_chars = max_chars
        self._held: dict[int, _Held] = {}

    def feed(self, events: Iterable[Event] | Event) -> list[Output]:
        out: list[Output] = []
        for event in as_list(events):
            if isinstance(event, Choice):
                out += [Choice(event.index, inner) for inner in self._feed(event.event, event.index)]
            else:
                out += self._feed(event, 0)
        return out

    def _feed(self, event: BareEvent, choice: int) -> list[BareEvent]:
        if isinstance(event, ReasoningDelta):
            if choice not in self._held:
                self._held[choice] = _Held(self._max_chars)
            return [ReasoningDelta(sentence) for sentence in self._held[choice].feed(event.text)]
        if isinstance(event, ReasoningEnd) and choice in self._held:
            rest = self._held.pop(choice).close()
            return [ReasoningDelta(rest), event] if rest else [event]
        return [event]


class _Held:
    """The text of one block that has not left yet."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._pieces: list[str] = []
        self._size = 0
        self._tail = ""

    def feed(self, text: str) -> list[str]:
        """The sentences that this text finishes. Only the tail of the held text is read again."""
        sentences: list[str] = []
        source, at, begin = self._tail + text, len(self._tail), 0
        while at < len(source):
            max_chars = at + self._max_chars - self._size
            found = _END.search(source, begin, max_chars)
            end = min(max_chars, len(source)) if found is None else found.end()
            self._pieces.append(source[at:end])
            self._size += end - at
            at = end
            if found is not None or end == max_chars:
                sentences.append(self.close())
                begin = at
        self._tail = source[max(begin, len(source) - _LOOK_BACK) :]
        return sentences

    def close(self) -> str:
        """The rest of the held text."""
        sentence = "".join(self._pieces)
        self._pieces, self._size, self._tail = [], 0, ""
        return sentence
