"""Statements and connections: the same form for both databases.

A statement is plain SQL that both databases understand, with parameters by name. Three things are written in one form and sent in
the database's own:

    WHERE id = :id                      $1 on PostgreSQL
    WHERE id IN :ids, id NOT IN :ids    = ANY($1) and <> ALL($1) on PostgreSQL; a parameter for each value on SQLite
    FOR UPDATE, FOR SHARE, SKIP LOCKED  nothing on SQLite, which has one writer at a time

The work of a transaction is a coroutine that awaits the methods of its ``Connection``. On SQLite it runs in a thread, where no method
ever waits; on PostgreSQL it runs in the event loop.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

SqlValue: TypeAlias = Any  # Any: text, a number, bytes, a list of these, or None, as the column has it
SqlValues: TypeAlias = tuple[Any, ...]  # Any: the same, for the values of one row in the order of their columns
SqlRow: TypeAlias = dict[str, Any]  # Any: the same, for the values of one row by the names of their columns
DatabaseRow: TypeAlias = Any  # Any: a named tuple of the columns of a query. SQLite returns truth values as 0 and 1

STATEMENTS: Final = 1_000
"""Statements whose form for the database is remembered. The source has about 200; those of lists depend on their filters."""
_PARAMETER: Final = re.compile(r"(?<![:\w]):(\w+)")
_IN: Final = re.compile(r"(NOT )?IN :(\w+)")
_LOCKS: Final = re.compile(r"\s+FOR (?:NO KEY UPDATE|UPDATE|SHARE)(?: SKIP LOCKED)?")


class NotUnique(Exception):
    """The database refused a row because another one has its key."""


class PostgresError(Exception):
    """A statement or a connection of PostgreSQL failed. ``state`` is the SQLSTATE; empty if the driver failed, which is the case
    when it lost the connection."""

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class Insert:
    """Adds many rows with these columns. SQLite runs it once for each row, inside the process. PostgreSQL is sent all rows as one
    statement with an array for each column, which is one plan and one run in place of thousands. Therefore the rows of an insert that
    updates existing rows must have different keys.

    ``end`` says what happens to rows whose key exists. ``where`` is a condition for new rows, on PostgreSQL only. SQLite has one
    writer, so that its caller can check the condition before.
    """

    def __init__(self, table: str, columns: Sequence[str], end: str = "ON CONFLICT DO NOTHING", *, where: str = "") -> None:
        self.table, self.columns = table, tuple(columns)
        self.end, self.where = end, where
        self._in_order = itemgetter(*self.columns)

    def tuples(self, rows: Iterable[Mapping[str, SqlValue]]) -> list[SqlValues]:
        """The values of these rows in the order of the columns."""
        return list(map(self._in_order, rows))

    @cached_property
    def sqlite(self) -> str:
        places = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES ({places}) {self.end}"


class Connection(Protocol):
    """A connection inside a transaction, or for statements of which each is one."""

    is_sqlite: bool

    async def fetch(self, sql: str, /, **values: SqlValue) -> list[DatabaseRow]:
        """The rows of a query, as named tuples."""
        ...

    async def execute(self, sql: str, /, **values: SqlValue) -> int:
        """Runs a statement and returns how many rows it changed."""
        ...

    async def execute_each(self, sql: str, rows: Sequence[SqlRow]) -> None:
        """Runs a statement once for each of these parameters, in one round trip."""
        ...

    async def insert(self, insert: Insert, rows: Sequence[SqlValues]) -> int:
        """Adds rows that have their values in the order of the columns. Returns how many rows were added or changed."""
        ...

    async def configure(self, setting: str) -> None:
        """Runs a setting of PostgreSQL, once per connection. Does nothing on SQLite."""
        ...


def insert_row(table: str, columns: Iterable[str], end: str = "") -> str:
    """The statement that adds one row."""
    names = list(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)}) {end}"


def assignments(columns: Iterable[str]) -> str:
    """What sets these columns in an UPDATE, to the parameters of the same names."""
    return ", ".join(f"{name} = :{name}" for name in columns)


def prefix_pattern(beginning: str) -> str:
    """The pattern for ``LIKE :pattern ESCAPE '/'`` of texts that begin with this one."""
    return re.sub(r"([/%_])", r"/\1", beginning) + "%"


def searchable(value: SqlValue) -> SqlValue:
    """The value in a form that both databases accept. They hold neither NUL (PostgreSQL) nor half of a surrogate pair (both), which
    come from clients and command lines. The replacement is a character that no id, name or word contains, so the query finds nothing.
    Bulk rows were cleaned when they were made."""
    if isinstance(value, list | tuple):
        return [searchable(item) for item in value]
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@lru_cache(STATEMENTS)
def for_postgres(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with numbered parameters, and their names in this order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    sql = _IN.sub(lambda found: f"<> ALL(:{found[2]})" if found[1] else f"= ANY(:{found[2]})", sql)
    return _PARAMETER.sub(number, sql), tuple(names)


def for_sqlite(sql: str, values: Mapping[str, SqlValue]) -> tuple[str, Mapping[str, SqlValue]]:
    """The statement without locks, and with a parameter for each value of its lists."""
    sql, lists = _without_locks(sql)
    if not lists:
        return sql, values
    given = dict(values)
    for name in lists:
        given |= {f"{name}_{place}": value for place, value in enumerate(given.pop(name))}
    return _IN.sub(lambda found: f"{found[1] or ''}IN ({_places(found[2], values)})", sql), given


@lru_cache(STATEMENTS)
def _without_locks(sql: str) -> tuple[str, frozenset[str]]:
    return _LOCKS.sub("", sql), frozenset(found[2] for found in _IN.finditer(sql))


def _places(name: str, values: Mapping[str, SqlValue]) -> str:
    return ", ".join(f":{name}_{place}" for place in range(len(values[name])))


@lru_cache(STATEMENTS)
def row_class(columns: tuple[str, ...]) -> Any:  # Any: a class that is made for these columns
    """The named tuple for rows with these columns."""
    return namedtuple("Row", columns, rename=True)  # the columns are known when the query has run
