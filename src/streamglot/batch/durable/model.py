"""The types of durable batches (a batch, its items, their results, the jobs that workers claim), and their two written forms:
rows of the database, and lines of result files as the two batch APIs have them.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from ...json_types import JsonObject
from ...store.database.sql import SqlRow

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Outcome: TypeAlias = Literal["succeeded", "errored", "canceled", "expired"]

FILE_API: Final = "files"
"""Batches whose input is an uploaded file and whose results are an output file and an error file."""
MESSAGE_API: Final = "messages"
"""Batches whose requests come in the body and whose results are one list."""

RANGE_ITEMS: Final = 100
"""Items of a job. A claim costs about as much as a commit, which is negligible once per hundred calls."""
RANGE_BYTES: Final = 4 * 2**20
"""Bytes of the requests of a job. A worker holds one or two jobs in memory, and requests may contain images."""

PROVIDER: Final = "provider:"
"""Prefix of the upstream of a job whose items go to the provider's batch API."""

HELD, OPEN, RUNNING, CLOSED, DONE = "held", "open", "running", "closed", "done"
SENDING, REMOTE = "sending", "remote"
"""The states of a job. Held: its batch is still being validated. Sending and remote: a batch at the provider runs it. Closed: it
will not run, because its batch was cancelled or has expired. Done: every item has a result."""


class Totals(Struct):
    """Sums over the results of a job or of a batch."""

    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    output_bytes: int = 0
    error_bytes: int = 0
    retried: int = 0

    @property
    def done(self) -> int:
        return self.succeeded + self.failed

    @property
    def failed(self) -> int:
        return self.errored + self.canceled + self.expired

    def add(self, other: Totals) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LineError(Struct):
    """An error in a line of an input file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(Struct, kw_only=True):
    """One batch as stored in the database. ``times`` says when it entered each status."""

    id: str
    owner: str
    api: str
    endpoint: str
    input_file: str
    status: str
    closing: str = ""
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    errors: list[LineError] = field(default_factory=list)
    output_file: str | None = None
    error_file: str | None = None
    model: str = ""
    total: int = 0
    priority: int = 0
    created: float = 0.0
    expires: float = 0.0
    results_expire: float | None = None
    times: dict[str, float] = field(default_factory=dict)
    totals: Totals | None = None
    ended: float | None = None


class File(Struct, kw_only=True):
    """An uploaded file, or one that shows the results of the batch ``batch_id``."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created: float
    expires: float | None = None
    batch_id: str | None = None


class Item(Struct):
    """One request of a batch."""

    number: int
    custom_id: str | None
    body: bytes
    line: int = 0


class Job(Struct):
    """A range of items of one batch that this process runs."""

    batch: Batch
    first: int
    last: int
    upstream: str
    items: list[Item] = field(default_factory=list)


class Result(Struct):
    """The outcome of an item: the line for its file, and its usage. The fields are the columns of ``batch_results``, in order."""

    batch_id: str
    number: int
    outcome: Outcome
    line: bytes
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    attempts: int = 1
    at: float = 0.0


class Answer(Struct):
    """A runner's answer for one item: an HTTP status and the body that a client would get.

    ``retry``: another attempt may succeed, after ``retry_after`` seconds if that is known. ``throttled``: the failure is a rate
    limit and does not concern the item.
    """

    status: int
    body: bytes
    request_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    retry: bool = False
    retry_after: float | None = None
    throttled: bool = False
    attempts: int = 1

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300


Times: TypeAlias = dict[str, float]
Row: TypeAlias = Any  # Any: a row of the database, whose columns have no static types


_COLUMNS: Final = ("metadata", "errors", "times", "totals")
"""Columns that hold JSON."""
_errors: Final = msgspec.json.Decoder(list[LineError])
_totals: Final = msgspec.json.Decoder(Totals)


def new_id(prefix: str) -> str:
    """An id that cannot be guessed. A key cannot read the objects of another key, even if it knows their ids."""
    return f"{prefix}{uuid.uuid4().hex}"


def batch_of(row: Row) -> Batch:
    return Batch(
        id=row.id,
        owner=row.owner,
        api=row.api,
        endpoint=row.endpoint,
        input_file=row.input_file,
        status=row.status,
        closing=row.closing,
        completion_window=row.completion_window,
        metadata=msgspec.json.decode(row.metadata) if row.metadata else None,
        errors=_errors.decode(row.errors) if row.errors else [],
        output_file=row.output_file,
        error_file=row.error_file,
        model=row.model,
        total=row.total,
        priority=row.priority,
        created=row.created,
        expires=row.expires,
        results_expire=row.results_expire,
        times=msgspec.json.decode(row.times),
        totals=_totals.decode(row.totals) if row.totals else None,
        ended=row.ended,
    )


def batch_row(batch: Batch) -> SqlRow:
    row: SqlRow = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    for name in _COLUMNS:
        row[name] = as_json(row[name]) if row[name] else None
    row["times"] = as_json(batch.times)
    return row


def file_of(row: Row) -> File:
    return File(**{name: getattr(row, name) for name in File.__struct_fields__})


def file_row(file: File) -> SqlRow:
    return {name: getattr(file, name) for name in File.__struct_fields__}


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


LARGEST_COUNT: Final = 2**31 - 1
"""Tokens of one item: the largest value of an integer column."""
PREFIXES: Final = 64
"""Batches whose prefix of request ids is remembered: more than run at once."""
_NOT_RUN: Final[dict[str, tuple[str, str]]] = {
    "canceled": ("batch_cancelled", "This request did not run: its batch was cancelled."),
    "expired": ("batch_expired", "This request did not run within the completion window of its batch."),
}


def answer_line(batch: Batch, item: Item, answer: Answer) -> bytes:
    """The line of an item that ran."""
    body = msgspec.Raw(answer.body)
    if batch.api != FILE_API:
        kind, name = ("succeeded", "message") if answer.succeeded else ("errored", "error")
        return _encode({"custom_id": item.custom_id, "result": {"type": kind, name: body}})
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
    return _encode({"id": request_name(batch, item.number), "custom_id": item.custom_id, "response": response, "error": None})


def unrun_line(batch: Batch, item: Item | Row, outcome: Outcome) -> bytes:
    """The line of an item that did not run. ``item`` has a number and a custom_id."""
    if batch.api != FILE_API:
        return _encode({"custom_id": item.custom_id, "result": {"type": outcome}})
    code, message = _NOT_RUN[outcome]
    return _error_line(batch, item.number, item.custom_id, {"code": code, "message": message})


def fault_line(batch: Batch, number: int, custom_id: str | None, fault: LineError, body: bytes) -> bytes:
    """The line of a request that cannot be run. ``body`` is the error in the form of the message API."""
    if batch.api != FILE_API:
        return _encode({"custom_id": custom_id, "result": {"type": "errored", "error": msgspec.Raw(body)}})
    error = {"code": fault.code, "message": fault.message, "line": fault.line, "param": fault.param}
    return _error_line(batch, number, custom_id, error)


def request_name(batch: Batch, number: int) -> str:
    """The id of one request of a batch."""
    return f"{_prefix(batch.id)}{number}"


@lru_cache(PREFIXES)
def _prefix(batch_id: str) -> str:
    return f"batch_req_{batch_id.partition('_')[2][:16]}_"


def _error_line(batch: Batch, number: int, custom_id: str | None, error: JsonObject) -> bytes:
    return _encode({"id": request_name(batch, number), "custom_id": custom_id, "response": None, "error": error})


def _encode(line: JsonObject) -> bytes:
    return msgspec.json.encode(line)


def result_of(batch: Batch, item: Item, answer: Answer, attempts: int, now: float) -> Result:
    """The result of an item that was answered after this many calls."""
    return Result(
        batch.id,
        item.number,
        "succeeded" if answer.succeeded else "errored",
        answer_line(batch, item, answer),
        min(answer.input_tokens, LARGEST_COUNT),
        min(answer.output_tokens, LARGEST_COUNT),
        min(answer.cached_tokens, LARGEST_COUNT),
        min(answer.reasoning_tokens, LARGEST_COUNT),
        answer.cost,
        attempts,
        now,
    )
