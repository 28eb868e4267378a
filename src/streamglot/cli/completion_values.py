"""Completions for ids and names. The list is empty if the store cannot be read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .store_view import StoreView

MAX_VALUES: Final = 50
"""The number of conversations and turns that are offered: more do not fit on a screen."""


def models(incomplete: str) -> list[str]:
    """Returns the models that are known without a request to any upstream."""
    from ..config import load
    from ..errors import StreamglotError
    from ..upstream.local import ALIAS, NAME

    try:
        named = [model for upstream in load().config.upstreams.values() for model in upstream.listed]
    except StreamglotError:
        named = []
    return [name for name in (NAME, ALIAS, "replay", *named) if name.startswith(incomplete)]


def sessions(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(session.id, session.title) for session in await view.queries.sessions(limit=MAX_VALUES)]

    return _offered(incomplete, work)


def turns(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(turn.id, turn.title) for turn in await view.queries.turns()]

    return _offered(incomplete, work)


def keys(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(key.name, key.shown) for key in await view.keys.all()]

    return _offered(incomplete, work)


def endings(incomplete: str) -> list[str]:
    from ..store import ENDINGS
    from .commands.logs import STILL_RUNNING

    return [name for name in (*ENDINGS, STILL_RUNNING) if name.startswith(incomplete)]


def dialects(incomplete: str) -> list[str]:
    from ..dialects import DIALECTS

    return [name for name in DIALECTS if name.startswith(incomplete)]


def _offered(incomplete: str, work: Callable[[StoreView], Awaitable[list[tuple[str, str]]]]) -> list[tuple[str, str]]:
    from ..errors import StreamglotError
    from .output.table import one_line
    from .store_view import reading

    try:
        return [(name, one_line(about)) for name, about in reading(work) if name.startswith(incomplete)]
    except (StreamglotError, ImportError, OSError):
        return []
