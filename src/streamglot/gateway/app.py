"""The ASGI application: faces as raw ASGI, pages through Starlette, and the state that all exchanges share."""

from __future__ import annotations

import asyncio
import os
import random
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, StreamglotError, UpstreamError
from ..upstream import Upstream
from ..upstream.breaker import Breaker
from ..upstream.client import Client
from ..upstream.discovery import Found, discover
from ..upstream.local import NAME as LOCAL
from ..upstream.routes import Routes
from ..upstream.secrets import hide
from . import ledger
from .admission import Turn, Turns
from .cache import Cache
from .call import Call, Receive, Scope, Send
from .config import NOTHING, Loaded, load
from .content import ContentLog
from .deadlines import Deadlines
from .exchange import Exchange
from .faces import Face, face_for
from .keys import Caller, Doorkeeper
from .log import Log
from .memory import Memory
from .metrics import Metrics
from .origins import Origins, origin_of
from .record import Record
from .stored_keys import StoredCallers
from .telemetry import Telemetry

if TYPE_CHECKING:
    from ..store import Store
    from .keeping import Keeper

TICK_SECONDS = 0.25
"""How often silent and overdue streams are looked for: fine enough for timeouts of seconds."""
REPLAY = "replay"


class Gateway:
    clock = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def __init__(
        self, loaded: Loaded, environment: Mapping[str, str] | None = None, say: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        self._log = Log()
        self.say = say or self._log
        self._environment = os.environ if environment is None else environment
        self.client = Client()
        self.metrics = Metrics()
        self._chance = random.Random()
        self._deadlines = Deadlines(self.clock)
        self.within = self._deadlines.within
        self.found: list[Found] = []
        self.stopping = False
        self._live: set[Exchange] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._breakers: dict[str, Breaker] = {}
        self._upstream_turns: dict[str, Turns] = {}
        self._turns = Turns(0, 0, "the gateway")
        self.cache = Cache(0)
        self.store: Store | None = None
        self.keeper: Keeper | None = None
        self._stored = StoredCallers()
        self.content_log: ContentLog | None = None
        self._telemetry: Telemetry | None = None
        self._pages: Any = None
        self._ticker: asyncio.Task[None] | None = None
        self._memory = Memory()
        self._take(loaded)

    # --- configuration

    def _take(self, loaded: Loaded, starting: bool = True) -> None:
        """A new configuration, whole or not at all: all that may fail is made before anything is changed."""
        server = loaded.config.server
        self._stored.known |= loaded.config.store.url == NOTHING
        doorkeeper = Doorkeeper(server, self._environment, self._stored, getattr(self, "doorkeeper", None), starting)
        routes = _routes(loaded, [found.upstream(self._environment) for found in self.found if found.there])
        origins = Origins(server.origins, lambda: doorkeeper.asks)
        content_log = ContentLog(server.redact) if server.log_content else None
        telemetry = (self._telemetry or Telemetry()) if server.telemetry else None
        doorkeeper.take_effect()
        self.loaded, self.server, self.doorkeeper, self.routes = loaded, server, doorkeeper, routes
        self._origins, self.content_log, self._telemetry = origins, content_log, telemetry
        self.cache.resize(server.cache_bytes)
        self._turns.resize(server.concurrent, server.wait)
        for upstream in routes.upstreams.values():
            self.upstream_turns(upstream).resize(upstream.concurrent, server.wait)
            self.breaker(upstream).rest = upstream.rest

    def reload(self) -> None:
        """Reads the configuration again. Whatever is wrong with it is reported, and the old one stays."""
        try:
            self._take(load(self.loaded.path, self._environment, self.loaded.overrides), starting=False)
        except ConfigError as error:
            self.say({"event": "reload_failed", "message": error.message})
        except Exception as error:
            self.say({"event": "reload_failed", "message": f"{type(error).__name__}: {error}"[:300]})
        else:
            self.say({"event": "reloaded", "path": str(self.loaded.path)})

    # --- life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        ledger.join()
        async with self.client:
            if self.server.discover:
                self.found = await discover(self._environment)
                self._take(self.loaded)
            await self._open_store()
            if self.store is not None:
                await self._meet(self.store)
                self.spawn(self._stored.watch(self.store, self.store_state, self.say))
            self._ticker = asyncio.ensure_future(self._tick())
            try:
                yield
            finally:
                self._ticker.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self.store is not None:
                    await self.store.close()
                self.metrics.publish(len(self._live))
                self._log.close()
                if self._telemetry is not None:
                    self._telemetry.close()

    async def check(self) -> None:
        """Could it run? A database that cannot be opened, or a door without keys, is a ConfigError."""
        try:
            await self._open_store()
            if self.store is not None:
                await self._meet(self.store)
                await self.store.close()
        finally:
            self._log.close()  # the loop ends before its lines are due

    async def _open_store(self) -> None:
        """It is loaded here: who keeps nothing need not wait for it."""
        if self.loaded.config.store.url != NOTHING:
            from .keeping import Keeper, open_store

            self.store = await open_store(self.loaded.config, self._environment, self.say)
            self.keeper = Keeper(self.store)

    async def _meet(self, store: Store) -> None:
        """The keys in the store. Only now it is known whether there are any at all."""
        try:
            await self._stored.refresh(store)
            self._take(self.loaded)
        except BaseException:
            await store.close()
            raise
        state = self.doorkeeper.state
        if not state.usable:
            self.say({"event": "no_valid_key", "message": f"{state.says}; {state.step}"})

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self.clock()
            self._deadlines.tick(now)
            for exchange in list(self._live):
                exchange.tick(now)
            self._memory.tick(len(self._live))
            self.metrics.publish(len(self._live))

    def stop(self, seconds: float) -> None:
        """No new work; what still runs after so many seconds is ended with a proper error."""
        self.stopping = True
        asyncio.get_running_loop().call_later(seconds, self._interrupt)

    def _interrupt(self) -> None:
        error = _shutting_down()
        for exchange in list(self._live):
            exchange.interrupt(error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ConfigError(f"the gateway speaks HTTP, not {scope['type']}")
        origin = origin_of(scope)
        if origin:
            await self._origins.guard(origin, scope, receive, send, self._answer)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            alt = "sse" if b"alt=sse" in scope.get("query_string", b"") else ""
            found = face_for(scope["path"], alt)
            if found is not None:
                await self.exchange(found[0], Call(scope, receive, send), found[1])
                return
        if self._pages is None:
            from .pages import pages

            self._pages = pages(self)
        await self._pages(scope, receive, send)

    async def exchange(self, face: Face, call: Call, model_in_path: str) -> None:
        exchange = Exchange(self, face, call, model_in_path)
        self._live.add(exchange)
        self.client.writes.crowded = len(self._live) > 1
        try:
            await exchange.run()
        finally:
            self._live.discard(exchange)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except ConfigError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    # --- what exchanges use

    def metrics_page(self) -> bytes:
        self.metrics.publish(len(self._live))
        return self.metrics.page()

    def turn(self, caller: Caller | None) -> Turn:
        """A place among those that are answered at once."""
        if self.stopping:
            raise _shutting_down()
        return Turn(self._turns, caller)

    def upstream_turns(self, upstream: Upstream) -> Turns:
        turns = self._upstream_turns.get(upstream.name)
        if turns is None:
            turns = self._upstream_turns[upstream.name] = Turns(0, 0, f"upstream {upstream.name!r}")
        return turns

    def breaker(self, upstream: Upstream) -> Breaker:
        breaker = self._breakers.get(upstream.name)
        if breaker is None:
            breaker = self._breakers[upstream.name] = Breaker(upstream.rest)
        return breaker

    def resting(self, upstream: Upstream) -> StreamglotError:
        wait = self.breaker(upstream).wait(self.clock())
        return UpstreamError(
            f"upstream {upstream.name!r} failed {upstream.rest.failures} times in a row and is left alone for {wait:.0f} s more; "
            "try again then, or add another upstream as a fallback",
            code="upstream_resting",
            status=503,
            detail={"retry_after": wait},
        )

    def finished(self, record: Record, headers: Mapping[str, str]) -> None:
        now, time = self.clock(), self.time()
        self.metrics.note(record)
        if self._telemetry is not None:
            self._telemetry.note(record, headers, now, time)
        if self.server.log:
            self.say(record.line(now, time))

    def new_id(self) -> str:
        """An id that nobody else has: as good as a UUID, and without asking the system each time."""
        return f"{self._chance.getrandbits(128):032x}"

    def say_fault(self, request_id: str, error: Exception) -> None:
        """A fault of our own, with the place in the code."""
        trace = "".join(traceback.format_exception(error))
        self.say({"event": "fault", "request_id": request_id, "trace": hide(trace, self.secrets())})

    def secrets(self) -> list[str]:
        return [secret for upstream in self.routes.upstreams.values() for secret in upstream.secrets()]

    def store_state(self) -> str:
        """ok, failing or off. A failing store is told of, and stops nothing."""
        if self.store is None:
            return "off"
        report = self.store.report()
        self.metrics.note_store(report)
        return "failing" if report.failing else "ok"

    def states(self) -> dict[str, str]:
        now = self.clock()
        return {name: self.breaker(upstream).state(now) for name, upstream in self.routes.upstreams.items()}


def _shutting_down() -> StreamglotError:
    return StreamglotError(
        "the gateway is shutting down; send the request again", code="shutting_down", status=503, retryable=True
    )


def _routes(loaded: Loaded, found: list[Upstream]) -> Routes:
    """The upstreams of the configuration, those that were found beside them, and the replay; and the ways to all of them."""
    upstreams = list(loaded.config.upstreams.values())
    known = {upstream.name for upstream in upstreams}
    upstreams += [upstream for upstream in found if upstream.name not in known]
    if REPLAY not in known:
        upstreams.append(Upstream(name=REPLAY, models=[REPLAY], stream="always"))
    names = {upstream.name for upstream in upstreams}
    alone = names <= {REPLAY, LOCAL}
    default = loaded.config.server.default_model or ("" if not alone else LOCAL if LOCAL in names else REPLAY)
    return Routes(upstreams, loaded.config.routes, default)


def check_start(loaded: Loaded, environment: Mapping[str, str]) -> None:
    """Raises a ConfigError if a gateway could not start with this configuration, as far as that is known without its store."""
    Doorkeeper(loaded.config.server, environment, StoredCallers())
    _routes(loaded, [])
    ContentLog(loaded.config.server.redact)


def create(loaded: Loaded | None = None) -> Gateway:
    """The application for an ASGI server of your own."""
    return Gateway(loaded or load())
