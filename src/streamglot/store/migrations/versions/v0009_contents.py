"""What repeats is stored once: tools, settings and long texts are contents, to which turns and messages refer.

The requests of existing turns become contents as they are.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

HASH_BYTES = 20
ROWS_PER_BATCH = 500


def upgrade() -> None:
    op.create_table(
        "contents",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "pieces",
        sa.Column("owner", sa.LargeBinary, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    for table, id, old, new in (
        ("turns", "id", "request", "settings"),
        ("endings", "turn_id", "upstream_request", "upstream_settings"),
    ):
        op.add_column(table, sa.Column(new, sa.LargeBinary))
        _move(op.get_bind(), table, id, old, new)
        op.drop_column(table, old)
    if op.get_bind().dialect.name == "postgresql":
        # the list of entries that are not in the index proper yet, in KB: the smallest
        op.execute("ALTER INDEX texts_search SET (gin_pending_list_limit = 64)")


def _move(connection: sa.Connection, table: str, id: str, old: str, new: str) -> None:
    question = sa.text(
        f"SELECT {id} AS id, {old} AS body FROM {table} WHERE {id} > :after AND {old} IS NOT NULL ORDER BY {id} LIMIT :most"
    )
    content = sa.text("INSERT INTO contents (hash, body) VALUES (:hash, :body) ON CONFLICT DO NOTHING")
    change = sa.text(f"UPDATE {table} SET {new} = :hash WHERE {id} = :id")
    after = ""
    while rows := connection.execute(question, {"after": after, "most": ROWS_PER_BATCH}).all():
        after = rows[-1].id
        found = [
            {"id": row.id, "hash": hashlib.blake2b(row.body.encode(), digest_size=HASH_BYTES).digest(), "body": row.body.encode()}
            for row in rows
        ]
        connection.execute(content, found)
        connection.execute(change, found)
