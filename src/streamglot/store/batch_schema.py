"""The tables of durable batches, in the same database as the turns.

    batches ──< batch_items ──1 batch_results
        └────< batch_jobs (a range of items each)      files (uploads, and the result files of batches)

An item is one request. A result is written once, and the first one stays. A job is a range of items that one process runs: the
process that owns it renews its lease. The sums of a job are written when all of its items have results, so the progress of a
batch is the sum of its jobs. Times are seconds since 1970. Columns of text that hold structures hold JSON.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from .schema import metadata

SUMS = (
    *("succeeded", "errored", "canceled", "expired", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
    *("output_bytes", "error_bytes", "retried"),
)
"""Whole numbers that a job has for all of its results."""
files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("batch_id", Text),
    Index("files_of_owner", "owner", "created"),
)
"""``batch_id``: the batch whose results this file is. Such a file has no contents of its own: they are read from the results."""
batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("api", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("input_file", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("closing", Text, nullable=False, server_default=""),
    Column("completion_window", Text, nullable=False),
    Column("metadata", Text),
    Column("errors", Text),
    Column("output_file", Text),
    Column("error_file", Text),
    Column("model", Text, nullable=False, server_default=""),
    Column("total", Integer, nullable=False, server_default="0"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("process", Text),
    Column("lease", Double),
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("results_expire", Double),
    Column("times", Text, nullable=False),
    Column("totals", Text),
    Column("ended", Double),
    Index("batches_of_owner", "owner", "created"),
    Index("batches_by_end", "ended"),
)
"""``closing``: the status that the batch will end with before all of its items ran: cancelled or expired. ``times``: when it
entered each status. ``totals``: its counts, once it has ended. ``process`` and ``lease``: who reads its input file."""
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("line", Integer, nullable=False),
    Column("custom_id", Text),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("batch_id", "custom_id", name="batch_items_by_custom_id"),
)
batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    Column("line", LargeBinary, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("cost", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("at", Double, nullable=False),
)
"""``outcome``: succeeded, errored, canceled or expired. ``line`` is the line of the output or error file without its line end."""
batch_jobs = Table(
    "batch_jobs",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("last", Integer, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("process", Text),
    Column("lease", Double),
    Column("remote", Text),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in SUMS),
    Column("cost", Double, nullable=False, server_default="0"),
    Index("batch_jobs_by_state", "state", "priority", "first"),
)
"""The items ``first`` to ``last`` - 1. ``process`` is the last owner, also after the job was given back.
``remote``: the provider's own batch that runs these items; ``lease`` is then when it is asked for next."""
