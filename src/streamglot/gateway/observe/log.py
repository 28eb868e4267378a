"""The log: lines of JSON on standard error. Lines of one moment share one write."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from ...json_types import JsonValue

BATCH_SECONDS: Final = 0.02
"""Seconds that a line may wait for others: too short to notice, and long enough for a hundred lines under load."""
REPR_CHARS: Final = 2000
"""Characters of the ``repr`` of a line that JSON cannot express."""

_encode = msgspec.json.Encoder().encode


class Log:
    """Writes each line at once if no event loop runs, and after ``close``.

    It never raises, because an unwritable log must not end the work that it reports on. The next line that can be written counts
    those that were lost.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._due: asyncio.TimerHandle | None = None
        self._closed = False
        self._lost = 0

    def __call__(self, line: Mapping[str, JsonValue]) -> None:
        self._lines.append(_encoded(line))
        if self._due is not None:
            return
        try:
            loop = None if self._closed else asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            self._write()
        else:
            self._due = loop.call_later(BATCH_SECONDS, self._write)

    def close(self) -> None:
        self._closed = True
        if self._due is not None:
            self._due.cancel()
            self._write()

    def _write(self) -> None:
        lines, self._lines, self._due = self._lines, [], None
        lost = [_encode({"event": "log_lost", "lines": self._lost})] if self._lost else []
        try:
            sys.stderr.write(b"\n".join([*lost, *lines, b""]).decode())
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk, a broken pipe, a closed file
            self._lost += len(lines)
        else:
            self._lost = 0


def _encoded(line: Mapping[str, JsonValue]) -> bytes:
    try:
        return _encode(line)
    except (TypeError, ValueError, RecursionError):
        return _encode({"event": "log_fault", "line": ascii(dict(line))[:REPR_CHARS]})
