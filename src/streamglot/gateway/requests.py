"""The requests that run in this process: they get the clock's ticks, and the signal to shut down."""

from __future__ import annotations

from typing import Protocol

from ..engine.stats import ExchangeRecord
from ..errors import StreamglotError
from .auth.authenticator import Caller
from .observe.live import Live
from .services import GatewayServices

LIVE_SECONDS = 0.5
"""Seconds after a live request during which the gateway still counts as serving live traffic."""


class RunningRequest(Protocol):
    """One request that is being answered."""

    record: ExchangeRecord

    async def run(self) -> None:
        """Answers it."""

    def tick(self, now: float) -> None:
        """Checks its deadlines."""

    def stop(self) -> None:
        """Ends its answer as cancelled."""

    def interrupt(self, error: StreamglotError) -> None:
        """Ends its answer with an error."""


class RunningRequests:
    """``stopping``: the gateway accepts no new requests."""

    def __init__(self, services: GatewayServices, live: Live) -> None:
        self.running: set[RunningRequest] = set()
        self.stopping = False
        self._services = services
        self._live = live
        self._last = -LIVE_SECONDS

    async def serve(self, request: RunningRequest) -> None:
        """Answers a request. While it runs, it receives the clock's ticks and the signal to shut down."""
        self.running.add(request)
        writes = self._services.pool.connections.writes
        writes.crowded = len(self.running) > 1
        try:
            await request.run()
        finally:
            self.running.discard(request)
            self._live.changed()
            self._last = self._services.clock()

    def check_open(self) -> None:
        """Refuses a new request while the gateway stops."""
        if self.stopping:
            raise shutting_down()

    def answers_live(self) -> bool:
        """Whether live requests run, or ran within ``LIVE_SECONDS``. Batches then use a small share of this process."""
        return bool(self.running) or self._services.clock() - self._last < LIVE_SECONDS

    def seen_by(self, caller: Caller | None) -> list[RunningRequest]:
        """The requests that run in this process, as far as this caller may see them."""
        key = None if caller is None else caller.name
        return [request for request in self.running if key in (None, request.record.key)]

    def interrupt(self) -> None:
        """Ends all of them with an error, because the gateway stops."""
        for request in list(self.running):
            request.interrupt(shutting_down())


def shutting_down() -> StreamglotError:
    return StreamglotError(
        "the gateway is shutting down; send the request again", code="shutting_down", status=503, retryable=True
    )
