"""The life of a gateway: start, reload, the clock, drain.

A reload reads the configuration again. Some settings can only change at a start; they keep their values until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from ..config import DISABLED, LoadedConfig, load
from ..counters import workers
from ..engine.ask import ResponseCache
from ..errors import FOREIGN_ERRORS, ConfigError
from .admission import Admission
from .auth.access import Access
from .observe.memory import Memory, set_allocator
from .observe.recording import Recording
from .services import GatewayServices, RunningRequests

if TYPE_CHECKING:
    from ..batch.durable.service import BatchService
    from ..store import Store

FIXED_SERVER: Final = ("port", "workers", "shutdown_seconds", "max_connections", "discover")
"""Settings of the server that are used at the start."""
FIXED_SECTIONS: Final = ("store", "valkey", "batches")
"""Sections that are used at the start: all workers must have the same database, and queues are opened once."""
TICK_SECONDS = 0.25
"""Seconds between two checks for silent and overdue streams: fine enough for timeouts of a few seconds."""
BATCH_STOP_SECONDS = 1.0
"""Seconds that calls of batches may continue when the gateway stops. Calls that have not ended by then run again later."""


class Lifecycle:
    """Starts, configures and stops the parts of a gateway. ``loaded`` is the configuration, ``batches`` the service of durable
    batches, None until it runs. ``starting``: the gateway is not open yet."""

    loaded: LoadedConfig

    def __init__(
        self,
        loaded: LoadedConfig,
        environment: Mapping[str, str],
        services: GatewayServices,
        access: Access,
        recording: Recording,
        requests: RunningRequests,
        admission: Admission,
    ) -> None:
        self.batches: BatchService | None = None
        self._environment = environment
        self._services = services
        self._access = access
        self._recording = recording
        self._requests = requests
        self._admission = admission
        self._cache = ResponseCache(0)
        self._memory = Memory()
        self.apply(loaded)

    # --- configuration

    def apply(self, loaded: LoadedConfig, starting: bool = True) -> None:
        """Applies a new configuration completely or not at all: everything that can fail is built before any state changes."""
        steps = self._access.prepare(loaded, starting=starting), self._recording.prepare(loaded)
        services, server = self._services, loaded.config.server
        services.pool.configure(loaded)
        for step in steps:
            step()
        self.loaded, services.server = loaded, server
        self._cache.resize(server.cache_bytes)
        services.cache = self._cache if any(route.cache_seconds for route in loaded.config.routes) else None

    def reload(self) -> None:
        """Reads the configuration again. If it is invalid, logs the reason and keeps the old configuration."""
        log = self._services.log
        try:
            loaded, fixed = load_again(self.loaded, self._environment)
            self.apply(loaded, starting=False)
        except ConfigError as error:
            log({"event": "reload_failed", "message": error.message})
        except FOREIGN_ERRORS as error:
            log({"event": "reload_failed", "message": f"{type(error).__name__}: {error}"[:300]})
        else:
            log({"event": "reloaded", "path": str(loaded.path), **({"needs_restart": fixed} if fixed else {})})

    # --- start and end

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Opens the parts, and closes them at the end."""
        services, recording = self._services, self._recording
        tasks, approvals = services.tasks, recording.approvals
        workers.join()
        set_allocator()
        async with services.pool:
            store = await self._open_store()
            if store is not None:
                await self._load_stored_keys(store)
                tasks.start("stored keys", partial(self._access.stored.watch, store, recording.store_state, services.log))
            tasks.start("approvals", approvals.run)
            tasks.start("clock", self._tick)
            try:
                if store is not None and self.loaded.config.batches.enabled:
                    self.batches = await self._open_batches(store)
                yield
            finally:
                if self.batches is not None:
                    await self.batches.stop(BATCH_STOP_SECONDS)
                await tasks.close()
                if self.batches is not None:
                    await self.batches.close()
                await approvals.close()
                if store is not None:
                    await store.close()
                recording.metrics.publish(len(self._requests.running))
                if recording.tracing is not None:
                    recording.tracing.close()

    async def check(self) -> None:
        """Raises a ConfigError if the gateway could not start: the database cannot be opened, or keys are missing."""
        store = await self._open_store()
        if store is not None:
            await self._load_stored_keys(store)
            await store.close()
            if self.loaded.config.batches.enabled:
                from .batch_runner import bucket_of

                bucket_of(self.loaded.config.batches, self._environment, self._services.log)

    async def _open_store(self) -> Store | None:
        """Opens the store, if one is configured. The store is imported here, because the import is slow."""
        if self.loaded.config.store.url == DISABLED:
            return None
        from .recording import TurnRecorders, open_store

        store = await open_store(self.loaded.config, self._environment, self._services.log)
        self._recording.store, self._recording.recorders = store, TurnRecorders(store)
        return store

    async def _open_batches(self, store: Store) -> BatchService:
        from .batch_runner import BatchRunner, open_batches

        runner = partial(BatchRunner, self._services, self._access, self._admission, self._recording)
        return await open_batches(self._services, self._access, store, self._environment, runner, self._requests.answers_live)

    async def _load_stored_keys(self, store: Store) -> None:
        """Loads the keys of the store and checks authentication again: only now is it known whether any keys exist."""
        try:
            await self._access.stored.refresh(store)
            self.apply(self.loaded)
        except BaseException:
            await store.close()
            raise
        state = self._access.authenticator.state
        if not state.usable:
            self._services.log({"event": "no_valid_key", "message": f"{state.summary}; {state.step}"})

    def stop(self, seconds: float) -> None:
        """Accepts no new work. Requests that still run after this many seconds end with an error."""
        self._requests.stopping = True
        self._recording.live.changed()
        asyncio.get_running_loop().call_later(seconds, self._requests.interrupt)

    # --- the clock

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
        services, requests = self._services, self._requests.running
        attempt, pool = services.tasks.attempt, services.pool
        now = services.clock()
        attempt("deadlines", pool.tick, now)
        for request in () if pool.late else list(requests):
            attempt("request", request.tick, now)
        attempt("memory", self._memory.tick, len(requests))
        attempt("metrics", self._recording.metrics.publish, len(requests))
        if requests:
            self._recording.live.changed()


def load_again(running: LoadedConfig, environment: Mapping[str, str]) -> tuple[LoadedConfig, list[str]]:
    """The new configuration, and the settings in it that need a restart. Those settings keep their current values.

    Refuses another ``server.host``: who may use the gateway without a key depends on where it listens.
    """
    loaded = load(running.path, environment, running.overrides)
    before, after = running.config, loaded.config
    if after.server.host != before.server.host:
        raise ConfigError(
            f"server.host is {after.server.host!r}, and the gateway listens on {before.server.host!r}; restart it to change that"
        )
    changed = [f"server.{name}" for name in FIXED_SERVER if getattr(after.server, name) != getattr(before.server, name)]
    for name in FIXED_SERVER:
        setattr(after.server, name, getattr(before.server, name))
    for section in FIXED_SECTIONS:
        old, new = getattr(before, section), getattr(after, section)
        changed += [f"{section}.{name}" for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
        setattr(after, section, old)
    return loaded, changed
