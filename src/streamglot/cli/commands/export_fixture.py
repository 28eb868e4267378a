"""``streamglot logs export TURN --as-test``: writes a stored stream as a recording with the events that a reader must give.

The layout is that of the test corpus: a folder for each dialect, ``NAME.EXT`` with the bytes and ``NAME.events.jsonl`` beside it.
Binary frames are written as readable lines, ``{"event name": payload}``; the name of an exception begins with ``!``.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import msgspec

from ...dialects import dialect
from ...errors import ConfigError, RequestError
from ...events import Event, encode
from ...framing.aws_eventstream import AwsEventStream, frame
from ...json_types import JSON_ERRORS, JsonObject
from ..store_view import StoreView, reading

EVENTS: Final = ".events.jsonl"
SUFFIXES: Final = {"text/event-stream": ".sse", "application/x-ndjson": ".ndjson"}
BINARY: Final = "application/vnd.amazon.eventstream"


def run(turn: str, directory: Path) -> int:
    async def work(view: StoreView) -> tuple[str, str, bytes]:
        turn_id = await view.turn_id(turn)
        found = await view.queries.turn(turn_id)
        assert found is not None
        received = [piece for piece in await view.queries.raw(turn_id) if piece.direction.startswith("up")]
        frames = [piece for piece in received if piece.direction == received[-1].direction]  # of the last attempt
        if not frames:
            raise RequestError(
                f"the bytes of the turn {turn_id} were not stored: set `raw = true` under [store] (or "
                "STREAMGLOT_STORE__RAW=true), ask again, and export that turn"
            )
        return turn_id, found.dialects["upstream"], b"".join(piece.data for piece in frames)

    name, wire, body = reading(work)
    events = _events(wire, body)
    suffix, kept = _readable(wire, body, events)
    folder = directory / wire
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}{suffix}").write_bytes(kept)
        (folder / f"{name}{EVENTS}").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    except OSError as error:
        raise ConfigError(f"the recording cannot be written to {folder}: {error.strerror or error}") from None
    print(folder / f"{name}{suffix}")
    print(folder / f"{name}{EVENTS}")
    return 0


def _events(wire: str, body: bytes) -> list[Event]:
    box = dialect(wire).reader()
    return box.feed(body) + box.close()


def _readable(wire: str, body: bytes, events: list[Event]) -> tuple[str, bytes]:
    """Returns the suffix and the content of the recording. Binary frames that lines cannot express stay binary."""
    media_type = dialect(wire).media_type
    if media_type == BINARY:
        lines = _lines(body)
        framed = b"".join(map(_frame, lines))
        same = [encode(event) for event in _events(wire, framed)] == [encode(event) for event in events]
        return (".frames", b"".join(msgspec.json.encode(line) + b"\n" for line in lines)) if same else (".bin", body)
    plain = media_type == "text/event-stream" and body.lstrip()[:1] in (b"{", b"[")
    return ".json" if plain else SUFFIXES[media_type], body


def _lines(body: bytes) -> list[JsonObject]:
    lines = []
    for found in AwsEventStream().feed(body):
        try:
            payload = msgspec.json.decode(found.data or b"{}")
            if found.event == "chunk":
                payload = msgspec.json.decode(base64.b64decode(payload["bytes"]))
        except (*JSON_ERRORS, KeyError, TypeError):
            return []
        lines.append({f"{'!' if found.kind == 'exception' else ''}{found.event}": payload})
    return lines


def _frame(line: JsonObject) -> bytes:
    """Returns the frame that a reader of the recording builds from the line."""
    ((name, payload),) = line.items()
    body = msgspec.json.encode(payload)
    if name == "chunk":
        body = msgspec.json.encode({"bytes": base64.b64encode(body).decode()})
    kind = ("exception", name[1:]) if name.startswith("!") else ("event", name)
    return frame(body, {f":{kind[0]}-type": kind[1], ":content-type": "application/json", ":message-type": kind[0]})
