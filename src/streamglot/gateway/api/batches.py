"""``/v1/batches``: a batch of the requests in an uploaded file, created, shown, listed and cancelled."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from ...errors import RequestError, excerpt
from ...json_types import JsonObject
from ..auth.access import Access
from ..http.call import RoutedCall
from ..http.reply import Reply
from ..lifecycle import Lifecycle
from ..services import GatewayServices
from .files import LONGEST, SHORTEST, batches_of, owner_of, page
from .router import APIRoute, Parameters, json_of, json_reply

if TYPE_CHECKING:
    from ...batch.model import Batch, Totals
    from ...batch.service import BatchService

USUAL_WINDOW: Final = "24h"
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAX_METADATA: Final = 16
"""Entries in the metadata of a batch: the limit of the vendor's API."""
METADATA_CHARS: Final = (64, 512)
"""Characters of a key and of a value: the limits of the vendor's API."""
MAX_LISTED: Final = 100
USUAL_LISTED: Final = 20
"""Rows of one page, at most and by default: the values of the vendor's API."""
TIMES: Final = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
"""Statuses whose time is shown."""
_FIELDS: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")


def batches_routes(services: GatewayServices, access: Access, lifecycle: Lifecycle) -> list[APIRoute]:
    async def create(call: RoutedCall) -> Reply:
        service, owner = batches_of(lifecycle), owner_of(access, call)
        return json_reply(await shown(service, await created(service, owner, await json_of(services, call))))

    async def listing(call: RoutedCall) -> Reply:
        from ...batch.model import FILE_API

        parameters = Parameters(call, "after", "limit")
        limit = parameters.limit(USUAL_LISTED, MAX_LISTED)
        service, owner = batches_of(lifecycle), owner_of(access, call)
        found = await service.catalog.list_batches(owner, FILE_API, parameters["after"], limit + 1)
        return json_reply(page([await shown(service, batch) for batch in found], limit))

    async def retrieve(call: RoutedCall, id: str) -> Reply:
        return json_reply(await shown(batches_of(lifecycle), await found_batch(call, id)))

    async def cancel(call: RoutedCall, id: str) -> Reply:
        service, batch = batches_of(lifecycle), await found_batch(call, id)
        if batch.ended is not None:
            rule = f"the batch {batch.id} has ended with the status {batch.status}; there is nothing to cancel"
            raise RequestError(rule, code="batch_ended", status=409)
        await service.cancel(batch)
        return json_reply(await shown(service, await found_batch(call, id)))

    async def found_batch(call: RoutedCall, id: str) -> Batch:
        from ...batch.model import FILE_API

        owner = owner_of(access, call)
        batch = await batches_of(lifecycle).catalog.batch(id, owner)
        if batch is None or batch.api != FILE_API:
            raise missing_batch(id, "/v1/batches")
        return batch

    return [
        APIRoute("POST", "/v1/batches", create, "Runs the requests of an uploaded file as a batch"),
        APIRoute("GET", "/v1/batches", listing, "The batches, the newest first", ("after", "limit")),
        APIRoute("GET", "/v1/batches/{id}", retrieve, "One batch"),
        APIRoute("POST", "/v1/batches/{id}/cancel", cancel, "Starts no more requests of a batch"),
    ]


def missing_batch(id: str, place: str) -> RequestError:
    return RequestError(f"there is no batch {excerpt(id)}; GET {place} lists those of your key", code="not_found", status=404)


async def created(service: BatchService, owner: str, body: JsonObject) -> Batch:
    from ...batch.model import FILE_API, Batch
    from ...batch.rows import new_id
    from ..batch_runner import PATHS

    unknown = [name for name in body if name not in _FIELDS]
    if unknown:
        raise _wrong(unknown[0], f"{excerpt(unknown[0])} is not a field of a batch; the fields are {', '.join(_FIELDS)}")
    endpoint, input_file = body.get("endpoint"), body.get("input_file_id")
    if endpoint not in PATHS:
        raise _wrong("endpoint", f"endpoint must be one of {', '.join(PATHS)}, not {excerpt(endpoint)}")
    file = await service.catalog.file(input_file, owner) if isinstance(input_file, str) else None
    if file is None:
        raise _wrong("input_file_id", f"there is no file {excerpt(input_file)}; upload one with the purpose batch")
    if file.purpose != "batch":
        raise _wrong("input_file_id", f"the file {file.id} has the purpose {file.purpose}; upload it with the purpose batch")
    window = body.get("completion_window")
    batch = Batch(
        id=new_id("batch_"),
        owner=owner,
        api=FILE_API,
        endpoint=endpoint,
        input_file=file.id,
        status="validating",
        completion_window=str(window),
        metadata=_metadata(body.get("metadata")),
    )
    batch.expires = time.time() + _window_seconds(window, service.config.window_seconds)
    return await service.create(batch, _kept_seconds(body.get("output_expires_after")))


def _window_seconds(window: object, usual: float) -> float:
    """The completion window in seconds. ``usual`` is the configured default."""
    if window == USUAL_WINDOW:
        return usual
    found = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not 0 < seconds <= LONGEST:
        raise _wrong("completion_window", f'completion_window must be a duration like "24h", at most 30d, not {excerpt(window)}')
    return float(seconds)


def _metadata(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > MAX_METADATA:
        raise _wrong("metadata", f"metadata must be an object with at most {MAX_METADATA} strings")
    for name, value in given.items():
        if len(name) > METADATA_CHARS[0] or not isinstance(value, str) or len(value) > METADATA_CHARS[1]:
            raise _wrong("metadata", f"metadata keys may have {METADATA_CHARS[0]} characters, and values {METADATA_CHARS[1]}")
    return given


def _kept_seconds(given: object) -> float | None:
    if given is None:
        return None
    seconds = given.get("seconds") if isinstance(given, dict) and given.get("anchor") == "created_at" else None
    if not isinstance(seconds, int) or not SHORTEST <= seconds <= LONGEST:
        rule = f"output_expires_after needs the anchor created_at and seconds from {SHORTEST} to {LONGEST}"
        raise _wrong("output_expires_after", rule)
    return float(seconds)


def _wrong(param: str, message: str) -> RequestError:
    return RequestError(message, detail={"param": param})


async def shown(service: BatchService, batch: Batch) -> JsonObject:
    totals = await service.queue.totals(batch)
    errors = [{"code": error.code, "line": error.line, "message": error.message, "param": error.param} for error in batch.errors]
    body: JsonObject = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file if totals.succeeded else None,
        "error_file_id": batch.error_file if totals.failed else None,
        "created_at": int(batch.created),
        "expires_at": int(batch.expires),
        "request_counts": {"total": batch.total, "completed": totals.succeeded, "failed": totals.failed},
        "metadata": batch.metadata,
        "usage": _usage(totals),
        "streamglot": {"retried": totals.retried, "cost": totals.cost or None},  # null: no request has a price that is known
    }
    body |= {f"{status}_at": int(batch.times[status]) if status in batch.times else None for status in TIMES}
    return body | ({"model": batch.model} if batch.model else {})


def _usage(totals: Totals) -> JsonObject:
    return {
        "input_tokens": totals.input_tokens,
        "input_tokens_details": {"cached_tokens": totals.cached_tokens},
        "output_tokens": totals.output_tokens,
        "output_tokens_details": {"reasoning_tokens": totals.reasoning_tokens},
        "total_tokens": totals.input_tokens + totals.output_tokens,
    }
