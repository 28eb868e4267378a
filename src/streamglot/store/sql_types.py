"""The types of statements, and of what the database is given and returns; and the limit of a statement.

SQLAlchemy knows the types of columns for mapped classes only. The store has tables, whose columns are chosen by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, literal_column
from sqlalchemy.sql.base import ReadOnlyColumnCollection

if TYPE_CHECKING:  # only the dialect in use is loaded
    from sqlalchemy.dialects import postgresql, sqlite

# Any: text, a number, bytes or None, as the table declares it; the type checker does not see that
SqlValue: TypeAlias = Any
SqlValues: TypeAlias = tuple[Any, ...]  # Any: the same, for the values of one row in the order of their columns
DatabaseRow: TypeAlias = Row[Any]  # Any: the same, for a row whose columns have names
Query: TypeAlias = Select[Any]  # Any: the same, for the statement that returns such rows
SqlRow: TypeAlias = dict[str, Any]  # Any: the same, for the values of one row by the names of their columns
SqlParameters: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # Any: the same, for values by their names
SqlColumns: TypeAlias = ReadOnlyColumnCollection[str, ColumnElement[Any]]  # Any: the same, for the columns of a table
UpsertStatement: TypeAlias = "sqlite.Insert | postgresql.Insert"
"""An insert that supports ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""


def at_most(question: Query, rows: int) -> Query:
    """The first rows of the question. The number is a part of the statement: for a parameter, PostgreSQL plans as if a tenth of all
    rows were wanted."""
    return question.limit(literal_column(str(int(rows))))
