"""The log: lines of JSON on standard error, those of one moment in one write."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

MOMENT_SECONDS: Final = 0.02
"""How long a line may wait for others: too short to be noticed, long enough for a hundred of them under load."""

_encode = msgspec.json.Encoder().encode


class Log:
    """Where no loop runs, and after ``close``, each line is written at once."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._due: asyncio.TimerHandle | None = None
        self._closed = False

    def __call__(self, line: Mapping[str, Any]) -> None:
        self._lines.append(_encode(line))
        if self._due is not None:
            return
        try:
            loop = None if self._closed else asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            self._write()
        else:
            self._due = loop.call_later(MOMENT_SECONDS, self._write)

    def close(self) -> None:
        self._closed = True
        if self._due is not None:
            self._due.cancel()
            self._write()

    def _write(self) -> None:
        lines, self._lines, self._due = self._lines, [], None
        sys.stderr.write(b"\n".join([*lines, b""]).decode())
        sys.stderr.flush()
