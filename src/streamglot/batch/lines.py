"""The lines of result files, in the forms of the two batch APIs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from ..json_types import JsonObject
from .model import FILE_API, Answer, Batch, Item, LineError, Outcome, Result, Row

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
