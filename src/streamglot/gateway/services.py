"""What every request of this process uses: the upstreams, the clock, ids, the log, background tasks; and the requests that run
now, which get the ticks of the clock and the signal to shut down."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from typing import Protocol

from ..config import LoadedConfig
from ..engine.ask import ResponseCache
from ..engine.stats import ExchangeRecord
from ..engine.upstreams import UpstreamPool
from ..errors import StreamglotError
from ..tasks import TaskSupervisor, WriteLine
from ..upstream.secrets import hide, hide_in
from .auth.authenticator import Caller
from .merging import MergingPost, RequestMerger
from .observe.live import Live


class GatewayServices:
    """The services of one gateway. ``Lifecycle`` replaces ``server`` and ``cache`` when the configuration is read again."""

    clock = staticmethod(time.monotonic)

    def __init__(self, loaded: LoadedConfig, environment: Mapping[str, str], log: WriteLine) -> None:
        self.log = log
        self.pool = UpstreamPool(loaded, environment=environment, serving=True, log=log)
        self.server = loaded.config.server
        self.new_id = self.pool.new_id
        self.within = self.pool.within
        self.tasks = TaskSupervisor(lambda line: log(hide_in(line, self.pool.secrets())))
        self.cache: ResponseCache | None = None
        """The cache of answers; None if no route caches."""
        self.merger = RequestMerger()
        self.pool.whole_post = MergingPost(self.pool.connections.post, self.merger)

    def log_fault(self, request_id: str, error: BaseException) -> None:
        """Logs an internal error with its place in the code."""
        trace = "".join(traceback.format_exception(error))
        self.log({"event": "fault", "request_id": request_id, "trace": hide(trace, self.pool.secrets())})


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
