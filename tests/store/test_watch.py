"""Queries that are repeated only when the database has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Executable, text

from store.turns import asynchronous
from streamglot.store import Database
from streamglot.store.database import StoreUnavailable, Watch
from streamglot.store.sql_types import DatabaseRow


@asynchronous
async def test_rows_that_change_during_a_look_are_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    watch = Watch(database, text("SELECT 1"))
    fetch = database.fetch

    async def changed_meanwhile(question: Executable) -> Sequence[DatabaseRow]:
        rows = await fetch(question)
        watch.forget()
        return rows

    monkeypatch.setattr(database, "fetch", changed_meanwhile)
    assert await watch.look() is not None
    monkeypatch.setattr(database, "fetch", fetch)
    assert await watch.look() is not None, "it was changed"
    assert await watch.look() is None
    await database.close()


@asynchronous
async def test_a_look_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    watch = Watch(database, text("SELECT 1"))

    async def failing(_: Executable) -> Sequence[DatabaseRow]:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(database, "fetch", failing)
        with pytest.raises(StoreUnavailable):
            await watch.look()
    assert await watch.look() is not None
    await database.close()
