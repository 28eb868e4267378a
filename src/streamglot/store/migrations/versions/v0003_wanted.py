"""Streams that somebody reads while they run: their chunks are written more often."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("wanted", sa.Double, nullable=False, server_default="0"))
