"""Finds the dialect of a stream whose dialect the user may leave out, and reads it: the first lines show it.

Plain text is read as an answer too, and the in-band parser may follow any reader.
"""

from __future__ import annotations

from typing import Final, Protocol

from ..dialects import DIALECTS, dialect
from ..errors import BadCall, ConfigError
from ..events import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, decode
from ..framing.lines import Lines, Utf8
from ..inband import inband
from ..json_types import JsonValue
from ..limits import DEFAULT_LIMITS
from ..stages import PerChoice
from .web_readers import ClientReader

EVENTS: Final = "events"
"""The name of streamglot's events (one JSON object per line), wherever a dialect can be named."""
ANY: Final = "openai_chat"
"""The dialect of an empty stream. Every reader reports the same error for it."""
MARKS: Final = (
    (b'"type":"stream_start"', EVENTS),
    (b'"response.created":{', "qwen_web"),
    (b"event:message_start", "anthropic"),
    (b'"type":"message_start"', "anthropic"),
    (b"event:response.", "openai_responses"),
    (b'"type":"response.', "openai_responses"),
    (b'"object":"response"', "openai_responses"),
    (b'"type":"message"', "anthropic"),
    (b"chat.completion", "openai_chat"),
    (b"text_completion", "openai_completions"),
    (b'"candidates":', "gemini"),
    (b'"promptFeedback":', "gemini"),
    (b'"usageMetadata":', "gemini"),
    (b'"type":"message-start"', "cohere"),
    (b'"type":"content-', "cohere"),
    (b'"messageStart":{', "bedrock_converse"),
    (b":event-type\x07\x00\x05chunk", "bedrock_invoke"),
    (b":event-type", "bedrock_converse"),
    (b":exception-type", "bedrock_converse"),
    (b'"done":', "ollama"),
    (b'"choices":', "openai_chat"),
)
"""Patterns that show a dialect, the most specific first. Spaces after colons are removed before the search."""
CLIENT_MARKS: Final = (
    (b'"type":"RUN_STARTED"', "agui"),
    (b'"type":"TEXT_MESSAGE_', "agui"),
    (b'"type":"text-delta"', "vercel_ui"),
    (b'"type":"start-step"', "vercel_ui"),
)
"""Patterns of dialects that only clients read."""
CLIENT_DIALECTS: Final = frozenset(name for _, name in CLIENT_MARKS)

LOOKED_AT_BYTES: Final = 8192
"""Bytes at the beginning of a stream: longer than the first event of any dialect, and short enough to wait for."""


class EventReader(Protocol):
    """Reads bytes of any kind to events."""

    def feed(self, chunk: bytes, /) -> list[Event]: ...
    def close(self) -> list[Event]: ...


def open_reader(source: str) -> EventReader:
    """The reader for a dialect or for ``events``. If ``source`` is empty, the reader detects the dialect."""
    if not source:
        return RecognisingReader()
    return EventLineReader() if source == EVENTS else dialect(source).reader()


def recognise(line: bytes | bytearray) -> str:
    """The dialect of a stream that contains this line; empty if the line does not show it."""
    written = line.replace(b": ", b":")
    return next((name for mark, name in MARKS if mark in written), "")


class RecognisingReader:
    """Holds the first bytes until a whole line (or a whole binary frame) shows the dialect.

    It only examines whole lines, so the result does not depend on how the input is cut.
    """

    def __init__(self) -> None:
        self._reader: EventReader | None = None
        self._held = bytearray()
        self._looked = 0

    def feed(self, chunk: bytes) -> list[Event]:
        if self._reader is not None:
            return self._reader.feed(chunk)
        self._held += chunk
        name = ""
        while not name and (end := self._line_end()):
            name = recognise(self._held[self._looked : end])
            self._looked = end
        if not name and len(self._held) < LOOKED_AT_BYTES:
            return []
        return self._begin(name or recognise(self._held[self._looked : LOOKED_AT_BYTES]))

    def close(self) -> list[Event]:
        if self._reader is not None:
            return self._reader.close()
        events = self._begin(recognise(self._held[self._looked :]) if self._held.strip() else ANY)
        assert self._reader is not None
        return [*events, *self._reader.close()]

    def _line_end(self) -> int:
        """The end of the next line; 0 if the line is incomplete. A binary frame begins with its length."""
        if self._held[:1] == b"\0":
            size = int.from_bytes(self._held[:4], "big")
            return size if self._looked < size <= min(len(self._held), LOOKED_AT_BYTES) and len(self._held) >= 4 else 0
        return self._held.find(b"\n", self._looked, LOOKED_AT_BYTES) + 1

    def _begin(self, name: str) -> list[Event]:
        if not name:
            raise ConfigError(
                "the dialect of this stream cannot be recognised by its first bytes: name it (on the command line with --from)"
            )
        self._reader = open_reader(name)
        return self._reader.feed(bytes(self._held))


class EventLineReader:
    """Reads streamglot events, one JSON object per line."""

    def __init__(self) -> None:
        self._lines = Lines(DEFAULT_LIMITS)

    def feed(self, chunk: bytes) -> list[Event]:
        return self._events(self._lines.feed(chunk))

    def close(self) -> list[Event]:
        return self._events(self._lines.close())

    def _events(self, lines: list[bytes]) -> list[Event]:
        try:
            events = [decode(line) for line in lines if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"this is not a recording of events: {error}") from None
        if self._lines.error is not None:
            raise self._lines.error
        return events


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
