"""Statements that run often, or for many rows at once. They are compiled once: SQLAlchemy's work for each row and each run would
cost more than the database's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Connection, CursorResult, Table, bindparam, func, select

from . import asyncpg_statements
from .database import Database
from .engines import searchable
from .schema import TOTAL
from .sql_types import SqlColumns, SqlValue, SqlValues

ROWS_PER_STATEMENT: Final = 1_000
"""Rows per statement: some megabytes of contents, and far less overhead than rows."""


class BulkStatement:
    """SQLite runs the statement once for each row, inside the process. PostgreSQL is sent an insert of all rows as one
    statement with an array for each column, which is one plan and one run in place of thousands. Therefore the rows of an
    insert that updates existing rows must have different keys."""

    def __init__(
        self,
        database: Database,
        statement: Any,  # Any: an insert of either database, or another statement
        table: Table,
        names: Sequence[str] | None = None,
        where: Callable[[SqlColumns], ColumnElement[bool]] | None = None,
    ) -> None:
        """``names``: the parameters of a statement that is not an insert; None for an insert. ``where``: a function from the
        columns of new rows to the condition for inserting them, on PostgreSQL. SQLite has one writer, so that its caller can
        check the condition before."""
        inserts = names is None
        filled = [column.name for column in table.columns if column.autoincrement is not True and column.info != TOTAL]
        given = filled if names is None else list(names)
        self._database = database
        self._arrays = inserts and not database.is_sqlite
        if self._arrays:
            arrays = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in given]
            new = func.unnest(*arrays).table_valued(*given).render_derived("new")
            rows = select(*new.c) if where is None else select(*new.c).where(where(new.c))
            statement = statement.from_select(given, rows, include_defaults=False)
        compiled = statement.compile(dialect=database.dialect, column_keys=given if inserts and not self._arrays else None)
        self._sql = str(compiled)
        self._names = list(compiled.positiontup)
        self._fixed = {name: compiled.params[name] for name in self._names if name not in given}
        self._in_order: Callable[[Mapping[str, SqlValue]], SqlValues] = itemgetter(*self._names) if self._names else tuple
        self._given = given

    def rows(self, connection: Connection, **values: SqlValue) -> Sequence[Sequence[SqlValue]]:
        """Runs a query with these parameters. Returns its rows; their columns are identified by position only."""
        if self._database.is_sqlite:
            return self.one(connection, **values).all()
        return asyncpg_statements.fetch(connection, self._sql, self._values(values))

    def run(self, connection: Connection, **values: SqlValue) -> int:
        """Runs a statement that is not an insert, with these parameters. Returns how many rows it changed."""
        if self._database.is_sqlite:
            return self.one(connection, **values).rowcount
        return asyncpg_statements.run(connection, self._sql, self._values(values))

    def one(self, connection: Connection, **values: SqlValue) -> CursorResult[SqlValues]:
        """Runs a statement that is not an insert once, with these parameters. It costs more than ``rows`` and ``run``."""
        return connection.exec_driver_sql(self._sql, self._values(values))

    def _values(self, values: Mapping[str, SqlValue]) -> SqlValues:
        given = {**values, **self._fixed}
        return tuple(searchable(given[name]) for name in self._names)

    def execute(self, connection: Connection, rows: Iterable[Mapping[str, SqlValue]]) -> int:
        """Runs the statement for all rows. Returns how many rows an insert has added or changed."""
        rows, changed = list(rows), 0
        for begin in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[begin : begin + ROWS_PER_STATEMENT]
            if self._arrays:
                changed += asyncpg_statements.run(connection, self._sql, self._columns(some))
            else:
                changed += self._run_each(connection, self._rows(some))
        return changed

    def execute_tuples(self, connection: Connection, rows: Sequence[SqlValues]) -> int:
        """Does the same with rows that have their values in the order of the table's columns. It costs less than with mappings."""
        if not self._arrays and self._names[: len(self._given)] != self._given:
            return self.execute(connection, [dict(zip(self._given, row, strict=True)) for row in rows])
        changed, last = 0, tuple(self._fixed[name] for name in self._names[len(self._given) :])
        for begin in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[begin : begin + ROWS_PER_STATEMENT]
            if self._arrays:
                columns = dict(zip(self._given, map(list, zip(*some, strict=True)), strict=True)) | self._fixed
                changed += asyncpg_statements.run(connection, self._sql, self._in_order(columns))
            else:
                changed += self._run_each(connection, [row + last for row in some] if last else list(some))
        return changed

    def _run_each(self, connection: Connection, rows: list[SqlValues]) -> int:
        if self._database.is_sqlite:
            return connection.exec_driver_sql(self._sql, rows).rowcount
        asyncpg_statements.run_each(connection, self._sql, rows)
        return 0

    def _columns(self, rows: list[Mapping[str, SqlValue]]) -> SqlValues:
        fixed = self._fixed
        return tuple(fixed[name] if name in fixed else [row[name] for row in rows] for name in self._names)

    def _rows(self, rows: list[Mapping[str, SqlValue]]) -> list[SqlValues]:
        fixed, in_order = self._fixed, self._in_order
        return [in_order({**row, **fixed}) for row in rows] if fixed else [in_order(row) for row in rows]
