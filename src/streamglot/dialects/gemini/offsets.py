"""Positions in a text: this dialect counts UTF-8 bytes, the events count characters."""

from __future__ import annotations

from bisect import bisect_left


class Offsets:
    """The text of one answer in pieces. A piece is measured once, and only if a position is requested."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._byte_ends: list[int] = []
        self._char_ends: list[int] = []
        self.add = self._pieces.append

    def characters(self, place: int) -> int:
        """The character at this byte."""
        self._measure()
        number = bisect_left(self._byte_ends, place)
        if number == len(self._pieces):
            return self._char_ends[-1] if self._char_ends else 0
        before = self._byte_ends[number - 1] if number else 0
        chars = self._char_ends[number - 1] if number else 0
        return chars + len(_utf8(self._pieces[number])[: place - before].decode("utf-8", "ignore"))

    def bytes(self, place: int) -> int:
        """The byte at which this character begins."""
        self._measure()
        number = bisect_left(self._char_ends, place)
        if number == len(self._pieces):
            return self._byte_ends[-1] if self._byte_ends else 0
        before = self._char_ends[number - 1] if number else 0
        size = self._byte_ends[number - 1] if number else 0
        return size + len(_utf8(self._pieces[number][: place - before]))

    def _measure(self) -> None:
        for piece in self._pieces[len(self._byte_ends) :]:
            self._byte_ends.append((self._byte_ends[-1] if self._byte_ends else 0) + len(_utf8(piece)))
            self._char_ends.append((self._char_ends[-1] if self._char_ends else 0) + len(piece))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
