"""Invalid names and limits of keys, and errors that must not show secrets."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

import pytest

from store.turns import answer, ask, asynchronous, take, user
from streamglot.errors import RequestError
from streamglot.messages import TokenCounts
from streamglot.store import Store, StoreSettings
from streamglot.store.database.sql import NotUnique, PostgresError


@asynchronous
async def test_invalid_names_are_refused(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for name in ("", "  ", "a\nb", "a\x1b[2J", "a\u202eb", " a", "a\0", "x" * 65, "cli:me", "anonymous:1"):
        with pytest.raises(RequestError, match=r"a key cannot have the name .*; choose another one") as refused:
            await store.keys.add(name)
        assert refused.value.message.isprintable()
    await store.keys.add("Zoë of the clinic: anonymous " + "x" * 35)
    assert len(await store.keys.all()) == 1
    await store.close()


@asynchronous
async def test_invalid_limits_are_refused(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    whole = ("requests_per_minute", "tokens_per_minute", "concurrent", "budget_tokens")
    refused: list[dict[str, Any]] = [{name: number} for name in whole for number in (2**31, 10**20, -1)]
    refused += [{"budget_cost": cost} for cost in (math.inf, math.nan, -1.0)]
    refused += [{"budget_cost": 1.0, "budget_seconds": seconds} for seconds in (0.0, math.inf, math.nan)]
    for limits in (*refused, {"budget_seconds": 60.0}):
        with pytest.raises(RequestError, match=r"budget|per_minute|concurrent"):
            await store.keys.add("me", **limits)
    key, _ = await store.keys.add("me", budget_seconds=1e300, **dict.fromkeys(whole, 2**31 - 1))
    large = answer("x")
    large.usage = TokenCounts(2**31 - 1, 2**31 - 1)
    await take(store, ask(user("x")), large, caller="me")
    await store.writer.flush()
    assert (await store.keys.spent(key)).tokens == 2**32 - 2
    assert [over.key.name for over in await store.keys.budget_exceeded()] == ["me"]
    await store.close()


@asynchronous
async def test_a_database_error_does_not_show_the_values(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for question, value in (
        ("INSERT INTO keys (nothing) VALUES (:value)", "abcdef"),
        ("INSERT INTO epochs VALUES (CAST(:value AS INTEGER), NULL)", "abcdef"),
        ("INSERT INTO processes (id, seen) VALUES (:value, 1.0)", "abcdef"),
    ):
        given = {"value": value}
        with pytest.raises((sqlite3.Error, PostgresError, NotUnique)) as failed:
            await store.database.execute(question, **given)
        assert "abcdef" not in str(failed.value)
    await store.close()
