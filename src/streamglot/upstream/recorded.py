"""An upstream that needs no network: it replays recorded or scripted streams with their timing.

A recording is a file in the directory given as ``base_url`` (``file:…``), named after the model: ``NAME.EXT`` or ``NAME``. Its
dialect is the upstream's. A file ``NAME.EXT.times`` beside it may contain one ``SECONDS BYTES`` pair per line: when each piece
arrived. Without a directory or a matching file, the answer is a short scripted one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..dialects import dialect
from ..errors import RequestError, UpstreamError
from ..events import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, Usage
from .settings import Upstream

SCHEME = "file:"
DEFAULT_GAP = 0.02
"""Seconds between the pieces of a scripted answer: fast, but visible as a stream."""


class ReplayResponse:
    def __init__(self, pieces: list[tuple[float, bytes]], media_type: str, speed: float) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": media_type}
        self._pieces = pieces
        self._speed = speed
        self._next = 0
        self._clock = 0.0

    async def read(self) -> bytes:
        if self._next >= len(self._pieces):
            return b""
        when, piece = self._pieces[self._next]
        self._next += 1
        if self._speed > 0 and when > self._clock:
            await asyncio.sleep((when - self._clock) / self._speed)
        self._clock = max(when, self._clock)
        return piece

    async def drain(self) -> None:
        self.close()

    def close(self) -> None:
        self._next = len(self._pieces)


def open_replay(upstream: Upstream, model: str, message: str) -> ReplayResponse:
    """Opens a recording or a scripted answer. ``message`` is the client's message, which a scripted answer repeats."""
    speed = float(upstream.options.get("speed", 1.0))
    path = _recording(upstream, model)
    if path is None:
        return ReplayResponse(_scripted(upstream, model, message), dialect(upstream.dialect).media_type, speed)
    try:
        pieces = _recorded(path)
    except (OSError, ValueError) as error:
        raise UpstreamError(f"the recording {path.name!r} cannot be read: {error}; record it again", retryable=False) from None
    return ReplayResponse(pieces, dialect(upstream.dialect).media_type, speed)


def recordings(upstream: Upstream) -> list[str]:
    folder = _folder(upstream)
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".times") if folder else []


def _folder(upstream: Upstream) -> Path | None:
    if not upstream.base_url.startswith(SCHEME):
        return None
    folder = Path(upstream.base_url.removeprefix(SCHEME)).expanduser()
    return folder if folder.is_dir() else None


def _recording(upstream: Upstream, model: str) -> Path | None:
    folder = _folder(upstream)
    if folder is None:
        return None
    if "/" in model or "\\" in model or model.startswith("."):
        raise RequestError(f"a recording must be named by its file name without directories, not {model!r}")
    exact = folder / model
    with suppress(OSError):  # the name may be too long for a file
        if exact.is_file():
            return exact
    return next((path for path in sorted(folder.glob("*")) if path.stem == model and path.suffix != ".times"), None)


def _recorded(path: Path) -> list[tuple[float, bytes]]:
    body = path.read_bytes()
    times = path.with_name(path.name + ".times")
    if not times.is_file():
        return [(0.0, body)] if body else []
    pieces, position = [], 0
    for line in times.read_text().splitlines():
        when, size = line.split()
        pieces.append((float(when), body[position : position + int(size)]))
        position += int(size)
    if position < len(body):
        pieces.append((pieces[-1][0] if pieces else 0.0, body[position:]))
    return pieces


def _scripted(upstream: Upstream, model: str, message: str) -> list[tuple[float, bytes]]:
    """An answer written in the upstream's own dialect, so that its reader is exercised."""
    words = f"You said: {message}" if message else "Nothing was said."
    events: list[list[Event]] = [[StreamStart("replay", model, 1), TextStart()]]
    events += [[TextDelta(word)] for word in _pieces(words)]
    count = len(message.split())
    events.append([TextEnd(), Usage(count, count + 2), StreamEnd("end", "stop")])
    box = dialect(upstream.dialect).writer(include_usage=True)
    pieces = [(number * DEFAULT_GAP, box.feed(some)) for number, some in enumerate(events)]
    return [(when, piece) for when, piece in [*pieces, (pieces[-1][0], box.close())] if piece]


def _pieces(words: str) -> list[str]:
    return [word if number == 0 else f" {word}" for number, word in enumerate(words.split(" "))]
