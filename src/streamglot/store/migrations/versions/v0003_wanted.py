"""Adds the time at which somebody last read a running stream. The chunks of such streams are written more often."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("wanted", sa.Double, nullable=False, server_default="0"))
