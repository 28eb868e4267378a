"""The questions to people, so that every process can show and decide those of the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("suspended", sa.Boolean, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("decision", sa.Text),
        sa.Index("approvals_of_process", "process"),
    )
