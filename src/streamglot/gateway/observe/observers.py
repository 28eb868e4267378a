"""The gateway's observers of exchanges: access log, content log, metrics, and the usage of a key."""

from __future__ import annotations

import time

from ...engine.content_log import ContentLog
from ...engine.observer import ExchangeResult, Observer
from ...engine.services import MODEL_CALLS
from ...tasks import WriteLine
from ..auth.budgets import Reservation
from .metrics import Metrics, trace_id_of


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
