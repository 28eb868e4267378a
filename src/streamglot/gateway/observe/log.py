"""The log (lines of JSON on standard error; lines of one moment share one write), and the gateway's observers of exchanges:
access log, content log, metrics, and the usage of a key.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from ...engine.content_log import ContentLog
from ...engine.observer import ExchangeResult, Observer
from ...engine.services import MODEL_CALLS
from ...json_types import JsonValue
from ...tasks import WriteLine
from ..auth.budgets import Reservation
from .metrics import Metrics, trace_id_of

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


class AccessLog(Observer):
    """One line for each exchange."""

    def __init__(self, log: WriteLine) -> None:
        self._log = log

    def finished(self, result: ExchangeResult) -> None:
        self._log(result.record.line(result.record.began + result.seconds, time.time()))


class ContentLogger(Observer):
    """Logs requests and answers, if the configuration enables it."""

    wants_response = True

    def __init__(self, content: ContentLog, log: WriteLine) -> None:
        self._content = content
        self._log = log

    def finished(self, result: ExchangeResult) -> None:
        if result.response is not None and result.record.reads:
            self._log(self._content.line(result.record.request_id, result.request, result.response))


class MetricsObserver(Observer):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def finished(self, result: ExchangeResult) -> None:
        self._metrics.note(result.record, trace_id_of(result.context.trace), time.time())
        for call in result.context.annotations.get(MODEL_CALLS, ()):
            self._metrics.note_call(call)


class UsageMeter(Observer):
    """Settles the reservation of an exchange. It must come before the turn recorder, which reports when the usage is stored."""

    wants_usage = True

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation

    def finished(self, result: ExchangeResult) -> None:
        record = result.record
        usage = None if record.cached else record.estimated or record.usage
        calls = result.context.annotations.get(MODEL_CALLS, [])
        result.stored = self._reservation.settle(usage, record.began + result.seconds, calls)
