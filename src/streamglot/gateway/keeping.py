"""What is kept of an exchange: its session, its turn, and its stream for whoever wants to go on with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .config import Config
from .keys import LOOPBACK

if TYPE_CHECKING:
    from ..store import Store

NOTHING: Final = "none"
"""The ``store.url`` of who wants nothing kept."""


async def open_store(config: Config, environment: Mapping[str, str], say: Callable[[Mapping[str, Any]], None]) -> Store | None:
    """The store that the configuration wants. It is loaded here, because who keeps nothing need not wait for it."""
    wanted = config.store
    if wanted.url == NOTHING:
        return None
    from ..store import Store, StoreSettings, ValkeyBuffer, default_url

    content = config.server.host in LOOPBACK if wanted.content is None else wanted.content
    store = await Store.open(StoreSettings(url=wanted.url or default_url(environment), content=content, raw=wanted.raw), say)
    if config.valkey.url:
        await store.buffer.close()
        store.buffer = ValkeyBuffer(config.valkey.url)
    return store
