"""One stream as linked rows: upstream frames, our events, client frames.

Theory of operation. Pieces of a recording are fed in the order in which they were recorded, each with its direction and time. An
upstream's bytes are cut into frames and read again by the reader of their dialect. Readers do not depend on how the bytes are
split, so feeding them frame by frame gives the events of each frame. This links an event to its frame.

A recording may also have the events as they left the last stage. These are then the rows, and the reader's events are only
compared with them, in order. An event that a stage dropped is noted as removed, and an event that no frame gave (a tool's result,
a rewritten text) has no frame. A writer that is fed event by event links the client's frames: it shows how many frames each event
makes. If a recording has no client bytes, or another dialect is wanted, the writer's own frames are the rows.

Rows leave in pages, so that the first are shown while the rest is still being read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from ..dialects import DIALECTS, dialect
from ..dialects.common.writer import Rules, Writer
from ..errors import RequestError, StreamglotError
from ..events import Choice, Event, StreamError, StreamStart, ToolCallStart, decode, encode
from ..inband import FORMATS
from ..json_types import JsonObject
from .detection import EventReader, InBandReader, reader_of
from .frames import Cutter, cutter_for, readable, shown
from .rows import Attempt, Gap, Rows
from .waterfall import Bars

UP: Final = "up"
ASKED: Final = "ask"
CLIENT_REQUEST: Final = "request"
EVENTS: Final = "events"
DOWN: Final = "down"
"""Directions of pieces: an upstream's bytes, a request as an upstream got it, the client's request, the events, the client's
bytes. A number after "up" and "ask" is the attempt."""
LOST: Final = 1
FOLDED: Final = 2
OWN: Final = 4
"""Flags of an event: the client's dialect cannot express it; the dialect expresses it in another form; no upstream frame produced
it."""
LOOK_AHEAD: Final = 64
"""Events of the reader that are searched for the one that left: more than a stage drops in one piece."""
MAX_REMOVED: Final = 500
"""Dropped events that are listed; further ones are only counted."""
MAX_GAPS: Final = 12
"""Silences that are marked: the longest ones."""
GAP_SECONDS: Final = 0.1
"""Seconds. A person does not notice a shorter silence."""


class Inspection:
    """``upstream`` and ``client`` are dialects.

    ``has_events``: the recording has events. ``has_client``: its client bytes are in the wanted dialect. ``inband`` is the
    notation to look for in an upstream's text if its request does not name one. ``starts`` says whether that text begins inside
    the thinking.
    """

    def __init__(
        self,
        upstream: str,
        client: str = "",
        *,
        inband: str = "",
        starts: bool = False,
        has_events: bool = False,
        has_client: bool = False,
    ) -> None:
        self.upstream, self.events, self.client = Rows(), Rows(), Rows()
        self.bars = Bars()
        self.attempts: list[Attempt] = []
        self.gaps: list[Gap] = []
        self.removed: list[JsonObject] = []
        self.dropped_events = 0
        self.lost: Counter[str] = Counter()
        self.folded: Counter[str] = Counter()
        self.how_folded: dict[str, str] = {}
        """The form in which the client's dialect writes an event that it cannot express directly."""
        self.first_event = self.first_client = -1.0
        self.seconds = 0.0
        self.bytes_up = self.bytes_down = 0
        self._dialect = upstream
        self._client = client
        self._inband = inband
        self._starts = starts
        self._has_events = has_events
        self._has_client = has_client
        self._cutter: Cutter | None = None
        self._reader: EventReader | None = None
        self._pending: deque[tuple[Event, int]] = deque()
        self._writer = _writer(client)
        self._shadow: Cutter | None = None
        self._down: Cutter | None = None
        self._moment: list[tuple[int, int]] = []
        self._last_up = -1.0
        self._ended = False
        self._removed_before = 0

    # --- pieces

    def feed(self, direction: str, at: float, data: bytes, attempt: Attempt | None = None) -> None:
        """Feeds one piece of the recording. ``attempt`` is the parsed request, for a request to an upstream."""
        self.seconds = max(self.seconds, at)
        if direction == EVENTS:
            self._recorded_events(at, data)
        elif direction == DOWN:
            self._written(at, data)
        elif attempt is not None:
            self._begin(attempt)
        elif direction.startswith(UP):
            self._received(_number(direction), at, data)

    def close(self) -> None:
        """Ends the recording."""
        if self._ended:
            return
        self._ended = True
        self._end_attempt(self.seconds)
        if self._down is not None:
            self._client_frames(self.seconds, self._down.close())
        if not self._has_client and self._writer is not None and self.events.next:
            self._write_rows(self.seconds, self._written_by(self._writer.close), self.events.next - 1)
        for _event, row in self._pending:
            self._remove(_event, row)
        self._pending.clear()

    # --- upstream frames

    def _begin(self, attempt: Attempt) -> None:
        self._end_attempt(attempt.at)
        self.attempts.append(attempt)
        self._cutter = self._reader = None
        self._last_up = -1.0

    def _received(self, number: int, at: float, data: bytes) -> None:
        if not self.attempts or (self.attempts[-1].number != number):
            self._begin(Attempt(number, at, self._dialect, inband=self._inband, starts=self._starts))
        attempt = self.attempts[-1]
        if attempt.first_byte < 0:
            attempt.first_byte = at
        elif at - self._last_up >= GAP_SECONDS:
            self._note_gap(self._last_up, at)
        self._last_up = attempt.last_byte = at
        attempt.bytes += len(data)
        self.bytes_up += len(data)
        if self._cutter is None:
            self._cutter = cutter_for(attempt.dialect, data.lstrip()[:1])
            self._reader = _reader(attempt)
        for frame in self._cutter.feed(data):
            self._frame(at, frame)

    def _frame(self, at: float, frame: bytes) -> None:
        row = self.upstream.next
        self.attempts[-1].frames += 1
        self.upstream.add(at, -1, self.attempts[-1].number, readable(frame))
        if self._reader is not None:
            self._read(_events(self._reader, frame), at, row)

    def _end_attempt(self, at: float) -> None:
        if self._cutter is not None:
            for frame in self._cutter.close():
                self._frame(at, frame)
        if self._reader is not None:
            self._read(_events(self._reader, None), at, self.upstream.next - 1)
        self._cutter = self._reader = None

    def _read(self, events: list[Event], at: float, row: int) -> None:
        if self._has_events:
            self._pending += [(event, row) for event in events]
            return
        for event in events:
            self._event(at, event, encode(event), row, 0)

    def _note_gap(self, begin: float, end: float) -> None:
        self.gaps.append(Gap(begin, end))
        self.gaps.sort(key=lambda gap: gap.begin - gap.end)
        del self.gaps[MAX_GAPS:]

    # --- events

    def _recorded_events(self, at: float, data: bytes) -> None:
        self._has_events = True
        for line in data.split(b"\n"):
            if line:
                try:
                    event = decode(line)
                except (ValueError, RecursionError) as error:  # a recording that was pasted may have anything in it
                    event = RequestError(f"this line of the recording is not an event: {error}").as_event()
                    line = encode(event)
                row, own = self._origin(event)
                self._event(at, event, line, row, OWN if own and self.attempts else 0)

    def _origin(self, event: Event) -> tuple[int, bool]:
        """The frame that produced this event, and whether the event is the gateway's own.

        Earlier events of the reader did not leave. An event of the gateway replaces the reader's next event of the same type.
        """
        for place, (read, row) in enumerate(self._pending):
            if place >= LOOK_AHEAD:
                break
            if _same(read, event):
                for _ in range(place):
                    self._remove(*self._pending.popleft())
                self._pending.popleft()
                return row, False
        replaced = bool(self._pending) and type(self._pending[0][0]) is type(event)
        return (self._pending[0][1] if replaced else -1), True

    def _remove(self, event: Event, row: int) -> None:
        self.dropped_events += 1
        if len(self.removed) < MAX_REMOVED:
            self.removed.append({"frame": row, "event": self.events.next, "text": shown(encode(event).decode())})

    def _event(self, at: float, event: Event, line: bytes, row: int, flags: int) -> None:
        number = self.events.next
        if self.first_event < 0:
            self.first_event = at
        self.bars.feed(event, at, number)
        if self._writer is None:
            self.events.add(at, row, flags, _shown_line(line))
            return
        lost = self._writer.lost.total()
        written = self._written_by(lambda: self._writer.feed([event]) if self._writer is not None else b"")
        name = type(event.event if isinstance(event, Choice) else event).__name__
        if self._writer.lost.total() > lost:
            flags |= LOST
            self.lost[name] += 1
        elif name in self._writer.folded and b"," in line:  # an event without fields has nothing to fold
            flags |= FOLDED
            self.folded[name] += 1
            self.how_folded[name] = self._writer.folded[name]
        self.events.add(at, row, flags, _shown_line(line))
        if self._has_client:
            self._moment.append((number, len(written)))
        else:
            self._write_rows(at, written, number)

    # --- client frames

    def _written_by(self, write: Callable[[], bytes]) -> list[bytes]:
        """The frames that this call makes the writer write.

        If the writer fails, there are no client frames from here on.
        """
        try:
            data: bytes = write()
        except StreamglotError:
            self._writer = _Silent()
            return []
        if self._shadow is None:
            if not data:
                return []
            self._shadow = cutter_for(self._client, data.lstrip()[:1])
        return self._shadow.feed(data)

    def _write_rows(self, at: float, frames: list[bytes], event: int) -> None:
        if self._ended and self._shadow is not None:
            frames += self._shadow.close()
        for frame in frames:
            self._client_row(at, event, frame)

    def _written(self, at: float, data: bytes) -> None:
        if not self._has_client or not data:
            return
        if self._down is None:
            self._down = cutter_for(self._client, data.lstrip()[:1])
        self._client_frames(at, self._down.feed(data))

    def _client_frames(self, at: float, frames: list[bytes]) -> None:
        """Adds the frames of one write, linked in their order to the events since the previous write.

        The request may ask for more or fewer frames than our writer writes, such as the usage at the end of a chat. These are
        the last frames of a write, so the frames before them still belong to their events.
        """
        expected = [number for number, count in self._moment for _ in range(count)]
        last = self._moment[-1][0] if self._moment else -1
        self._moment.clear()
        for place, frame in enumerate(frames):
            self._client_row(at, expected[place] if place < len(expected) else last, frame)

    def _client_row(self, at: float, event: int, frame: bytes) -> None:
        if self.first_client < 0:
            self.first_client = at
        self.bytes_down += len(frame)
        self.client.add(at, event, len(frame), readable(frame))

    # --- pages

    def page(self) -> JsonObject:
        """The rows and dropped events since the last page, and the current state of the whole."""
        removed, self._removed_before = self.removed[self._removed_before :], len(self.removed)
        return {
            "upstream": self.upstream.taken(),
            "events": self.events.taken(),
            "client": self.client.taken(),
            "waterfall": self.bars.taken(),
            "attempts": self.attempts,
            "gaps": self.gaps,
            "removed": removed,
            "dropped_events": self.dropped_events,
            "lost": self.lost,
            "folded": self.folded,
            "how_folded": self.how_folded,
            "first_byte": next((attempt.first_byte for attempt in self.attempts if attempt.first_byte >= 0), -1.0),
            "first_event": self.first_event,
            "first_client": self.first_client,
            "seconds": self.seconds,
            "bytes": {"upstream": self.bytes_up, "client": self.bytes_down},
        }


class _Silent(Writer):
    """Replaces a writer that refused the events."""

    dialect = ""

    def feed(self, events: object) -> bytes:  # noqa: ARG002  # they are not written
        return b""

    def close(self) -> bytes:
        return b""

    def rules(self) -> Rules:
        return {}


def _writer(client: str) -> Writer | None:
    known = DIALECTS.get(client)
    return dialect(client).writer() if known is not None and known.has_writer else None


def _reader(attempt: Attempt) -> EventReader | None:
    reader = reader_of(attempt.dialect, attempt.upstream)
    if reader is not None and attempt.inband in FORMATS and attempt.inband != "none":
        return InBandReader(reader, attempt.inband, starts=attempt.starts)
    return reader


def _events(reader: EventReader, frame: bytes | None) -> list[Event]:
    """The events of a frame, or those at the end. Lines that are not events are an error of the recording."""
    try:
        return reader.close() if frame is None else reader.feed(frame)
    except StreamglotError as error:
        return [error.as_event()]


def _number(direction: str) -> int:
    digits = direction.removeprefix(UP).removeprefix(ASKED)
    return int(digits) if digits.isdecimal() and len(digits) < 6 else 1


def _same(read: Event, left: Event) -> bool:
    """Whether this event left as it was read. Ids of calls and answers, and error messages, may differ."""
    kind = type(read)
    if kind is not type(left):
        return False
    if isinstance(read, ToolCallStart) and isinstance(left, ToolCallStart):
        return read.name == left.name
    return kind is StreamStart or kind is StreamError or read == left


def _shown_line(line: bytes) -> str:
    return shown(line.decode("utf-8", "replace"), len(line))
