"""The types of durable batches: a batch, its items, their results, and the jobs that workers claim."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

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
