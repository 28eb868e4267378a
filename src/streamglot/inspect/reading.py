"""Readers for inspection: plain text as an answer, and the in-band parser after any reader."""

from __future__ import annotations

from ..dialects import DIALECTS
from ..errors import BadCall
from ..events import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart
from ..framing.utf8 import Utf8
from ..inband import inband
from ..json_types import JsonValue
from ..stages import PerChoice
from .client_reader import ClientReader
from .detection import EventLineReader, EventReader
from .marks import CLIENT_DIALECTS, EVENTS


def reader_of(name: str, provider: str = "") -> EventReader | None:
    """The reader for a stream to inspect; None for a name that is not a dialect."""
    if name in CLIENT_DIALECTS:
        return ClientReader()
    if name == EVENTS:
        return EventLineReader()
    known = DIALECTS.get(name)
    return known.reader(provider=provider or None) if known is not None and known.has_reader else None


class PlainTextReader:
    """Reads plain text as one answer that ends with the input."""

    def __init__(self) -> None:
        self._text = Utf8()
        self._started = False

    def feed(self, chunk: bytes) -> list[Event]:
        return self._text_events(self._text.feed(chunk))

    def close(self) -> list[Event]:
        return [*self._text_events(self._text.close()), TextEnd(), StreamEnd("end")]

    def _text_events(self, piece: str) -> list[Event]:
        opening: list[Event] = [] if self._started else [StreamStart(), TextStart()]
        self._started = True
        return [*opening, TextDelta(piece)] if piece else opening


class InBandReader:
    """A reader followed by the in-band parser.

    ``starts`` says whether the text begins inside the thinking; None uses the format's default.
    """

    def __init__(
        self,
        box: EventReader,
        format: str,
        tools: list[JsonValue] | None = None,
        bad_call: BadCall = "incomplete",
        starts: bool | None = None,
    ) -> None:
        self._reader = box
        self._parser = PerChoice(lambda: inband(format, tools=tools, bad_call=bad_call, starts_in_reasoning=starts))

    def feed(self, chunk: bytes) -> list[Event]:
        return self._through(self._reader.feed(chunk))

    def close(self) -> list[Event]:
        return [*self._through(self._reader.close()), *self._parser.close()]

    def _through(self, events: list[Event]) -> list[Event]:
        return [given for event in events for given in self._parser.feed(event)]
