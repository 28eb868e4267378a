"""Durable batches: files, batches, their items, results and jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("batch_id", sa.Text),
        sa.Index("files_of_owner", "owner", "created"),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("api", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("input_file", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("closing", sa.Text, nullable=False, server_default=""),
        sa.Column("completion_window", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("errors", sa.Text),
        sa.Column("output_file", sa.Text),
        sa.Column("error_file", sa.Text),
        sa.Column("model", sa.Text, nullable=False, server_default=""),
        sa.Column("total", sa.Integer, nullable=False, server_default="0"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("process", sa.Text),
        sa.Column("lease", sa.Double),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("results_expire", sa.Double),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("totals", sa.Text),
        sa.Column("ended", sa.Double),
        sa.Index("batches_of_owner", "owner", "created"),
        sa.Index("batches_by_end", "ended"),
    )
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("custom_id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("batch_id", "custom_id", name="batch_items_by_custom_id"),
    )
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("line", sa.LargeBinary, nullable=False),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("reasoning_tokens", sa.Integer, nullable=False),
        sa.Column("cost", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "batch_jobs",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("first", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("process", sa.Text),
        sa.Column("lease", sa.Double),
        sa.Column("remote", sa.Text),
        sa.Column("succeeded", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("errored", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("canceled", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("expired", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("input_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("output_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("output_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("error_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("retried", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("cost", sa.Double, nullable=False, server_default="0"),
        sa.Index("batch_jobs_by_state", "state", "priority", "first"),
    )
