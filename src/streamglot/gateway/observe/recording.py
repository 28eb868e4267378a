"""What is recorded of exchanges: the store, the questions to people, and the observers of every exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...config import LoadedConfig
from ...engine.content_log import ContentLog
from ...engine.observer import Observer
from ..approvals import SharedApprovals
from ..auth.budgets import Reservation
from ..sealing import Sealer, sealer_for
from ..services import GatewayServices
from .live import Live, LiveObserver
from .log import AccessLog, ContentLogger, MetricsObserver, UsageMeter
from .metrics import Metrics
from .tracing import Tracing

if TYPE_CHECKING:
    from ...store import Store
    from ..recording import TurnRecorders


class Recording:
    """``store`` and ``recorders`` are None without a store, and until it is open. ``sealer`` encrypts state on its way to clients."""

    def __init__(self, services: GatewayServices, live: Live, environment: Mapping[str, str]) -> None:
        self.store: Store | None = None
        self.recorders: TurnRecorders | None = None
        self.sealer: Sealer | None = None
        self.tracing: Tracing | None = None
        self.live = live
        self.metrics = Metrics()
        self.approvals = SharedApprovals(services.pool, live, lambda: self.store, services.log)
        self._services = services
        self._environment = environment
        self._observers: list[Observer] = []
        services.pool.approval_sharing = self.approvals

    def prepare(self, loaded: LoadedConfig) -> Callable[[], None]:
        """Refuses a bad configuration, and returns the step that applies a good one. The step takes the observers of the pool."""
        server, log, pool = loaded.config.server, self._services.log, self._services.pool
        tracing = (self.tracing or Tracing(self._environment, log)) if server.telemetry else None
        content_log = ContentLog(server.redact, pool.secrets) if server.log_content else None
        sealer = sealer_for(server.reasoning_key, self._environment)

        def apply() -> None:
            self.tracing = pool.tracer = tracing
            self.sealer = sealer
            self._observers = [LiveObserver(self.live), *pool.observers, MetricsObserver(self.metrics)]
            if content_log is not None:
                self._observers.append(ContentLogger(content_log, log))
            if server.log:
                self._observers.append(AccessLog(log))

        return apply

    def observers_for(self, recorder: Observer | None, reservation: Reservation | None, span: Observer | None) -> list[Observer]:
        """The observers of one exchange. Usage is settled before the turn is recorded."""
        if recorder is None and reservation is None and span is None:
            return self._observers
        own: list[Observer] = [] if reservation is None else [UsageMeter(reservation)]
        own += [observer for observer in (recorder, span) if observer is not None]
        return [*own, *self._observers]

    def store_state(self) -> str:
        """``ok``, ``failing`` or ``off``. A failing store is reported and does not stop requests."""
        if self.store is None:
            return "off"
        report = self.store.report()
        self.metrics.note_store(report)
        return "failing" if report.failing else "ok"
