"""The upstream pool: all upstreams, with their connections, circuit breakers and concurrency limits.

It is built from the configuration in one place, and used by the gateway, the client, the command line and batches.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ..config import AUTO, DISABLED, Config, LoadedConfig, load
from ..errors import ConfigError
from ..json_types import JsonValue
from ..messages import Request
from ..stages.stage import ExchangeContext, StageFactory
from ..tasks import Deadline, Deadlines, WriteLine
from ..tools import ToolRegistry, ToolsConfig
from ..tools.executor import ToolExecutor
from ..upstream import Upstream
from ..upstream.discovery import Found, discover
from ..upstream.http.pool import ConnectionPool
from ..upstream.local import ALIAS, NAME, LocalServer, local_server, missing
from ..upstream.models import ModelLists
from ..upstream.routing.health import Breakers
from ..upstream.routing.routes import Candidate, Routes
from ..upstream.routing.slots import ConcurrencyLimit
from .answer import EventSource, ThoughtMemory
from .ask import Passthrough
from .attempts import Traffic, UpstreamRequest, WholePost, check_options
from .conversation import ConversationState
from .exchange import Exchange
from .kept_conversations import KeptConversations
from .observer import EngineTracer, Observer
from .services import Services
from .stage_runner import build_observers, build_stages
from .stats import ExchangeRecord

if TYPE_CHECKING:
    from ..policies import Approvals, ApprovalSharing, Policy

REPLAY: Final = "replay"
"""The built-in upstream that repeats its input."""
TICK_SECONDS: Final = 0.25
"""Seconds between two checks of time limits: fine enough for limits of a few seconds."""
LATE_SECONDS: Final = 3 * TICK_SECONDS
"""Seconds since the tick before, after which a tick counts as late."""
OLD_TOOLS_SECONDS: Final = 60.0
"""Seconds without a call after which the tools of an earlier configuration are closed: an exchange that began with them may still
call them. An MCP server that is called later starts again."""


def _no_log(_line: Mapping[str, JsonValue]) -> None:
    """Discards log lines."""


class UpstreamPool:
    """Holds the upstreams of the configuration, the discovered ones (keys in the environment, servers on this machine), the local
    model, and the ``upstreams`` given here. If some are given, nothing is discovered unless ``discover`` is set. ``policies``
    judge every exchange, before those of the configuration.

    ``whole_post`` sends non-streamed requests to upstreams whose ``merge`` setting names their kind. Only a server sets it,
    because only a server has several requests at once.

    ``serving``: the owner is a server. It passes a local model that already runs, calls ``tick`` itself, and answers requests
    that name no model from the ``replay`` upstream if there is no other.
    """

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        loaded: LoadedConfig | None = None,
        *,
        upstreams: Iterable[Upstream] = (),
        tools: Iterable[object] = (),
        environment: Mapping[str, str] | None = None,
        policies: Iterable[Policy] = (),
        discover: bool | None = None,
        serving: bool = False,
        model_lists: Path | None = None,
        log: WriteLine = _no_log,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._given = list(upstreams)
        self._policies = tuple(policies)
        self.loaded = loaded or load(environment=self._environment)
        self.log = log
        self.connections = ConnectionPool()
        self.model_lists = ModelLists(self.connections, model_lists)
        self._models: tuple[int, list[tuple[str, str]]] | None = None
        self.thoughts = ThoughtMemory()
        self.whole_post: WholePost | None = None
        self.found: list[Found] = []
        self.routes = Routes([], [])
        self.stages: list[StageFactory] = []
        self.observers: list[Observer] = []
        self._given_tools = list(tools)
        self.tools = ToolExecutor(ToolRegistry(given=self._given_tools))
        self._configured_tools: ToolsConfig | None = None
        self._old_tools: list[ToolExecutor] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._watched: set[Exchange] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._discovers = (not self._given and self.loaded.config.server.discover) if discover is None else discover
        self._serving = serving
        self._local: LocalServer | None = None
        self._deadlines = Deadlines(self.clock)
        self._last_tick, self.late = self.clock(), False
        self._approvals: Approvals | None = None
        self.approval_sharing: ApprovalSharing | None = None
        self.tracer: EngineTracer | None = None
        self._random = random.Random()
        self.kept = KeptConversations()
        self._breakers: dict[str, Breakers] = {}
        self._limits: dict[str, ConcurrencyLimit] = {}

    # --- life cycle

    async def open(self) -> None:
        await self.connections.__aenter__()
        if self._discovers:
            self.found = await discover(self._environment)
            if not self._serving and NAME not in self.loaded.config.upstreams:
                self._local = local_server(self._environment)
        self.configure(self.loaded)

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for tools in (*self._old_tools, self.tools):
            await tools.registry.close()
        await asyncio.gather(*self._closing)
        await self.model_lists.close()
        await self.connections.__aexit__(None, None, None)
        if self._local is not None:
            await asyncio.to_thread(self._local.stop)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def configure(self, loaded: LoadedConfig) -> None:
        """Applies a configuration completely or not at all: an invalid one raises and leaves the pool unchanged."""
        config = loaded.config
        upstreams = [*config.upstreams.values(), *self._given]
        known = {upstream.name for upstream in upstreams}
        upstreams += [
            found.upstream(self._environment) for found in self.found if found.there and found.provider.name not in known
        ]
        if self._local is not None and NAME not in known:
            upstreams.append(self._local.upstream())
        if REPLAY not in known:
            upstreams.append(Upstream(name=REPLAY, models=[REPLAY], stream="always"))
        for upstream in upstreams:
            check_options(upstream)
        default = config.server.default_model or self._default_model(upstreams)
        routes = Routes(upstreams, config.routes, default, self._fallback_model(config, upstreams))
        tools = self._tools_of(config)
        stages, observers = build_stages(config, self._policies, tools), build_observers(config)
        if tools is not self.tools:
            self._old_tools.append(self.tools)
            self._configured_tools = config.tools
        self._models = None
        self.loaded, self.routes, self.stages, self.observers, self.tools = loaded, routes, stages, observers, tools
        for upstream in upstreams:
            self.limit(upstream).resize(upstream.concurrent, config.server.wait)
            self.breakers(upstream).configure(upstream.breaker)

    def _tools_of(self, config: Config) -> ToolExecutor:
        """The tools of a configuration. Tool servers with unchanged settings keep running."""
        if self._configured_tools == config.tools:
            return self.tools
        tools = ToolExecutor(ToolRegistry(config.tools, self._given_tools), approve=self.tools.approve)
        tools.mixed = self.tools.mixed
        return tools

    def _default_model(self, upstreams: list[Upstream]) -> str:
        """The model for a request that names none: the local model if there is no other, or the only named one."""
        names = {upstream.name for upstream in upstreams}
        if names <= {REPLAY, NAME}:
            return NAME if NAME in names else REPLAY if self._serving else ""
        named = [model for upstream in upstreams for model in upstream.listed if upstream.name not in (REPLAY, NAME)]
        return named[0] if len(named) == 1 and not self._serving else ""

    def _fallback_model(self, config: Config, upstreams: list[Upstream]) -> str:
        """The model for names that no upstream serves.

        Only a server has a default: a person who mistypes a name gets an error.
        """
        chosen = config.server.fallback_model
        if chosen == DISABLED:
            return ""
        if chosen != AUTO:
            return chosen
        if not self._serving or config.routes:
            return ""
        names = {upstream.name for upstream in upstreams}
        return Routes(upstreams, []).only_model({REPLAY} if names <= {REPLAY, NAME} else {REPLAY, NAME})

    # --- requests

    async def first_candidate(self, model: str) -> Candidate:
        return (await self.candidates(model))[0]

    def check(self, model: str) -> None:
        """Raises the error of a request whose model no upstream serves."""
        if not self._serving:
            self._check_name(self.routes.named(model))
        self.routes.check(model)

    async def candidates(self, model: str) -> list[Candidate]:
        """The upstreams for a model, best first. The local model is started on first use."""
        if not self._serving:
            self._check_name(self.routes.named(model))
        found = self.routes.find(model, random.random)
        if self._local is None:
            return found
        return [await self._running(candidate) for candidate in found]

    async def _running(self, candidate: Candidate) -> Candidate:
        if self._local is None or candidate.upstream.name != NAME:
            return candidate
        return Candidate(await asyncio.to_thread(self._local.start), candidate.model, candidate.cache_seconds)

    def _check_name(self, model: str) -> None:
        if not model:
            raise ConfigError(self._no_model_named())
        if model in (NAME, ALIAS) and NAME not in self.routes.upstreams and self._discovers:
            raise ConfigError(f"the local model cannot be run: {missing(self._environment)}")

    def _no_model_named(self) -> str:
        others = [name for name in self.routes.upstreams if name not in (REPLAY, NAME)]
        if others:
            return (
                f"no model was named: name one with its upstream ({', '.join(f'{name}/…' for name in others)}), "
                "or set server.default_model in the configuration"
            )
        return (
            f"there is no upstream to ask: {missing(self._environment)}, set a provider's key (streamglot doctor lists them), "
            f"or name the model {REPLAY!r}, which repeats its input"
        )

    def models(self) -> list[tuple[str, str]]:
        """The models that have a name rather than a pattern, each with its upstream: those of the configuration, and those that
        upstreams list. A model that another upstream would serve has its upstream in front of its name."""
        version = self.model_lists.version
        if self._models is None or self._models[0] != version:
            listed = [
                (model if self.routes.server_of(model) is upstream else f"{name}/{model}", name)
                for name, upstream in self.routes.upstreams.items()
                for model in self.model_lists.models(upstream)
                if upstream.model_for(model)
            ]
            self._models = version, list(dict.fromkeys([*self.routes.models(), *listed]))
        return self._models[1]

    async def models_known(self, seconds: float) -> list[tuple[str, str]]:
        """``models()``, after waiting at most this long for lists that were never fetched."""
        await self.model_lists.known(self.routes.upstreams.values(), seconds)
        return self.models()

    def new_id(self) -> str:
        """A random id with as many bits as a UUID, at a lower cost."""
        return f"{self._random.getrandbits(128):032x}"

    def record(self, request: Request, request_id: str = "") -> ExchangeRecord:
        """The record of a new exchange."""
        model = self.routes.named(request.model)
        return ExchangeRecord(request_id or self.new_id(), request.dialect, self.clock(), model, request.stream)

    async def ask(
        self,
        request: Request,
        record: ExchangeRecord,
        conversation: ConversationState | None,
        passthrough: Passthrough,
        *,
        traffic: Traffic | None = None,
    ) -> EventSource:
        """Sends the request to the upstreams for its model until one answers. ``traffic`` is given for background calls."""
        candidates = self.routes.find(request.model, random.random) if self._serving else await self.candidates(request.model)
        return await UpstreamRequest(self, request, record, conversation, passthrough, traffic).open(candidates)

    # --- limits

    def within(self, seconds: float) -> Deadline:
        """``with pool.within(5): await …`` raises TimeoutError once the time is over."""
        if not self._serving:
            self._start_ticking()
        return Deadline(self._deadlines, seconds)

    def watch(self, exchange: Exchange) -> None:
        """Enforces the time limits of this exchange until ``unwatch``."""
        self._watched.add(exchange)
        self._start_ticking()

    def unwatch(self, exchange: Exchange) -> None:
        self._watched.discard(exchange)

    def tick(self, now: float) -> None:
        """Enforces the time limits that have passed. A server calls it every ``TICK_SECONDS``.

        A tick that comes ``late`` leaves that to the next one: if the whole process stood still, the event loop has not yet read what
        arrived meanwhile, and nobody else was silent."""
        if self._old_tools:
            self._close_old_tools(now)
        self.late = not self.late and now - self._last_tick > LATE_SECONDS
        self._last_tick = now
        if self.late:
            return
        self._deadlines.tick(now)
        for exchange in list(self._watched):
            error = exchange.overdue(now)
            if error is not None:
                exchange.interrupt(error)

    def _close_old_tools(self, now: float) -> None:
        """Closes the tools of earlier configurations that no exchange uses any more, with their MCP servers."""
        for tools in [each for each in self._old_tools if each.idle_seconds(now) >= OLD_TOOLS_SECONDS]:
            self._old_tools.remove(tools)
            closing = asyncio.ensure_future(tools.registry.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _start_ticking(self) -> None:
        if not self._serving and (self._ticker is None or self._ticker.done()):
            self._ticker = asyncio.ensure_future(self._ticking())

    async def _ticking(self) -> None:
        """Calls ``tick`` while there is something to watch."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick(self.clock())
            if not self._watched and not self._deadlines.open:
                return

    def limit(self, upstream: Upstream) -> ConcurrencyLimit:
        limit = self._limits.get(upstream.name)
        if limit is None:
            wait = self.loaded.config.server.wait
            limit = self._limits[upstream.name] = ConcurrencyLimit(upstream.concurrent, wait, f"upstream {upstream.name!r}")
        return limit

    def breakers(self, upstream: Upstream) -> Breakers:
        breakers = self._breakers.get(upstream.name)
        if breakers is None:
            breakers = self._breakers[upstream.name] = Breakers(upstream.breaker)
        return breakers

    def states(self) -> dict[str, str]:
        """The state of every upstream's circuit breakers."""
        now = self.clock()
        return {name: self.breakers(upstream).state(now) for name, upstream in self.routes.upstreams.items()}

    def services(self, context: ExchangeContext) -> Services:
        """The services for the questions of this exchange's stages."""
        return Services(self, context)

    @property
    def approvals(self) -> Approvals:
        """The registry of approval requests, for all exchanges of this pool."""
        if self._approvals is None:
            from ..policies import Approvals

            self._approvals = Approvals(
                self.new_id, lambda request: self.log({"event": "approval_asked", "id": request.id}), self.approval_sharing
            )
        return self._approvals

    def is_suspended(self, id: str) -> bool:
        """Whether a call with this approval id waits for its client's user. Without policies there is none."""
        return self._approvals is not None and self._approvals.is_suspended(id)

    def secrets(self) -> list[str]:
        """The secrets of all upstreams, which must not appear in logs."""
        return [secret for upstream in self.routes.upstreams.values() for secret in upstream.secrets()]
