"""Creates the tables of sessions, turns, messages, keys and resumable streams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("born", sa.Text, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("recovered", sa.Double),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
    )
    op.create_index("sessions_of_caller", "sessions", ["caller", "started"])
    op.create_table(
        "messages",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("parent", sa.LargeBinary),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("probe", sa.Boolean, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("node", sa.LargeBinary),
        sa.Column("asked", sa.LargeBinary),
        sa.Column("response_id", sa.Text, nullable=False, server_default=""),
        sa.Column("retrievable", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("wish", sa.Text),
    )
    op.create_index("turns_by_time", "turns", ["started"])
    op.create_index("turns_of_caller", "turns", ["caller", "started"])
    op.create_index("turns_of_session", "turns", ["session_id", "started"])
    op.create_index("turns_of_process", "turns", ["process"])
    op.create_index("turns_by_asked", "turns", ["asked"])
    op.create_index("turns_by_response", "turns", ["response_id"])
    op.create_table(
        "withdrawals",
        sa.Column("turn_id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "endings",
        sa.Column("turn_id", sa.Text, primary_key=True),
        sa.Column("ended", sa.Double, nullable=False),
        sa.Column("ending", sa.Text, nullable=False),
        sa.Column("error_code", sa.Text, nullable=False, server_default=""),
        sa.Column("error", sa.Text),
        sa.Column("response_id", sa.Text, nullable=False, server_default=""),
        sa.Column("response", sa.Text),
        sa.Column("tip", sa.LargeBinary),
        sa.Column("upstream", sa.Text, nullable=False, server_default=""),
        sa.Column("upstream_dialect", sa.Text, nullable=False, server_default=""),
        sa.Column("upstream_model", sa.Text, nullable=False, server_default=""),
        sa.Column("upstream_request", sa.Text),
        sa.Column("upstream_node", sa.LargeBinary),
        sa.Column("input_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
        sa.Column("usage", sa.Text),
        sa.Column("cost", sa.Double),
        sa.Column("timings", sa.Text),
        sa.Column("verdicts", sa.Text),
        sa.Column("more", sa.Text),
    )
    op.create_index("endings_by_response", "endings", ["response_id"])
    op.create_index("endings_by_tip", "endings", ["tip"])
    op.create_table(
        "answers",
        sa.Column("turn_id", sa.Text, primary_key=True),
        sa.Column("choice", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("echoes", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "states",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("provider", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "frames",
        sa.Column("turn_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("shown", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("requests_per_minute", sa.Integer, nullable=False),
        sa.Column("tokens_per_minute", sa.Integer, nullable=False),
        sa.Column("concurrent", sa.Integer, nullable=False),
        sa.Column("budget_cost", sa.Double),
        sa.Column("budget_tokens", sa.Integer),
        sa.Column("budget_seconds", sa.Double),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("revoked", sa.Double),
        sa.UniqueConstraint("name", name="keys_by_name"),
        sa.UniqueConstraint("hash", name="keys_by_hash"),
    )
    op.create_table(
        "streams",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("last", sa.Integer),
        sa.Column("stopped", sa.Boolean, nullable=False),
        sa.Column("head", sa.Text, nullable=False),
    )
    op.create_index("streams_by_time", "streams", ["seen"])
    op.create_table(
        "chunks",
        sa.Column("stream_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "epochs",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
    )
