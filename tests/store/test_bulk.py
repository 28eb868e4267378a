"""Inserts of many rows at once: arrays on PostgreSQL, one run for each row on SQLite. Both store the same values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from store.tables import counted
from store.turns import asynchronous
from streamglot.batch.durable.model import Result
from streamglot.store.database import Database, schema
from streamglot.store.database.postgres import ROWS_PER_STATEMENT
from streamglot.store.database.sql import Insert
from streamglot.store.turns import EndingRow, TurnRow
from streamglot.store.writer import INSERTS

TEXTS = ["", " ", "NULL", "null", "{}", '{"a","b"}', "a,b", "it's", 'say "x"', "back\\slash", "line\nbreak\ttab", "%s $1 :name ?"]
TEXTS += ["ünïcödé", "日本語", "🙂👩‍👩‍👧‍👦", "\u202e right to left", "\x01\x7f", "\ufffd", "x" * 1_000_000]
BODIES = [b"", b"\0", b"\0\xff\\x00", b"\\x414243", bytes(range(256)), b"{}", b"x" * 2_000_000]
WHOLE = [0, 1, -1, 2**31 - 1, -(2**31)]
REAL = [0.0, -0.5, 1e-300, 1e300, 0.1 + 0.2, math.pi]


def item(number: int, **more: Any) -> dict[str, Any]:
    return {"batch_id": "b", "number": number, "line": number, "custom_id": None, "body": b"{}", **more}


def result(number: int, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"), 0)
    row = {"batch_id": "b", "number": number, "outcome": "succeeded", "line": b"{}", **counts}
    return {**row, "cost": 0.0, "attempts": 1, "at": 1.0, **more}


STEPS = INSERTS["steps"]
ITEMS = Insert("batch_items", tuple(schema.columns("batch_items")))
RESULTS = Insert("batch_results", Result.__struct_fields__)


async def stored(database: Database, table: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await database.fetch(f"SELECT {', '.join(names)} FROM {table} ORDER BY number")]


async def put(database: Database, insert: Insert, rows: list[dict[str, Any]]) -> int:
    return await database.write(lambda connection: connection.insert(insert, insert.tuples(rows)))


@asynchronous
async def test_every_value_comes_back_as_it_was(url: str) -> None:
    database = await Database.open(url)
    try:
        steps = [{"turn_id": "t", "number": number, "body": text} for number, text in enumerate(TEXTS)]
        assert await put(database, STEPS, steps) == len(steps)
        assert await stored(database, "steps", "body") == [(text,) for text in TEXTS]

        texts = [None, *(text for text in TEXTS if len(text) < 100)]
        rows = [item(number, custom_id=text, body=BODIES[number % len(BODIES)]) for number, text in enumerate(texts)]
        assert await put(database, ITEMS, rows) == len(rows)
        expected = [(row["custom_id"], row["body"]) for row in rows]
        assert await stored(database, "batch_items", "custom_id", "body") == expected

        numbers = [result(number, line=body) for number, body in enumerate(BODIES)]
        numbers += [result(100 + number, input_tokens=value) for number, value in enumerate(WHOLE)]
        numbers += [result(200 + number, cost=value, at=value) for number, value in enumerate(REAL)]
        assert await put(database, RESULTS, numbers) == len(numbers)
        names = ("line", "input_tokens", "cost", "at")
        assert await stored(database, "batch_results", *names) == [tuple(row[name] for name in names) for row in numbers]
    finally:
        await database.close()


@asynchronous
async def test_a_column_with_only_none_values_is_inserted(url: str) -> None:
    database = await Database.open(url)
    try:
        await put(database, ITEMS, [item(number) for number in range(3)])
        assert await stored(database, "batch_items", "custom_id") == [(None,)] * 3
        assert await put(database, ITEMS, []) == 0
    finally:
        await database.close()


@asynchronous
async def test_a_text_with_nul_is_refused_by_postgresql_and_leaves_nothing_behind(url: str) -> None:
    """Text is cleaned before it becomes a row. If it were not, the whole transaction must fail: no row may be changed silently."""
    database = await Database.open(url)
    try:
        rows = [item(0, custom_id="good"), item(1, custom_id="nul\0here")]
        if database.is_sqlite:
            await put(database, ITEMS, rows)
            assert await stored(database, "batch_items", "custom_id") == [("good",), ("nul\0here",)]
        else:
            with pytest.raises(Exception, match=r"invalid byte sequence|0x00"):
                await put(database, ITEMS, rows)
            assert await stored(database, "batch_items", "custom_id") == []
            await put(database, ITEMS, rows[:1])
            assert await stored(database, "batch_items", "custom_id") == [("good",)]
    finally:
        await database.close()


@asynchronous
async def test_more_rows_than_one_statement_takes_are_all_inserted(url: str) -> None:
    database = await Database.open(url)
    try:
        count = 2 * ROWS_PER_STATEMENT + 1
        rows = [item(number, custom_id=str(number)) for number in range(count)]
        assert await put(database, ITEMS, rows) == count
        assert await put(database, ITEMS, rows[:5]) == 0, "existing rows stay"
        assert await counted(database, "batch_items") == count
    finally:
        await database.close()


@asynchronous
async def test_rows_of_values_are_stored_like_rows_with_names(url: str) -> None:
    database = await Database.open(url)
    try:
        count = ROWS_PER_STATEMENT + 1
        rows = [result(number, line=BODIES[number % 6], cost=REAL[number % len(REAL)]) for number in range(count)]
        values = RESULTS.tuples(rows)
        assert values == [tuple(row[name] for name in Result.__struct_fields__) for row in rows]
        assert await put(database, RESULTS, rows) == count
        assert await put(database, RESULTS, rows[:3]) == 0, "existing rows stay"
        assert await database.write(lambda connection: connection.insert(RESULTS, [])) == 0
        assert await stored(database, "batch_results", *Result.__struct_fields__) == values
    finally:
        await database.close()


@pytest.mark.parametrize(("row", "table"), [(Result, "batch_results"), (TurnRow, "turns"), (EndingRow, "endings")])
def test_a_row_has_its_values_in_the_order_of_the_columns(row: type[Struct], table: str) -> None:
    assert row.__struct_fields__ == tuple(schema.columns(table))


@pytest.mark.parametrize("table", INSERTS)
def test_an_insert_names_columns_of_its_table(table: str) -> None:
    assert {*INSERTS[table].columns} <= {*schema.columns(table)}


@asynchronous
async def test_the_newest_of_two_writes_replaces_a_row(url: str) -> None:
    database = await Database.open(url)
    try:
        for body in ("one", "two"):
            rows = [{"turn_id": "t", "number": number, "body": f"{body} {number}"} for number in range(3)]
            await put(database, STEPS, rows)
        assert await stored(database, "steps", "body") == [("two 0",), ("two 1",), ("two 2",)]
    finally:
        await database.close()


@asynchronous
async def test_a_condition_selects_the_rows_that_are_inserted(url: str, tmp_path: Path) -> None:
    """Results of a batch that has ended are left out; those of the other batch are inserted by the same statement."""
    from batch_durable.queued import line, queued

    async with queued(url, tmp_path) as one:
        running, over = await one.imported([line(0), line(1)]), await one.imported([line(0)])

        await one.database.execute("UPDATE batches SET ended = 1.0 WHERE id = :id", id=over.id)
        results = [Result(over.id, 0, "succeeded", b"{}"), Result(running.id, 1, "succeeded", b"{}")]
        results.append(Result(running.id, 0, "succeeded", b"{}"))
        assert await one.queue.commit(results) == 2
        assert await one.queue.commit(results) == 0, "a result is written once"
        rows = await one.database.fetch("SELECT batch_id, number FROM batch_results ORDER BY number")
        assert [tuple(row) for row in rows] == [(running.id, 0), (running.id, 1)]
