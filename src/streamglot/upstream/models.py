"""The models that upstreams list: fetched in the background when somebody asks for models, kept for an hour, and never a reason
to fail.

``/v1/models``, the page and ``streamglot models`` show these names. Routing does not depend on them: a name is served by the
upstream whose ``models`` match it, whether its list has come or not.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from ..dialects import dialect
from ..errors import StreamglotError
from ..json_types import JSON_ERRORS
from .http import read_whole
from .recorded import SCHEME
from .routing.routes import MODEL_CHARS
from .settings import Upstream

if TYPE_CHECKING:
    from .http.pool import ConnectionPool

FRESH_SECONDS: Final = 3600.0
"""Seconds for which a list is used before it is fetched again. Providers add a model every few weeks."""
AGAIN_SECONDS: Final = 60.0
"""Seconds before a list that could not be fetched is tried again."""
FETCH_SECONDS: Final = 20.0
"""Seconds for one list. Nobody waits for all of them."""
WAIT_SECONDS: Final = 5.0
"""Seconds that a person at the command line waits for lists that were never fetched."""
CLIENT_WAIT_SECONDS: Final = 2.0
"""Seconds that a client of a gateway waits for them. It lists models when it starts, and shows nothing meanwhile."""
LIST_BYTES: Final = 2**23
"""Bytes of one list: the largest known one has 500 models and 1 MB."""
LISTED_MODELS: Final = 10_000
"""Models of one list that are shown."""


class _Named(Struct):
    name: str = ""
    id: str = ""


class _Listing(Struct):
    """The two response formats in which upstreams list their models."""

    models: list[_Named] | None = None
    data: list[_Named] | None = None


class _Saved(Struct):
    """A list as it is saved for the next process. ``at`` is seconds since 1970."""

    at: float
    models: list[str]


def names_in(body: bytes) -> list[str] | None:
    """The names in a list of models; None if the body is none."""
    try:
        listed = msgspec.json.decode(body, type=_Listing)
    except JSON_ERRORS:
        return None
    if listed.models is None and listed.data is None:
        return None
    named = (one.id or one.name for one in (*(listed.data or ()), *(listed.models or ())))
    fitting = (name for name in named if name and len(name) <= MODEL_CHARS and name.isprintable())
    return list(dict.fromkeys(fitting))[:LISTED_MODELS]


def learns(upstream: Upstream) -> bool:
    """Whether the list of this upstream says more than its configuration: it serves patterns, and answers with its own key."""
    is_remote = bool(upstream.base_url) and not upstream.base_url.startswith(SCHEME)
    patterns = len(upstream.listed) < len(upstream.models) and not isinstance(upstream.models, dict)
    return is_remote and patterns and not upstream.pass_key and bool(dialect(upstream.dialect).model_list_path)


class ModelLists:
    """The lists of the upstreams of one process. ``directory``: where they are saved for the next process, if anywhere.
    ``version`` counts the lists that have come."""

    def __init__(
        self, connections: ConnectionPool, directory: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._connections = connections
        self._directory = directory
        self._clock = clock
        self.version = 0
        self._lists: dict[str, _Saved] = {}
        self._tried: dict[str, float] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}

    def models(self, upstream: Upstream) -> list[str]:
        """The models that this upstream listed, as far as is known now."""
        saved = self._lists.get(_identity(upstream))
        return saved.models if saved is not None else []

    def refresh(self, upstreams: Iterable[Upstream]) -> list[asyncio.Task[None]]:
        """Begins to fetch the lists that are missing or old. Returns the fetches of lists that were never seen."""
        missing = []
        for upstream in filter(learns, upstreams):
            id, now = _identity(upstream), self._clock()
            if id not in self._lists and (saved := self._load(id)) is not None:
                self._keep(id, saved)
            saved = self._lists.get(id)
            fetch = self._fetches.get(id)
            old = saved is None or not 0 <= now - saved.at < FRESH_SECONDS
            if fetch is None and old and not 0 <= now - self._tried.get(id, 0.0) < AGAIN_SECONDS:
                self._tried[id] = now
                fetch = self._fetches[id] = asyncio.ensure_future(self._fetch(id, upstream))
                fetch.add_done_callback(partial(self._fetched, id))
            if fetch is not None and saved is None:
                missing.append(fetch)
        return missing

    async def known(self, upstreams: Iterable[Upstream], seconds: float) -> None:
        """Waits until every list was fetched once, or has failed, at most for this time."""
        missing = self.refresh(upstreams)
        if missing:
            await asyncio.wait(missing, timeout=seconds)

    async def close(self) -> None:
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    # --- internals

    def _fetched(self, id: str, _: asyncio.Task[None]) -> None:
        del self._fetches[id]

    async def _fetch(self, id: str, upstream: Upstream) -> None:
        wire = dialect(upstream.dialect)
        with suppress(StreamglotError, OSError, TimeoutError, TypeError):  # TypeError: options that only requests have
            place = wire.model_list(upstream.base_url, upstream.key, **upstream.options)
            if place is None:
                return
            headers = {**place.headers, **upstream.headers}
            async with asyncio.timeout(FETCH_SECONDS):
                answer = await self._connections.get(upstream, place.url, headers)
                try:
                    body = await read_whole(answer, "the list of models", LIST_BYTES, "it is not shown")
                finally:
                    answer.close()
            names = names_in(body) if answer.status == 200 else None
            if names is not None:
                saved = _Saved(self._clock(), [wire.model_name(name) for name in names])
                self._keep(id, saved)
                self._save(id, saved)

    def _keep(self, id: str, saved: _Saved) -> None:
        self._lists[id] = saved
        self.version += 1

    def _load(self, id: str) -> _Saved | None:
        if self._directory is None:
            return None
        try:
            return msgspec.json.decode((self._directory / f"{id}.json").read_bytes(), type=_Saved)
        except (OSError, *JSON_ERRORS):
            return None

    def _save(self, id: str, saved: _Saved) -> None:
        if self._directory is None:
            return
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = self._directory / f"{id}.{os.getpid()}"
            draft.write_bytes(msgspec.json.encode(saved))
            draft.replace(self._directory / f"{id}.json")


def _identity(upstream: Upstream) -> str:
    """A name for the list of an upstream. It changes with the address and the account, and does not show the key."""
    facts = (upstream.dialect, upstream.base_url, upstream.key, *map(":".join, sorted(upstream.headers.items())))
    return hashlib.sha256("\n".join(facts).encode("utf-8", "replace")).hexdigest()[:32]
