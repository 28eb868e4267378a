"""Adds full-text search: the words of each turn, and the database's own kind of index on them."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT_CHARS = 65_536
ROWS_PER_BATCH = 500

SQLITE = (
    "CREATE VIRTUAL TABLE search USING fts5(body, content='texts', content_rowid='number')",
    "CREATE TRIGGER texts_added AFTER INSERT ON texts BEGIN INSERT INTO search(rowid, body) VALUES (new.number, new.body); END",
    "CREATE TRIGGER texts_gone AFTER DELETE ON texts BEGIN "
    "INSERT INTO search(search, rowid, body) VALUES ('delete', old.number, old.body); END",
)
POSTGRESQL = ("CREATE INDEX texts_search ON texts USING gin (to_tsvector('simple', body))",)


def upgrade() -> None:
    op.create_table(
        "texts",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.UniqueConstraint("turn_id", name="texts_of_turn"),
    )
    connection = op.get_bind()
    for statement in SQLITE if connection.dialect.name == "sqlite" else POSTGRESQL:
        connection.exec_driver_sql(statement)
    _fill(connection)


def _fill(connection: sa.Connection) -> None:
    """Adds the words of existing turns: the last user message and the answer."""
    texts = sa.table("texts", sa.column("turn_id"), sa.column("body"))
    question = sa.text(
        "SELECT turns.id, asked.body, said.body FROM turns "
        "LEFT JOIN nodes ON nodes.hash = turns.node LEFT JOIN messages AS asked ON asked.hash = nodes.message "
        "LEFT JOIN answers ON answers.turn_id = turns.id AND answers.choice = 0 "
        "LEFT JOIN messages AS said ON said.hash = answers.message WHERE turns.id > :after ORDER BY turns.id LIMIT :most"
    )
    after = ""
    while rows := connection.execute(question, {"after": after, "most": ROWS_PER_BATCH}).all():
        after = rows[-1][0]
        words = [{"turn_id": row[0], "body": f"{_words(row[1])}\n{_words(row[2])}".strip()[:TEXT_CHARS]} for row in rows]
        found = [row for row in words if row["body"]]
        if found:
            connection.execute(sa.insert(texts), found)


def _words(body: str | None) -> str:
    parts: list[dict[str, str]] = json.loads(body)["parts"] if body else []
    return "\n".join(part["text"] for part in parts if part["type"] == "text" and part.get("text")).replace("\0", "").lower()
