"""The database schema, the same for both databases.

    sessions ──< turns ──1 endings ──< answers >── messages ──< pieces >── contents
                 │ │                                  │                       │
                 │ └── node ──> nodes (a tree) ───────┘                       │
                 └── settings ────────────────────────────────────────────────┘

A turn is written when it starts and its ending when it ends, so rows never change. A message is stored once, under the hash of
its content; so are its long texts, and the tools and settings of a request. A node is a message and its parent node, so a history
is one hash, and shared history takes no extra space. There are no foreign keys on purpose: a row may be written before the row
that it refers to, and nothing is deleted by a cascade. Times are seconds since 1970. Text columns that hold structures hold JSON.

Every query on the way of a request, and the first page of every list, reads a bounded number of rows however many there are. The
shape of the tables ensures that, not the statistics of the database:

- The id of a turn begins with its time, so an index that ends with the id returns the newest turns first without a sort.
- An index begins with all columns that a query compares. ``endings`` repeats the turn's caller and session for that reason.
- Triggers keep what would otherwise be computed from all turns: ``running``, the totals in ``sessions``, and ``spending``. A
  trigger runs only for rows that are really added, so that a repeated commit changes nothing.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

metadata = MetaData()
TOTAL: Final = {"total": True}
"""Marks columns that triggers fill, so that no insert names them."""

processes = Table(
    "processes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("place", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("born", Text, nullable=False),
    Column("started", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("recovered", Double),
    Index("processes_by_recovery", "recovered"),
)
sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("caller", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("directory", Text, nullable=False),
    Column("started", Double, nullable=False),
    Column("turns", Integer, nullable=False, server_default="0", info=TOTAL),
    Column("updated", Double, nullable=False, server_default="0", info=TOTAL),
    Column("title", Text, nullable=False, server_default="", info=TOTAL),
    Column("input_tokens", BigInteger, nullable=False, server_default="0", info=TOTAL),
    Column("output_tokens", BigInteger, nullable=False, server_default="0", info=TOTAL),
    Column("cost", Double, info=TOTAL),
    Index("sessions_by_update", "updated", "id"),
    Index("sessions_of_caller", "caller", "updated", "id"),
    Index("sessions_of_directory", "directory", "updated", "id"),
)
"""The columns from ``turns`` on are the totals of the session's turns without probes. ``updated`` is the start of the newest one, 0 if
there is none. Triggers add to them; pruning subtracts."""
messages = Table(
    "messages",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("body", Text, nullable=False),
)
contents = Table(
    "contents",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Requests without their messages, and the pieces of requests and messages, which are compressed."""
pieces = Table(
    "pieces",
    metadata,
    Column("owner", LargeBinary, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""The pieces of the message or request with the hash ``owner``: long texts, tools. ``contents.py`` takes them out and puts them
back."""
nodes = Table(
    "nodes",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("parent", LargeBinary),
    Column("message", LargeBinary, nullable=False),
    Column("depth", Integer, nullable=False),
    sqlite_with_rowid=False,
)
ASKED: Final = text("asked IS NOT NULL")
ENDED: Final = text("tip IS NOT NULL")
IDENTIFIED: Final = text("response_id <> ''")
"""The rows of partial indexes. On PostgreSQL these have the same conditions, which the migrations write: naming them here would load
that SQLAlchemy dialect (20 ms of CPU) in every process."""
turns = Table(
    "turns",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("started", Double, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("probe", Boolean, nullable=False),
    Column("title", Text, nullable=False),
    Column("settings", LargeBinary),
    Column("node", LargeBinary),
    Column("asked", LargeBinary),
    Column("response_id", Text, nullable=False, server_default=""),
    Column("retrievable", Boolean, nullable=False, server_default=true()),
    Column("wish", Text),  # ``Started.client_options``; the column keeps its first name
    Column("named", Boolean, nullable=False, server_default=false()),
    Index("turns_by_time", "started"),
    Index("turns_of_caller", "caller", "id"),
    Index("turns_of_session", "session_id", "id"),
    Index("turns_by_model", "model", "id"),
    Index("turns_of_caller_by_model", "caller", "model", "id"),
    Index("turns_by_asked", "asked", "named", "session_id", "id", sqlite_where=ASKED),
    Index("turns_by_response", "response_id", "caller", "id", sqlite_where=IDENTIFIED),
)
"""``named``: the client chose a name for the session. A request that names nothing does not continue such a turn."""
running = Table(
    "running",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("process", Text, nullable=False),
    Index("running_of_process", "process"),
    sqlite_with_rowid=False,
)
"""The turns that have no ending yet. Triggers add and remove them."""
withdrawals = Table(
    "withdrawals",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""Turns whose response a client has deleted. The turn itself stays."""
endings = Table(
    "endings",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("ended", Double, nullable=False),
    Column("ending", Text, nullable=False),
    Column("error_code", Text, nullable=False, server_default=""),
    Column("error", Text),
    Column("response_id", Text, nullable=False, server_default=""),
    Column("response", Text),
    Column("tip", LargeBinary),
    Column("upstream", Text, nullable=False, server_default=""),
    Column("upstream_dialect", Text, nullable=False, server_default=""),
    Column("upstream_model", Text, nullable=False, server_default=""),
    Column("upstream_settings", LargeBinary),
    Column("upstream_node", LargeBinary),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("usage", Text),
    Column("cost", Double),
    Column("timings", Text),
    Column("verdicts", Text),
    Column("more", Text),
    Column("session_id", Text, nullable=False, server_default=""),
    Column("caller", Text, nullable=False, server_default=""),
    Column("named", Boolean, nullable=False, server_default=false()),
    Index("endings_by_tip", "tip", "named", "session_id", "turn_id", sqlite_where=ENDED),
    Index("endings_by_response", "response_id", "caller", "turn_id", sqlite_where=IDENTIFIED),
    Index("endings_by_ending", "ending", "turn_id"),
    Index("endings_of_caller_by_ending", "caller", "ending", "turn_id"),
    Index("endings_by_upstream", "upstream", "turn_id"),
    Index("endings_of_caller_by_upstream", "caller", "upstream", "turn_id"),
)
"""``session_id``, ``caller`` and ``named`` are those of the turn."""
WITH_ECHOES: Final = text("echo_session IS NOT NULL")
answers = Table(
    "answers",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("choice", Integer, primary_key=True, autoincrement=False),
    Column("message", LargeBinary, nullable=False),
    Column("echo_session", Text),
    Index("answers_with_echoes", "echo_session", "turn_id", sqlite_where=WITH_ECHOES),
    sqlite_with_rowid=False,
)
"""``echo_session`` is the session of an answer that carries provider state, which the session's next requests need."""
states = Table(
    "states",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)
frames = Table(
    "frames",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)
steps = Table(
    "steps",
    metadata,
    Column("turn_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""The steps of a tool loop, written while it runs: model turns and calls, as JSON."""
texts = Table(
    "texts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("turn_id", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("scope", Text, nullable=False, server_default=""),
    UniqueConstraint("turn_id", name="texts_of_turn"),
)
"""``scope`` is a word for the caller, so that the search index finds the texts of one caller."""
keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("shown", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("tools", Text),
    Column("requests_per_minute", Integer, nullable=False),
    Column("tokens_per_minute", Integer, nullable=False),
    Column("concurrent", Integer, nullable=False),
    Column("budget_cost", Double),
    Column("budget_tokens", Integer),
    Column("budget_seconds", Double),
    Column("created", Double, nullable=False),
    Column("revoked", Double),
    UniqueConstraint("name", name="keys_by_name"),
    UniqueConstraint("hash", name="keys_by_hash"),
)
spending = Table(
    "spending",
    metadata,
    Column("caller", Text, primary_key=True),
    Column("size", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("turns", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""What the turns of each stored key used: in each minute and in each day in which they started (``size`` seconds from ``at`` on), and
in total (a ``size`` of 0). A trigger adds to it; pruning subtracts."""
ASKED_FOR: Final = text("last IS NULL AND wanted > 0")
"""Running streams that have a reader or a stop request."""
streams = Table(
    "streams",
    metadata,
    Column("id", Text, primary_key=True),
    Column("caller", Text, nullable=False),
    Column("started", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("last", Integer),
    Column("stopped", Boolean, nullable=False),
    Column("head", Text, nullable=False),
    Column("wanted", Double, nullable=False, server_default="0"),
    Index("streams_by_time", "seen"),
    Index("streams_asked_for", "id", sqlite_where=ASKED_FOR),
)
"""``wanted`` is the time of the last notice of a reader, or of a stop request, from another process."""
chunks = Table(
    "chunks",
    metadata,
    Column("stream_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("last", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("process", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("suspended", Boolean, nullable=False),
    Column("expires", Double, nullable=False),
    Column("body", Text, nullable=False),
    Column("decision", Text),
    Index("approvals_of_process", "process"),
    Index("approvals_by_expiry", "suspended", "expires"),
)
"""The questions to people of all processes, until they expire. ``suspended``: the stream has ended, and the client's next request
decides; any process can resume the call. Otherwise ``process`` holds the stream, and takes the decision from this row. ``body`` is
the question; it is empty once the decision was taken."""
epochs = Table(
    "epochs",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
)
"""One row for each pruning of messages. After it, every process must discard what it remembers as stored."""
