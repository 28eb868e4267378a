"""Less to do for each turn and each look.

The index of SQLite follows its texts in quiet moments instead of at every one of them: ``indexed`` says how far it is. Streams
of which somebody wants something are found without a look at all the others.
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
    # the number of the newest one is given again when it is gone
    "UPDATE indexed SET number = min(number, (SELECT coalesce(max(number), 0) FROM texts)); END",
)


def upgrade() -> None:
    asked_for = sa.text("last IS NULL AND wanted > 0")
    op.create_index("streams_asked_for", "streams", ["id"], sqlite_where=asked_for, postgresql_where=asked_for)
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        for statement in SQLITE:
            connection.exec_driver_sql(statement)
