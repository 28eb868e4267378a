"""Reduces the work for each turn and each look.

SQLite's index is updated when the process is idle instead of with every text; ``indexed`` is the number of the last indexed text.
A partial index finds the streams with readers or stop requests.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQLITE = (
    "DROP TRIGGER texts_added",
    "DROP TRIGGER texts_gone",
    "CREATE TABLE indexed (number INTEGER NOT NULL)",
    "INSERT INTO indexed SELECT coalesce(max(number), 0) FROM texts",
    "CREATE TRIGGER texts_gone AFTER DELETE ON texts WHEN old.number <= (SELECT number FROM indexed) BEGIN "
    "INSERT INTO search(search, rowid, body) VALUES ('delete', old.number, old.body); "
    # SQLite reuses the number of the newest text after its deletion
    "UPDATE indexed SET number = min(number, (SELECT coalesce(max(number), 0) FROM texts)); END",
)


def upgrade() -> None:
    asked_for = sa.text("last IS NULL AND wanted > 0")
    op.create_index("streams_asked_for", "streams", ["id"], sqlite_where=asked_for, postgresql_where=asked_for)
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        for statement in SQLITE:
            connection.exec_driver_sql(statement)
