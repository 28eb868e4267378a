"""What Alembic runs: the versions on the connection that it is given, inside that connection's transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
