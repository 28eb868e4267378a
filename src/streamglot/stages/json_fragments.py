"""Ends the fragments of a call's arguments at bounds of JSON.

Some clients show arguments while they arrive, and parse each state of them. Fragments of an upstream end anywhere: in a key, in an
escape, in a number. Here a fragment ends after a bracket, a comma, a colon, white space, or the quotation mark that closes a string.
The text of all fragments together is unchanged.
"""

from __future__ import annotations

import re
from typing import Final

from ..events import BareEvent, Choice, Event, ToolCallDelta, ToolCallEnd, ToolCallStart
from .stage import Output, Stage

MAX_STRING_CHARS: Final = 2000
"""Characters of one string value that are held. A longer one, such as a file, still streams: it is cut between words, or anywhere but
in an escape where it has no white space. Keys and numbers are never cut."""
_STRING_STOP: Final = re.compile(r'["\\]')
_TOKEN: Final = re.compile(r'[\s{}\[\],:]+|"|[^\s{}\[\],:"]+')
_SPACE: Final = re.compile(r"\s(?=\S*\Z)")
_LONGEST_ESCAPE: Final = 12
"""Characters of the longest escape: two halves of one character, as in ``\\ud83d\\ude00``."""
_UNFINISHED_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?|u[0-9a-fA-F]{0,3})?\Z")


class JsonFragments(Stage):
    """Holds the arguments of function calls until a bound of JSON, or the end of the call. The free text of a custom tool passes
    unchanged."""

    def __init__(self, max_chars: int = MAX_STRING_CHARS) -> None:
        self._max_chars = max_chars
        self._open: dict[int, Fragments] = {}

    def feed(self, events: list[Event]) -> list[Output]:
        out: list[Output] = []
        for event in events:
            if isinstance(event, Choice):
                out += [Choice(event.index, inner) for inner in self._feed(event.event, event.index)]
            else:
                out += self._feed(event, 0)
        return out

    def _feed(self, event: BareEvent, choice: int) -> list[BareEvent]:
        if isinstance(event, ToolCallDelta) and choice in self._open:
            fragment = self._open[choice].feed(event.args)
            return [ToolCallDelta(fragment)] if fragment else []
        if isinstance(event, ToolCallStart) and event.kind != "custom":
            self._open[choice] = Fragments(self._max_chars)
        elif isinstance(event, ToolCallEnd) and choice in self._open:
            rest = self._open.pop(choice).close()
            return [ToolCallDelta(rest), event] if rest else [event]
        return [event]


class Fragments:
    """The arguments of one call. Each character is looked at once, whatever the pieces are."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._held: list[str] = []
        self._held_chars = 0
        self._containers: list[str] = []
        self._key_next = False
        self._in_string = False
        self._in_key = False
        self._escaped = False

    def feed(self, text: str) -> str:
        """What may leave now that this text has come."""
        end = self._last_bound(text)
        if end:
            whole = "".join((*self._held, text[:end]))
            self._hold(text[end:])
            return whole
        self._held.append(text)
        self._held_chars += len(text)
        if self._held_chars > self._max_chars and self._in_string and not self._in_key:
            return self._cut()
        return ""

    def close(self) -> str:
        rest = "".join(self._held)
        self._hold("")
        return rest

    def _hold(self, text: str) -> None:
        self._held, self._held_chars = [text] if text else [], len(text)

    def _cut(self) -> str:
        """Cuts a long string value."""
        held = "".join(self._held)
        space = _SPACE.search(held, max(0, len(held) - self._max_chars))
        end = space.end() if space is not None else len(held)
        end = _before_escape(held, end)
        self._hold(held[end:])
        return held[:end]

    def _last_bound(self, text: str) -> int:
        """Reads the text and returns the end of its last whole piece of JSON; 0 if it has none."""
        at, bound, size = 0, 0, len(text)
        while at < size:
            if self._in_string:
                at = self._string_end(text, at)
                if not self._in_string:
                    bound = at
                continue
            found = _TOKEN.match(text, at)
            assert found is not None, "the pattern has every character"
            token, at = found[0], found.end()
            if token == '"':
                self._in_string, self._in_key = True, self._key_next
                self._key_next = False
            elif token[0] in "{}[],:" or token[0].isspace():
                bound = at
                for mark in token:
                    self._mark(mark)
        return bound

    def _string_end(self, text: str, at: int) -> int:
        """The place after the string that is open, or the end of the text."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _STRING_STOP.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            if found[0] == '"':
                self._in_string = False
                return at
            self._escaped = True
        return at

    def _mark(self, mark: str) -> None:
        if mark in "{[":
            self._containers.append(mark)
            self._key_next = mark == "{"
        elif mark in "}]":
            self._key_next = False
            if self._containers:
                self._containers.pop()
        elif mark == ",":
            self._key_next = bool(self._containers) and self._containers[-1] == "{"
        elif mark == ":":
            self._key_next = False


def _before_escape(text: str, end: int) -> int:
    """The place before an escape that is not complete at ``end``; ``end`` if there is none."""
    unfinished = _UNFINISHED_ESCAPE.search(text, max(0, end - _LONGEST_ESCAPE), end)
    while unfinished is not None:
        start = unfinished.start()
        before = text[:start]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return start
        unfinished = _UNFINISHED_ESCAPE.search(text, start + 1, end)  # this backslash was the second of a pair
    return end
