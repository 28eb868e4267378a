"""Reads and fills the store of a shell from inside the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cli.shell import Shell
from streamglot.store import Store, StoreSettings, TurnDetail
from waiting import WAIT_SECONDS

T = TypeVar("T")


def database(shell: Shell) -> Path:
    return shell.home / ".local" / "share" / "streamglot" / "streamglot.db"


def in_store(shell: Shell, work: Callable[[Store], Awaitable[T]], *, raw: bool = False) -> T:
    """Runs the work. Its requests look for their history as long as it takes."""

    async def within() -> T:
        store = await Store.open(StoreSettings(url=f"sqlite:///{database(shell)}", raw=raw))
        try:
            return await work(store)
        finally:
            await store.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamglot.store.sessions.FIND_SECONDS", WAIT_SECONDS)
        return asyncio.run(within())


def turns(shell: Shell) -> list[TurnDetail]:
    """All of them, the newest first."""

    async def work(store: Store) -> list[TurnDetail]:
        found = [await store.queries.turn(summary.id) for summary in await store.queries.turns()]
        return [turn for turn in found if turn is not None]

    return in_store(shell, work)


def texts(turn: TurnDetail) -> list[str]:
    """The messages with their roles, up to and including the answer."""
    assert turn.request is not None
    assert turn.response is not None
    lines = [f"{message.role}: {message.text}" for message in turn.request.messages]
    return [*lines, *(f"answer: {choice.text}" for choice in turn.response.choices)]
