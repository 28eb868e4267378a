"""Every query on the way of a request, and the first page of every list, reads a bounded number of rows.

Indexes begin with all columns that a query compares and end with the id of the turn, which sorts by time. Triggers keep the running
turns, the totals of sessions, and what stored keys spent. The search index knows the caller of each text, and on PostgreSQL also its
place in time: a block of 1,024 texts.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

INDEXES = (
    *("turns_of_caller", "turns_of_session", "turns_of_process", "turns_by_asked", "turns_by_response"),
    *("endings_by_response", "endings_by_tip", "sessions_of_caller"),
)
"""Indexes that others replace."""
FILL = (
    "UPDATE turns SET named = true WHERE session_id IN (SELECT id FROM sessions WHERE name <> '')",
    "UPDATE endings SET (session_id, caller, named) = (SELECT session_id, caller, named FROM turns WHERE turns.id = endings.turn_id) "
    "WHERE turn_id IN (SELECT id FROM turns)",
    "UPDATE answers SET echo_session = (SELECT session_id FROM turns WHERE turns.id = answers.turn_id) WHERE echoes AND choice = 0",
    "INSERT INTO running SELECT id, process FROM turns WHERE id NOT IN (SELECT turn_id FROM endings)",
    "UPDATE sessions SET (turns, updated, input_tokens, output_tokens, cost) = (SELECT count(*), coalesce(max(turns.started), 0), "
    "coalesce(sum(endings.input_tokens), 0), coalesce(sum(endings.output_tokens), 0), sum(endings.cost) FROM turns "
    "LEFT JOIN endings ON endings.turn_id = turns.id WHERE turns.session_id = sessions.id AND NOT turns.probe)",
    "UPDATE sessions SET title = coalesce((SELECT title FROM turns WHERE turns.session_id = sessions.id AND NOT probe AND title <> '' "
    "ORDER BY id LIMIT 1), '')",
)
SPENT = (
    "INSERT INTO spending SELECT turns.caller, {size}, {at}, count(*), "
    "sum(CAST(coalesce(endings.input_tokens, 0) AS BIGINT) + coalesce(endings.output_tokens, 0)), sum(coalesce(endings.cost, 0)) "
    "FROM turns JOIN endings ON endings.turn_id = turns.id WHERE turns.caller IN (SELECT name FROM keys) GROUP BY 1, 3"
)
SESSION = (
    "UPDATE sessions SET turns = turns + 1, "
    "updated = CASE WHEN updated < new.started THEN new.started ELSE updated END, "
    "title = CASE WHEN title = '' THEN new.title ELSE title END WHERE id = new.session_id"
)
SPEND = (
    "INSERT INTO spending SELECT keys.name, sizes.size, {at}, {turns}, {tokens}, {cost} "
    "FROM keys JOIN turns ON turns.id = new.turn_id "
    "CROSS JOIN (SELECT 0 AS size UNION ALL SELECT 60 UNION ALL SELECT 86400) AS sizes WHERE keys.name = new.caller "
    "ON CONFLICT (caller, size, at) DO UPDATE SET turns = spending.turns + excluded.turns, tokens = spending.tokens + excluded.tokens, "
    "cost = spending.cost + excluded.cost"
)
NEW = {
    "turns": "1",
    "tokens": "CAST(coalesce(new.input_tokens, 0) AS BIGINT) + coalesce(new.output_tokens, 0)",
    "cost": "coalesce(new.cost, 0)",
}
CHANGED = {
    "turns": "0",
    "tokens": f"{NEW['tokens']} - coalesce(old.input_tokens, 0) - coalesce(old.output_tokens, 0)",
    "cost": "coalesce(new.cost, 0) - coalesce(old.cost, 0)",
}
USED = (
    "UPDATE sessions SET input_tokens = input_tokens + coalesce(new.input_tokens, 0){input}, "
    "output_tokens = output_tokens + coalesce(new.output_tokens, 0){output}, "
    "cost = CASE WHEN new.cost IS NULL THEN cost ELSE coalesce(cost, 0) + new.cost{cost} END "
    "WHERE id = new.session_id AND (SELECT NOT probe FROM turns WHERE turns.id = new.turn_id)"
)
DIFFERENCE = {
    "input": " - coalesce(old.input_tokens, 0)",
    "output": " - coalesce(old.output_tokens, 0)",
    "cost": " - coalesce(old.cost, 0)",
}
NOTHING = {"input": "", "output": "", "cost": ""}
WORDS = "string_to_array(body, ' ') || ARRAY['#' || (number / 1024), '@' || scope]"
SQLITE_SEARCH = (
    "DROP TRIGGER texts_gone",
    "DROP TABLE search",
    "CREATE VIRTUAL TABLE search USING fts5(body, scope, content='texts', content_rowid='number', "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* N* M*'\")",
    "UPDATE indexed SET number = 0",
    "CREATE TRIGGER texts_gone AFTER DELETE ON texts WHEN old.number <= (SELECT number FROM indexed) BEGIN "
    "INSERT INTO search(search, rowid, body, scope) VALUES ('delete', old.number, old.body, old.scope); "
    "UPDATE indexed SET number = min(number, (SELECT coalesce(max(number), 0) FROM texts)); END",
)
POSTGRESQL_SEARCH = (
    "DROP INDEX texts_search",
    # each search reads the whole list of texts that are not in the index proper yet, in KB
    f"CREATE INDEX texts_search ON texts USING gin (({WORDS})) WITH (gin_pending_list_limit = 64)",
)


def upgrade() -> None:
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    for name in INDEXES:
        op.drop_index(name)
    _add_columns()
    _fill(connection, sqlite)
    op.drop_column("answers", "echoes")
    _add_indexes()
    for statement in (*_triggers(sqlite), *(SQLITE_SEARCH if sqlite else POSTGRESQL_SEARCH)):
        connection.exec_driver_sql(statement)


def _add_columns() -> None:
    op.add_column("turns", sa.Column("named", sa.Boolean, nullable=False, server_default=sa.false()))
    for name in ("session_id", "caller"):
        op.add_column("endings", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("endings", sa.Column("named", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("answers", sa.Column("echo_session", sa.Text))
    op.add_column("texts", sa.Column("scope", sa.Text, nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("turns", sa.Integer, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("updated", sa.Double, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("title", sa.Text, nullable=False, server_default=""))
    for name in ("input_tokens", "output_tokens"):
        op.add_column("sessions", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("cost", sa.Double))
    op.create_table(
        "running",
        sa.Column("turn_id", sa.Text, primary_key=True),
        sa.Column("process", sa.Text, nullable=False),
        sa.Index("running_of_process", "process"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "spending",
        sa.Column("caller", sa.Text, primary_key=True),
        sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )


def _fill(connection: sa.Connection, sqlite: bool) -> None:
    for statement in FILL:
        connection.exec_driver_sql(statement)
    for size in (0, 60, 86_400):
        connection.exec_driver_sql(SPENT.format(size=size, at=_at("turns.started", str(size), sqlite) if size else "0"))
    callers = connection.execute(
        sa.text("SELECT DISTINCT turns.caller FROM texts JOIN turns ON turns.id = texts.turn_id")
    ).scalars()
    change = sa.text("UPDATE texts SET scope = :scope WHERE turn_id IN (SELECT id FROM turns WHERE caller = :caller)")
    for caller in callers.all():
        connection.execute(change, {"scope": scope_of(caller), "caller": caller})


def _at(started: str, size: str, sqlite: bool) -> str:
    """The beginning of the period of this size in which a turn started."""
    return f"CAST({started} / {size} AS INTEGER) * {size}" if sqlite else f"floor({started} / {size})::bigint * {size}"


def _add_indexes() -> None:
    def add(name: str, table: str, *columns: str, where: str = "") -> None:
        only = sa.text(where) if where else None
        op.create_index(name, table, list(columns), sqlite_where=only, postgresql_where=only)

    add("processes_by_recovery", "processes", "recovered")
    add("approvals_by_expiry", "approvals", "suspended", "expires")
    add("sessions_by_update", "sessions", "updated", "id")
    add("sessions_of_caller", "sessions", "caller", "updated", "id")
    add("sessions_of_directory", "sessions", "directory", "updated", "id")
    add("turns_of_caller", "turns", "caller", "id")
    add("turns_of_session", "turns", "session_id", "id")
    add("turns_by_model", "turns", "model", "id")
    add("turns_of_caller_by_model", "turns", "caller", "model", "id")
    add("turns_by_asked", "turns", "asked", "named", "session_id", "id", where="asked IS NOT NULL")
    add("turns_by_response", "turns", "response_id", "caller", "id", where="response_id <> ''")
    add("endings_by_tip", "endings", "tip", "named", "session_id", "turn_id", where="tip IS NOT NULL")
    add("endings_by_response", "endings", "response_id", "caller", "turn_id", where="response_id <> ''")
    add("endings_by_ending", "endings", "ending", "turn_id")
    add("endings_of_caller_by_ending", "endings", "caller", "ending", "turn_id")
    add("endings_by_upstream", "endings", "upstream", "turn_id")
    add("endings_of_caller_by_upstream", "endings", "caller", "upstream", "turn_id")
    add("answers_with_echoes", "answers", "echo_session", "turn_id", where="echo_session IS NOT NULL")


def _triggers(sqlite: bool) -> list[str]:
    """A turn that starts is running and belongs to its session; a turn that ends is not running, and has used something."""
    at = _at("turns.started", "sizes.size", sqlite)
    at = f"CASE WHEN sizes.size = 0 THEN 0 ELSE {at} END"
    actions = {
        ("turns", "INSERT", "added"): ["INSERT INTO running VALUES (new.id, new.process)"],
        ("turns", "INSERT", "counted"): [SESSION],
        ("endings", "INSERT", "added"): [
            "DELETE FROM running WHERE turn_id = new.turn_id",
            USED.format(**NOTHING),
            SPEND.format(at=at, **NEW),
        ],
        ("endings", "UPDATE", "changed"): [USED.format(**DIFFERENCE), SPEND.format(at=at, **CHANGED)],
    }
    found = []
    for (table, event, what), statements in actions.items():
        name = f"{table}_{what}"
        when = "WHEN (NOT new.probe) " if what == "counted" else ""
        body = "; ".join(statements) + ";"
        if sqlite:
            found.append(f"CREATE TRIGGER {name} AFTER {event} ON {table} {when}BEGIN {body} END")
        else:
            found.append(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$")
            found.append(f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when}EXECUTE FUNCTION {name}()")
    return found


def scope_of(caller: str) -> str:
    """The word for a caller, as of this version."""
    return hashlib.blake2b(caller.encode("utf-8", "replace"), digest_size=8).hexdigest()
