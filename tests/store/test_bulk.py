"""Inserts of many rows at once: arrays on PostgreSQL, one run for each row on SQLite. Both store the same values."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from sqlalchemy import Connection, Table, func, select

from store.turns import asynchronous
from streamglot.batch.model import Result
from streamglot.store import schema
from streamglot.store.batch_schema import batch_items, batch_results, batches
from streamglot.store.bulk import ROWS_PER_STATEMENT, BulkStatement
from streamglot.store.database import Database
from streamglot.store.turn_rows import EndingRow, TurnRow

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


async def stored(database: Database, table: Any, *names: str) -> list[tuple[Any, ...]]:
    rows = await database.fetch(select(*(table.c[name] for name in names)).order_by(table.c.number))
    return [tuple(row) for row in rows]


@asynchronous
async def test_every_value_comes_back_as_it_was(url: str) -> None:
    database = await Database.open(url)
    try:
        steps = [{"turn_id": "t", "number": number, "body": text} for number, text in enumerate(TEXTS)]
        insert = BulkStatement(database, database.insert_new(schema.steps), schema.steps)
        assert await database.write(lambda connection: insert.execute(connection, steps)) == len(steps)
        assert await stored(database, schema.steps, "body") == [(text,) for text in TEXTS]

        texts = [None, *(text for text in TEXTS if len(text) < 100)]
        rows = [item(number, custom_id=text, body=BODIES[number % len(BODIES)]) for number, text in enumerate(texts)]
        insert = BulkStatement(database, database.insert_new(batch_items), batch_items)
        assert await database.write(lambda connection: insert.execute(connection, rows)) == len(rows)
        expected = [(row["custom_id"], row["body"]) for row in rows]
        assert await stored(database, batch_items, "custom_id", "body") == expected

        numbers = [result(number, line=body) for number, body in enumerate(BODIES)]
        numbers += [result(100 + number, input_tokens=value) for number, value in enumerate(WHOLE)]
        numbers += [result(200 + number, cost=value, at=value) for number, value in enumerate(REAL)]
        insert = BulkStatement(database, database.insert_new(batch_results), batch_results)
        assert await database.write(lambda connection: insert.execute(connection, numbers)) == len(numbers)
        names = ("line", "input_tokens", "cost", "at")
        assert await stored(database, batch_results, *names) == [tuple(row[name] for name in names) for row in numbers]
    finally:
        await database.close()


@asynchronous
async def test_a_column_with_only_none_values_is_inserted(url: str) -> None:
    database = await Database.open(url)
    try:
        insert = BulkStatement(database, database.insert_new(batch_items), batch_items)
        await database.write(lambda connection: insert.execute(connection, [item(number) for number in range(3)]))
        assert await stored(database, batch_items, "custom_id") == [(None,)] * 3
        assert await database.write(lambda connection: insert.execute(connection, [])) == 0
    finally:
        await database.close()


@asynchronous
async def test_a_text_with_nul_is_refused_by_postgresql_and_leaves_nothing_behind(url: str) -> None:
    """Text is cleaned before it becomes a row. If it were not, the whole transaction must fail: no row may be changed silently."""
    database = await Database.open(url)
    try:
        insert = BulkStatement(database, database.insert_new(batch_items), batch_items)
        rows = [item(0, custom_id="good"), item(1, custom_id="nul\0here")]
        if database.is_sqlite:
            await database.write(lambda connection: insert.execute(connection, rows))
            assert await stored(database, batch_items, "custom_id") == [("good",), ("nul\0here",)]
        else:
            with pytest.raises(Exception, match=r"invalid byte sequence|0x00"):
                await database.write(lambda connection: insert.execute(connection, rows))
            assert await stored(database, batch_items, "custom_id") == []
            await database.write(lambda connection: insert.execute(connection, rows[:1]))
            assert await stored(database, batch_items, "custom_id") == [("good",)]
    finally:
        await database.close()


@asynchronous
async def test_more_rows_than_one_statement_takes_are_all_inserted(url: str) -> None:
    database = await Database.open(url)
    try:
        insert = BulkStatement(database, database.insert_new(batch_items), batch_items)
        count = 2 * ROWS_PER_STATEMENT + 1
        rows = [item(number, custom_id=str(number)) for number in range(count)]
        assert await database.write(lambda connection: insert.execute(connection, rows)) == count
        assert await database.write(lambda connection: insert.execute(connection, rows[:5])) == 0, "existing rows stay"
        assert (await database.fetch(select(func.count()).select_from(batch_items)))[0][0] == count
    finally:
        await database.close()


@asynchronous
async def test_rows_of_values_are_stored_like_rows_with_names(url: str) -> None:
    database = await Database.open(url)
    try:
        insert = BulkStatement(database, database.insert_new(batch_results), batch_results)
        count = ROWS_PER_STATEMENT + 1
        rows = [result(number, line=BODIES[number % 6], cost=REAL[number % len(REAL)]) for number in range(count)]
        values = [tuple(row[column.name] for column in batch_results.columns) for row in rows]
        assert await database.write(lambda connection: insert.execute_tuples(connection, values)) == count
        assert await database.write(lambda connection: insert.execute_tuples(connection, values[:3])) == 0, "existing rows stay"
        assert await database.write(lambda connection: insert.execute_tuples(connection, [])) == 0
        names = tuple(column.name for column in batch_results.columns)
        assert await stored(database, batch_results, *names) == values
    finally:
        await database.close()


@pytest.mark.parametrize(("row", "table"), [(Result, batch_results), (TurnRow, schema.turns), (EndingRow, schema.endings)])
def test_a_row_has_its_values_in_the_order_of_the_columns(row: type[Struct], table: Table) -> None:
    assert row.__struct_fields__ == tuple(column.name for column in table.columns)


@asynchronous
async def test_the_newest_of_two_writes_replaces_a_row(url: str) -> None:
    database = await Database.open(url)
    try:
        step = database.insert(schema.steps)
        latest = step.on_conflict_do_update(index_elements=["turn_id", "number"], set_={"body": step.excluded.body})
        insert = BulkStatement(database, latest, schema.steps)
        for body in ("one", "two"):
            rows = [{"turn_id": "t", "number": number, "body": f"{body} {number}"} for number in range(3)]
            await database.write(partial(insert.execute, rows=rows))
        assert await stored(database, schema.steps, "body") == [("two 0",), ("two 1",), ("two 2",)]
    finally:
        await database.close()


@asynchronous
async def test_a_condition_selects_the_rows_that_are_inserted(url: str, tmp_path: Path) -> None:
    """Results of a batch that has ended are left out; those of the other batch are inserted by the same statement."""
    from batch_durable.queued import line, queued

    async with queued(url, tmp_path) as one:
        running, over = await one.imported([line(0), line(1)]), await one.imported([line(0)])

        def end(connection: Connection) -> None:
            connection.execute(batches.update().where(batches.c.id == over.id).values(ended=1.0))

        await one.database.write(end)
        results = [Result(over.id, 0, "succeeded", b"{}"), Result(running.id, 1, "succeeded", b"{}")]
        results.append(Result(running.id, 0, "succeeded", b"{}"))
        assert await one.queue.commit(results) == 2
        assert await one.queue.commit(results) == 0, "a result is written once"
        rows = await one.database.fetch(select(batch_results.c.batch_id, batch_results.c.number).order_by(batch_results.c.number))
        assert [tuple(row) for row in rows] == [(running.id, 0), (running.id, 1)]
