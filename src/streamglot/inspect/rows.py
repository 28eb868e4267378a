"""Rows as columns, and the other parts of a page of an inspection."""

from __future__ import annotations

from msgspec import Struct, field


class Gap(Struct):
    begin: float
    end: float


class Attempt(Struct):
    """One request to an upstream, as recorded."""

    number: int
    at: float
    dialect: str
    upstream: str = ""
    model: str = ""
    inband: str = ""
    starts: bool = False
    first_byte: float = -1.0
    last_byte: float = -1.0
    bytes: int = 0
    frames: int = 0


class Rows(Struct):
    """Columns of rows. ``first`` is the number of the first row.

    ``link`` is the row that this one came from, -1 for none: for an event the upstream frame, for a client frame the event.
    ``mark`` is the attempt of an upstream frame, the flags of an event, or the bytes of a client frame.
    """

    first: int = 0
    at: list[int] = field(default_factory=list)
    link: list[int] = field(default_factory=list)
    mark: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.first + len(self.at)

    def add(self, at: float, link: int, mark: int, text: str) -> None:
        self.at.append(round(at * 1_000_000))
        self.link.append(link)
        self.mark.append(mark)
        self.text.append(text)

    def taken(self) -> Rows:
        taken = Rows(self.first, self.at, self.link, self.mark, self.text)
        self.first, self.at, self.link, self.mark, self.text = self.next, [], [], [], []
        return taken
