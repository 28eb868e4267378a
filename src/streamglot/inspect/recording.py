"""Recordings: pieces of a stream with their times and directions, as lines of JSON or as bare bytes."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from ..errors import RequestError, excerpt
from ..events import BareEvent, Event, TextDelta
from ..inband import FORMATS, Format, format_for_model, parse_text
from ..json_types import JsonObject
from ..messages import Response
from ..stages.replay import replay
from .detection import CLIENT_MARKS, reader_of, recognise
from .detection import EVENTS as EVENT_LINES
from .frames import cutter_for
from .inspection import ASKED, CLIENT_REQUEST, DOWN, EVENTS, UP
from .rows import Attempt

DETECT_BYTES: Final = 2**18
"""Bytes of a stream that are read to find its in-band notation: the first call or thinking is near the beginning."""
DETECT_CHARS: Final = 32_768
"""Characters of that text on which each notation is tried."""
FRAME_SECONDS: Final = 0.001
"""Seconds per frame in a recording without times, so that the time axis counts frames."""
MAX_PIECES: Final = 1_000_000
"""Lines of a recording: more reads than the longest answer has tokens."""
MAX_SECONDS: Final = 7 * 86_400.0
"""Seconds of a recording: a week."""
NOTHING_FOUND: Final = (0, -(2**31), 0)
"""The score of a notation that finds nothing."""
_LOOKED_AT: Final = 65_536
"""Bytes that are searched for patterns of a dialect."""


class RecordedPiece(NamedTuple):
    at: float
    direction: str
    data: bytes


class _Line(msgspec.Struct):
    direction: str
    at: float = 0.0
    text: str | None = None
    base64: str | None = None


_lines = msgspec.json.Decoder(_Line)


class PastedSource(msgspec.Struct):
    """The bytes that the user pasted or dropped.

    ``timed``: its pieces have the times at which they came. ``client`` is the dialect of its client bytes; empty if it has none.
    """

    pieces: list[RecordedPiece]
    dialect: str
    inband: str
    starts: bool
    timed: bool
    has_events: bool = False
    client: str = ""


def read_source(body: bytes, dialect: str = "", inband: str = "") -> PastedSource:
    """Reads what the user pasted: a recording as lines of JSON, streamglot events, or the bytes of a stream.

    Detects what is not named.
    """
    if not body.strip():
        raise RequestError("there is nothing to look at: paste a stream, or drop a recording")
    pieces = _recorded(body)
    if pieces is None:
        name = dialect or detect(body)
        cut = cutter_for(name, body.lstrip()[:1])
        frames = [*cut.feed(body), *cut.close()]
        pieces = [RecordedPiece(number * FRAME_SECONDS, UP, frame) for number, frame in enumerate(frames)]
        notation, starts = (inband, False) if inband else detect_inband(body, name)
        return PastedSource(pieces, name, notation, starts, timed=False)
    received = b"".join(piece.data for piece in pieces if piece.direction == UP)
    attempt = next((found for piece in pieces if piece.direction.startswith(ASKED) and (found := attempt_of(piece))), None)
    written = b"".join(piece.data for piece in pieces if piece.direction == DOWN)
    has_events = any(piece.direction == EVENTS for piece in pieces)
    name = dialect or (attempt.dialect if attempt is not None else "") or (detect(received) if received else EVENT_LINES)
    notation, starts = inband or (attempt.inband if attempt is not None else ""), False
    if not notation and attempt is None:
        notation, starts = detect_inband(received, name)
    return PastedSource(pieces, name, notation, starts, True, has_events, _detected(written) if written else "")


def attempt_of(piece: RecordedPiece) -> Attempt | None:
    """The attempt that a recorded request to an upstream began; None for any other piece."""
    try:
        entry = msgspec.json.decode(piece.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not piece.direction.startswith(ASKED) or not isinstance(entry, dict):
        return None
    digits = piece.direction.removeprefix(ASKED)
    number = int(digits) if digits.isdecimal() and len(digits) < 6 else 1
    dialect, upstream, model, inband = (str(entry.get(name) or "") for name in ("dialect", "upstream", "model", "inband"))
    return Attempt(number, piece.at, dialect, upstream, model, inband)


def _recorded(body: bytes) -> list[RecordedPiece] | None:
    """The pieces of a recording as lines of JSON; None if the body is not one."""
    first = body.lstrip().split(b"\n", 1)[0]
    if not (first.startswith(b"{") and b'"direction"' in first):
        return None
    pieces: list[RecordedPiece] = []
    for number, line in enumerate(body.split(b"\n")):
        if not line.strip():
            continue
        if number >= MAX_PIECES:
            raise RequestError(f"a recording has at most {MAX_PIECES} lines; send a part of it")
        try:
            entry = _lines.decode(line)
            data = base64.b64decode(entry.base64, validate=True) if entry.base64 is not None else (entry.text or "").encode()
        except (msgspec.MsgspecError, binascii.Error, UnicodeError, RecursionError):
            raise RequestError(
                f"line {number + 1} of this recording cannot be read: {excerpt(line)}; it needs at, direction, and text or base64"
            ) from None
        if not 0.0 <= entry.at <= MAX_SECONDS or not math.isfinite(entry.at):
            raise RequestError(
                f"line {number + 1} of this recording came after {entry.at} s; at is between 0 and {MAX_SECONDS:.0f}"
            )
        pieces.append(RecordedPiece(entry.at, entry.direction[:16], data))
    return pieces


def recording_lines(pieces: Iterable[RecordedPiece]) -> Iterator[bytes]:
    """A recording as lines of JSON, which ``read_source`` can read."""
    for piece in pieces:
        entry: JsonObject = {"at": piece.at, "direction": piece.direction}
        try:
            entry["text"] = piece.data.decode()
        except UnicodeDecodeError:
            entry["base64"] = base64.b64encode(piece.data).decode()
        yield msgspec.json.encode(entry) + b"\n"


# --- detection


def detect(body: bytes) -> str:
    """The dialect of these bytes."""
    name = _detected(body)
    if not name:
        raise RequestError(
            f"the dialect of this stream cannot be recognised: it begins with {excerpt(body[:200])}; choose it in the list, "
            "or name it with ?from=",
            code="unknown_dialect",
        )
    return name


def _detected(body: bytes) -> str:
    looked = body[:_LOOKED_AT]
    for line in looked.split(b"\n"):
        name = recognise(line) or next((found for mark, found in CLIENT_MARKS if mark in line.replace(b": ", b":")), "")
        if name:
            return name
    return ""


def detect_inband(body: bytes, dialect: str) -> tuple[str, bool]:
    """The notation of calls and thinking in a model's text, and whether the text begins inside the thinking.

    The notation is "none" if the text has none.
    """
    try:
        reader = reader_of(dialect)
        assert reader is not None
        events = reader.feed(body[:DETECT_BYTES])
        if len(body) <= DETECT_BYTES:
            events += reader.close()
    except Exception:  # bytes that cannot be read have no text
        return "none", False
    known = next(
        (found for event in events if (model := getattr(event, "model", "")) and (found := format_for_model(model))), None
    )
    text = "".join(event.text for event in events if isinstance(event, TextDelta))[:DETECT_CHARS]
    name = notation_of(text, known)
    return name, begins_in_thinking(text, FORMATS[name])


def notation_of(text: str, known: Format | None = None) -> str:
    """The notation that finds the most in a text: calls first, then thinking.

    ``known`` is the notation of the model's name. It wins a tie.
    """
    if not text.strip():
        return "none"
    best, name = NOTHING_FOUND, "none"
    for row in ([known] if known is not None else []) + list(FORMATS.usable()):
        if row.untouched or not _may_be(row, text):
            continue
        score = _score(parse_text(text, row, starts_in_reasoning=begins_in_thinking(text, row), bad_call="text"))
        if score > best:
            best, name = score, row.name
    return name


def begins_in_thinking(text: str, row: Format) -> bool:
    """Whether the text begins inside the thinking: it has the closing tag, and the prompt had the opening one."""
    closed = min((place for tag in row.think.closers if (place := text.find(tag)) >= 0), default=-1)
    return closed >= 0 and not any(0 <= text.find(tag) < closed for tag in row.think.openers)


def _may_be(row: Format, text: str) -> bool:
    """Whether one of the format's markers is in the text.

    A marker that also occurs in prose only counts at the beginning.
    """
    beginning = text.lstrip()[:64]
    for engine in row.engines:
        if any(marker in text if not engine.weak else beginning.startswith(marker) for marker in engine.openers if marker):
            return True
        if any(marker and beginning.startswith(marker) for marker in engine.start_openers):
            return True
    return any(marker in text for marker in (*row.think.openers, *row.think.closers))


def _score(events: list[BareEvent]) -> tuple[int, int, int]:
    """The number of whole calls, less text (remaining text was not understood), and the thinking."""
    calls = sum(1 for event in events if type(event).__name__ == "ToolCallEnd" and getattr(event, "complete", False))
    broken = sum(1 for event in events if type(event).__name__ == "ToolCallEnd" and not getattr(event, "complete", True))
    thought = sum(1 for event in events if type(event).__name__ == "ReasoningEnd")
    left = sum(len(event.text) for event in events if isinstance(event, TextDelta))
    return (calls - 2 * broken, -left, thought) if calls or thought else NOTHING_FOUND


# --- turns without a recording


def pieces_of_response(response: Response, timings: JsonObject) -> list[RecordedPiece]:
    """The events of a stored answer as pieces.

    Starts and ends of blocks have their recorded times. Events between them have the time of their block's end.
    """
    events = replay(response)
    marks = [(at + timings.get("offset", 0.0), name) for at, name in timings.get("blocks", ())]
    end = timings.get("seconds", 0.0) + timings.get("offset", 0.0)
    now = max(0.0, timings.get("first_event", 0.0) + timings.get("offset", 0.0))
    pieces, place = [], 0
    for event in events:
        found = _mark_of(event, marks, place)
        if found is not None:
            place, now = found + 1, max(now, marks[found][0])
        elif not marks:
            now = end
        pieces.append(RecordedPiece(now, EVENTS, msgspec.json.encode(event)))
    return pieces


def _mark_of(event: Event, marks: list[tuple[float, str]], place: int) -> int | None:
    return place if place < len(marks) and marks[place][1] == type(event).__name__ else None


__all__ = [
    "ASKED",
    "CLIENT_REQUEST",
    "DOWN",
    "EVENTS",
    "UP",
    "PastedSource",
    "RecordedPiece",
    "attempt_of",
    "pieces_of_response",
    "read_source",
]
