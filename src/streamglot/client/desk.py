"""Who may be asked, and what asking needs: upstreams, routes, connections, breakers, turns.

It is the gateway's own way to its upstreams (``gateway/opening.py``), without the gateway.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Iterable, Mapping

from ..errors import ConfigError, StreamglotError, UpstreamError
from ..gateway.admission import Turns
from ..gateway.config import Loaded, load
from ..gateway.deadlines import Deadline, Deadlines
from ..gateway.opening import Opening, Past
from ..gateway.record import Record
from ..gateway.source import Source
from ..messages import Request
from ..stages import Stage
from ..upstream import Upstream
from ..upstream.breaker import Breaker
from ..upstream.client import Client as Connections
from ..upstream.discovery import Found, discover
from ..upstream.local import ALIAS, NAME, LocalServer, local_server, missing
from ..upstream.routes import Candidate, Routes

REPLAY = "replay"
WAIT_SECONDS = 60.0
"""How long a request may wait for its turn at an upstream with a limit."""


class Desk:
    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        loaded: Loaded | None = None,
        upstreams: Iterable[Upstream] = (),
        environment: Mapping[str, str] | None = None,
        discovers: bool | None = None,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._given = list(upstreams)
        self.loaded = loaded or load(environment=self._environment)
        self._discovers = (not self._given and self.loaded.config.server.discover) if discovers is None else discovers
        self.client = Connections()
        self._deadlines = Deadlines(self.clock)
        self.found: list[Found] = []
        self._local: LocalServer | None = None
        self._breakers: dict[str, Breaker] = {}
        self._turns: dict[str, Turns] = {}
        self.routes = Routes([], [])

    async def open(self) -> None:
        await self.client.__aenter__()
        upstreams = [*self.loaded.config.upstreams.values(), *self._given]
        known = {upstream.name for upstream in upstreams}
        if self._discovers:
            self.found = await discover(self._environment)
            upstreams += [
                found.upstream(self._environment) for found in self.found if found.there and found.provider.name not in known
            ]
        others = bool(upstreams)
        if self._discovers and NAME not in known:
            self._local = local_server(self._environment)
            if self._local is not None:
                upstreams.append(self._local.upstream())
        if REPLAY not in known:
            upstreams.append(Upstream(name=REPLAY, models=[REPLAY], stream="always"))
        default = self.loaded.config.server.default_model or self._only_model(upstreams, others)
        self.routes = Routes(upstreams, self.loaded.config.routes, default)

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)
        if self._local is not None:
            await asyncio.to_thread(self._local.stop)

    async def candidates(self, model: str) -> list[Candidate]:
        """The upstreams for a model, best first. The local one is started when it is first wanted."""
        named = self.routes.named(model)
        if not named:
            raise ConfigError(self._what_to_name())
        if named in (NAME, ALIAS) and NAME not in self.routes.upstreams and self._discovers:
            raise ConfigError(f"the local model cannot be run: {missing(self._environment)}")
        found = self.routes.find(model, random.random)
        for candidate in found:
            if self._local is not None and candidate.upstream.name == NAME:
                candidate.upstream = await asyncio.to_thread(self._local.start)
        return found

    async def first(self, model: str) -> Candidate:
        return (await self.candidates(model))[0]

    def record(self, request: Request) -> Record:
        return Record(self.new_id(), request.dialect, self.clock(), self.routes.named(request.model), request.stream)

    async def ask(self, request: Request, record: Record, past: Past | None = None) -> Source:
        """The answer of the first upstream that gives one."""
        candidates = await self.candidates(request.model)
        return await Opening(self, request, record, "", {}, past).first_of(candidates)

    # --- what an opening asks for

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def stages(self) -> list[Stage]:
        return []

    def within(self, seconds: float) -> Deadline:
        asyncio.get_running_loop().call_later(seconds + 0.01, lambda: self._deadlines.tick(self.clock()))
        return self._deadlines.within(seconds)

    def upstream_turns(self, upstream: Upstream) -> Turns:
        return self._turns.setdefault(upstream.name, Turns(upstream.concurrent, WAIT_SECONDS, f"upstream {upstream.name!r}"))

    def breaker(self, upstream: Upstream) -> Breaker:
        return self._breakers.setdefault(upstream.name, Breaker(upstream.rest))

    def resting(self, upstream: Upstream) -> StreamglotError:
        wait = self.breaker(upstream).wait(self.clock())
        return UpstreamError(
            f"upstream {upstream.name!r} failed {upstream.rest.failures} times in a row and is left alone for {wait:.0f} s more",
            code="upstream_resting",
            status=503,
        )

    # --- the model that is meant where none is named

    def _only_model(self, upstreams: list[Upstream], others: bool) -> str:
        if not others and self._local is not None:
            return NAME
        named = [model for upstream in upstreams for model in upstream.listed if upstream.name not in (REPLAY, NAME)]
        return named[0] if len(named) == 1 else ""

    def _what_to_name(self) -> str:
        others = [name for name in self.routes.upstreams if name not in (REPLAY, NAME)]
        if others:
            return (
                f"no model was named: name one with its upstream ({', '.join(f'{name}/…' for name in others)}), "
                "or set server.default_model in the configuration"
            )
        return (
            f"nobody is there to be asked: {missing(self._environment)}, set a provider's key (streamglot doctor lists them), "
            f"or name the model {REPLAY!r}, which says back what it is told"
        )
