"""The ASGI application: it routes calls to the endpoints and the pages, and holds the state that all exchanges share."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from ..authentication import LOOPBACK
from ..batch.merging import RequestMerger
from ..config import DISABLED, LoadedConfig, load
from ..dialects import DIALECTS, dialect
from ..engine.cache import ResponseCache
from ..engine.content_log import ContentLog
from ..engine.limiter import ConcurrencyLimit
from ..engine.observer import ExchangeResult, Observer
from ..engine.pool import UpstreamPool
from ..errors import FOREIGN_ERRORS, ConfigError, StreamglotError
from ..inband import FORMATS
from ..tasks import TaskSupervisor, WriteLine
from ..upstream.providers import KNOWN_PROVIDERS
from ..upstream.secrets import hide, hide_in
from .auth import ratelimit
from .auth.authenticator import Authenticator, Caller
from .auth.budgets import Reservation
from .auth.slot import Slot
from .auth.stored_keys import StoredCallers
from .endpoints import COMPATIBLE, Endpoint, compatible, endpoint_for
from .handler import RequestHandler
from .http.asgi import Application, ASGICall, Receive, Scope, Send, refuse_websocket, run_asgi, run_lifespan
from .http.call import Call
from .http.cors import CORS
from .http.hosts import AllowedHosts
from .http.http_call import HTTPCall
from .http.reply import Reply
from .merging_post import MergingPost
from .observe.live import Live, LiveObserver
from .observe.log import Log
from .observe.memory import Memory, set_allocator
from .observe.metrics import Metrics
from .observe.observers import AccessLog, ContentLogger, MetricsObserver, UsageMeter
from .observe.tracing import Tracing
from .reloading import load_again
from .sealing import sealer_for
from .shared_approvals import SharedApprovals

if TYPE_CHECKING:
    from ..batch.service import BatchService
    from ..store import Store
    from .recording import TurnRecorders

RESPONSES = "/v1/responses"
"""The path that is also served over WebSockets."""
TICK_SECONDS = 0.25
"""Seconds between two checks for silent and overdue streams: fine enough for timeouts of a few seconds."""
LIVE_SECONDS = 0.5
"""Seconds after a live request during which the gateway still counts as serving live traffic."""
BATCH_STOP_SECONDS = 1.0
"""Seconds that calls of batches may continue when the gateway stops. Calls that have not ended by then run again later."""


class Gateway:
    clock = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def __init__(
        self,
        loaded: LoadedConfig,
        environment: Mapping[str, str] | None = None,
        log: WriteLine | None = None,
    ) -> None:
        self._log = Log()
        self.log = log or self._log
        self.environment = os.environ if environment is None else environment
        self.pool = UpstreamPool(loaded, environment=self.environment, serving=True, log=self.log)
        self.metrics = Metrics()
        self.live = Live(self.time)
        self.within = self.pool.within
        self.new_id = self.pool.new_id
        self.stopping = False
        self._live: set[RequestHandler] = set()
        self._last_live = -LIVE_SECONDS
        self.tasks = TaskSupervisor(lambda line: self.log(hide_in(line, self.pool.secrets())))
        self._limit = ConcurrencyLimit(0, 0, "the gateway")
        self.cache = ResponseCache(0)
        self.merger = RequestMerger()
        self.pool.whole_post = MergingPost(self.pool.connections.post, self.merger)
        self.caches = False
        self._observers: list[Observer] = []
        self.store: Store | None = None
        self.recorders: TurnRecorders | None = None
        self.batches: BatchService | None = None
        self._stored = StoredCallers()
        self.tracing: Tracing | None = None
        self._starlette: Application | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._memory = Memory()
        self.approvals = self.pool.approval_sharing = SharedApprovals(self)
        self._apply(loaded)

    # --- configuration

    def _apply(self, loaded: LoadedConfig, starting: bool = True) -> None:
        """Applies a new configuration completely or not at all: everything that can fail is built before any state changes."""
        server = loaded.config.server
        self._stored.known |= loaded.config.store.url == DISABLED
        authenticator = Authenticator(server, self.environment, self._stored, getattr(self, "authenticator", None), starting)
        tracing = (self.tracing or Tracing(self.environment, self.log)) if server.telemetry else None
        content_log = ContentLog(server.redact, self.pool.secrets) if server.log_content else None
        sealer = sealer_for(server.reasoning_key, self.environment)
        cors, hosts = CORS(server.origins, lambda: authenticator.asks), AllowedHosts(server.allowed_hosts)
        self.pool.configure(loaded)
        self.pool.tracer = tracing
        authenticator.take_effect()
        self._cors, self._hosts, self.sealer = cors, hosts, sealer
        self.loaded, self.server, self.authenticator, self.tracing = loaded, server, authenticator, tracing
        self.cache.resize(server.cache_bytes)
        self.caches = any(route.cache_seconds for route in loaded.config.routes)
        self._limit.resize(server.concurrent, server.wait)
        self._observers = [LiveObserver(self.live), *self.pool.observers, MetricsObserver(self.metrics)]
        if content_log is not None:
            self._observers.append(ContentLogger(content_log, self.log))
        if server.log:
            self._observers.append(AccessLog(self.log))

    def reload(self) -> None:
        """Reads the configuration again. If it is invalid, logs the reason and keeps the old configuration."""
        try:
            loaded, fixed = load_again(self.loaded, self.environment)
            self._apply(loaded, starting=False)
        except ConfigError as error:
            self.log({"event": "reload_failed", "message": error.message})
        except FOREIGN_ERRORS as error:
            self.log({"event": "reload_failed", "message": f"{type(error).__name__}: {error}"[:300]})
        else:
            self.log({"event": "reloaded", "path": str(loaded.path), **({"needs_restart": fixed} if fixed else {})})

    # --- life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        ratelimit.join()
        set_allocator()
        async with self.pool:
            await self._open_store()
            if self.store is not None:
                await self._load_stored_keys(self.store)
                watch = partial(self._stored.watch, self.store, self.store_state, self.log)
                self.tasks.start("stored keys", watch)
            self.tasks.start("approvals", self.approvals.run)
            self._ticker = self.tasks.start("clock", self._tick)
            try:
                await self._open_batches()
                yield
            finally:
                if self.batches is not None:
                    await self.batches.stop(BATCH_STOP_SECONDS)
                await self.tasks.close()
                if self.batches is not None:
                    await self.batches.close()
                await self.approvals.close()
                if self.store is not None:
                    await self.store.close()
                self.metrics.publish(len(self._live))
                self._log.close()
                if self.tracing is not None:
                    self.tracing.close()

    async def check(self) -> None:
        """Raises a ConfigError if the gateway could not start: the database cannot be opened, keys are missing, or a package takes a
        name of ours."""
        for plugins in (DIALECTS, FORMATS, KNOWN_PROVIDERS):
            plugins.check_names()
        try:
            await self._open_store()
            if self.store is not None:
                await self._load_stored_keys(self.store)
                await self.store.close()
                if self.loaded.config.batches.enabled:
                    from .batching import bucket_of

                    bucket_of(self)
        finally:
            self._log.close()  # the event loop ends before the log would be flushed

    async def _open_store(self) -> None:
        """Opens the store, if one is configured. The store is imported here, because the import is slow."""
        if self.loaded.config.store.url != DISABLED:
            from .recording import TurnRecorders, open_store

            self.store = await open_store(self.loaded.config, self.environment, self.log)
            self.recorders = TurnRecorders(self.store)

    async def _open_batches(self) -> None:
        if self.store is not None and self.loaded.config.batches.enabled:
            from .batching import open_batches

            self.batches = await open_batches(self, self.store)

    async def _load_stored_keys(self, store: Store) -> None:
        """Loads the keys of the store and checks authentication again: only now is it known whether any keys exist."""
        try:
            await self._stored.refresh(store)
            self._apply(self.loaded)
        except BaseException:
            await store.close()
            raise
        state = self.authenticator.state
        if not state.usable:
            self.log({"event": "no_valid_key", "message": f"{state.summary}; {state.step}"})

    async def _tick(self) -> None:
        """Runs the periodic steps until the gateway stops."""
        while True:
            self._run_periodic_steps()  # at once, so that the memory of the idle process is measured before any request
            await asyncio.sleep(TICK_SECONDS)

    def _run_periodic_steps(self) -> None:
        """Runs every periodic step. A step that fails does not keep the others from running.

        This is a separate function because the frame of ``_tick`` lives as long as the gateway: its loop variable would
        hold the last request, with its whole answer, until the next one.
        """
        attempt = self.tasks.attempt
        now = self.clock()
        attempt("deadlines", self.pool.tick, now)
        for handler in () if self.pool.late else list(self._live):
            attempt("request", handler.tick, now)
        attempt("memory", self._memory.tick, len(self._live))
        attempt("metrics", self.metrics.publish, len(self._live))
        if self._live:
            self.live.changed()

    def stop(self, seconds: float) -> None:
        """Accepts no new work. Requests that still run after this many seconds end with an error."""
        self.stopping = True
        self.live.changed()
        asyncio.get_running_loop().call_later(seconds, self._interrupt)

    def _interrupt(self) -> None:
        for handler in list(self._live):
            handler.interrupt(shutting_down())

    def spawn(self, name: str, work: Coroutine[object, object, object]) -> None:
        """Runs ``work`` in the background; a failure is logged under this name."""
        self.tasks.spawn(name, work)

    # --- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await run_lifespan(self.running(), receive, send)
            return
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send)
            return
        if scope["type"] != "http":
            raise ConfigError(f"the gateway serves the ASGI scopes http and lifespan, not {scope['type']!r}")
        if scope["path"].startswith(COMPATIBLE):
            scope = {**scope, "path": compatible(scope["path"])}
        call = ASGICall(scope, receive, send)
        refusal = self._screen(call)
        found = None if refusal is not None else self._endpoint(call)
        if refusal is not None:
            await call.send(refusal)
        elif found is not None:
            await self.exchange(found[0], call, found[1])
        else:
            await self._pages()(scope, receive, call.forward)

    def _pages(self) -> Application:
        """Returns the application for all paths but the endpoints of dialects. It is imported on first use."""
        if self._starlette is None:
            from .api.routes import pages

            self._starlette = pages(self)
        return self._starlette

    # --- our own server

    @property
    def stall_seconds(self) -> float:
        return self.server.stall_seconds

    def respond(self, call: HTTPCall) -> Coroutine[object, object, None]:
        """Answers a call: the endpoints of dialects directly, everything else as ASGI."""
        if call.path.startswith(COMPATIBLE):
            call.path = compatible(call.path)
        refusal = self._screen(call)
        if refusal is not None:
            return _send(call, refusal)
        found = self._endpoint(call)
        if found is not None:
            return self.exchange(found[0], call, found[1])
        return run_asgi(self._pages(), call)

    def converse(self, call: HTTPCall) -> Coroutine[object, object, None] | None:
        """Serves a WebSocket if this path has one; returns None otherwise."""
        if compatible(call.path) != RESPONSES:
            return None
        refusal = self._screen(call)
        if refusal is not None:
            return _send(call, refusal)
        from .responses_websocket import serve

        return serve(self, call)

    # --- checks before routing

    def _screen(self, call: Call) -> Reply | None:
        """Answers a forbidden origin or host and a CORS preflight. Returns None for a call that goes on to its endpoint."""
        headers = call.headers
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if origin and not self._cors.allows(origin, host):
            return self._cors.refuse(origin)
        if not self.authenticator.asks and not self._hosts.allows(host):
            return self._hosts.refuse(host)
        if not origin:
            return None
        call.extra_headers.update(self._cors.response_headers(origin))
        return self._cors.preflight(call.method, headers)

    def _endpoint(self, call: Call) -> tuple[Endpoint, str] | None:
        return endpoint_for(call.path, call.query) if call.method == "POST" else None

    def is_public(self, path: str, host: str) -> bool:
        """Returns whether this page can be read without a key, under this name of the host."""
        listed = self.server.public_paths
        return path in listed if listed is not None else self.server.host in LOOPBACK and self._hosts.allows(host)

    def exchange(self, endpoint: Endpoint, call: Call, model_in_path: str) -> Coroutine[object, object, None]:
        return self.serve(RequestHandler(self, endpoint, call, model_in_path))

    async def serve(self, handler: RequestHandler) -> None:
        """Runs a handler. While it runs, it receives the clock's ticks and the signal to shut down."""
        self._live.add(handler)
        self.pool.connections.writes.crowded = len(self._live) > 1
        try:
            await handler.run()
        finally:
            self._live.discard(handler)
            self.live.changed()
            self._last_live = self.clock()

    # --- services for exchanges

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """The page of metrics in the format that the reader accepts, and its media type."""
        self.metrics.publish(len(self._live))
        return self.metrics.page(accept)

    def answers_live(self) -> bool:
        """Returns whether live requests run, or ran within ``LIVE_SECONDS``. Batches then use a small share of this process."""
        return bool(self._live) or self.clock() - self._last_live < LIVE_SECONDS

    def slot(self, caller: Caller | None) -> Slot:
        """Returns a slot that counts this request towards the limit of concurrent requests."""
        if self.stopping:
            raise shutting_down()
        return Slot(self._limit, caller)

    def limits_told(self, caller: Caller | None, dialect_name: str, of_upstream: Mapping[str, str]) -> dict[str, str]:
        """Returns the headers that tell a client its rate limits: those of its key, or without keys those of the upstream."""
        if caller is None:
            return {**of_upstream}
        told: dict[str, str] = {}
        for what, left in caller.limits(self.clock()).items():
            told.update(dialect(dialect_name).limit_headers(what, *left, self.time()))
        return told

    def observers_for(self, recorder: Observer | None, reservation: Reservation | None, span: Observer | None) -> list[Observer]:
        """Returns the observers of one exchange. Usage is settled before the turn is recorded."""
        if recorder is None and reservation is None and span is None:
            return self._observers
        own: list[Observer] = [] if reservation is None else [UsageMeter(reservation)]
        own += [observer for observer in (recorder, span) if observer is not None]
        return [*own, *self._observers]

    def open_requests(self, caller: Caller | None) -> list[RequestHandler]:
        """The requests that run in this process, as far as this caller may see them."""
        key = None if caller is None else caller.name
        return [handler for handler in self._live if key in (None, handler.record.key)]

    def notify_observers(self, result: ExchangeResult, span: Observer | None) -> None:
        """Notifies the observers about a request that was not an exchange."""
        for observer in (*([span] if span is not None else ()), *self._observers):
            observer.finished(result)

    def log_fault(self, request_id: str, error: BaseException) -> None:
        """Logs an internal error with its place in the code."""
        trace = "".join(traceback.format_exception(error))
        self.log({"event": "fault", "request_id": request_id, "trace": hide(trace, self.pool.secrets())})

    def store_state(self) -> str:
        """Returns ``ok``, ``failing`` or ``off``. A failing store is reported and does not stop requests."""
        if self.store is None:
            return "off"
        report = self.store.report()
        self.metrics.note_store(report)
        return "failing" if report.failing else "ok"


def shutting_down() -> StreamglotError:
    return StreamglotError(
        "the gateway is shutting down; send the request again", code="shutting_down", status=503, retryable=True
    )


async def _send(call: HTTPCall, reply: Reply) -> None:
    await call.send(reply)


def create(loaded: LoadedConfig | None = None) -> Gateway:
    """Creates the application for another ASGI server, such as uvicorn."""
    return Gateway(loaded or load())
