"""The APIs of durable batches.

``/v1/batches``             a batch of the requests in an uploaded file
``/v1/messages/batches``    a batch whose requests come in the body and whose results are one list of lines
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from ...errors import RequestError, excerpt
from ...json_types import JsonObject, JsonValue
from ..auth.access import Access
from ..http.call import Reply, RoutedCall, StreamedReply
from ..lifecycle import Lifecycle
from ..services import GatewayServices
from .files import LONGEST, SHORTEST, batches_of, body_chunks, owner_of, page, streamed
from .router import APIRoute, Parameters, json_of, json_reply

if TYPE_CHECKING:
    from ...batch.durable.model import Batch, Totals
    from ...batch.durable.service import BatchService

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
        return json_reply(await batch_fields(service, await create_batch(service, owner, await json_of(services, call))))

    async def listing(call: RoutedCall) -> Reply:
        from ...batch.durable.model import FILE_API

        parameters = Parameters(call, "after", "limit")
        limit = parameters.limit(USUAL_LISTED, MAX_LISTED)
        service, owner = batches_of(lifecycle), owner_of(access, call)
        found = await service.catalog.list_batches(owner, FILE_API, parameters["after"], limit + 1)
        return json_reply(page([await batch_fields(service, batch) for batch in found], limit))

    async def retrieve(call: RoutedCall, id: str) -> Reply:
        return json_reply(await batch_fields(batches_of(lifecycle), await found_batch(call, id)))

    async def cancel(call: RoutedCall, id: str) -> Reply:
        service, batch = batches_of(lifecycle), await found_batch(call, id)
        if batch.ended is not None:
            rule = f"the batch {batch.id} has ended with the status {batch.status}; there is nothing to cancel"
            raise RequestError(rule, code="batch_ended", status=409)
        await service.cancel(batch)
        return json_reply(await batch_fields(service, await found_batch(call, id)))

    async def found_batch(call: RoutedCall, id: str) -> Batch:
        from ...batch.durable.model import FILE_API

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


async def create_batch(service: BatchService, owner: str, body: JsonObject) -> Batch:
    from ...batch.durable.model import FILE_API, Batch, new_id
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


async def batch_fields(service: BatchService, batch: Batch) -> JsonObject:
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


ENDPOINT: Final = "/v1/messages"
PLACE: Final = "/v1/messages/batches"
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_MESSAGE_BATCHES: Final = 1_000


class _Member(msgspec.Struct):
    custom_id: JsonValue = None
    params: JsonValue = None


_member: Final = msgspec.json.Decoder(_Member)


def message_batch_routes(services: GatewayServices, access: Access, lifecycle: Lifecycle) -> list[APIRoute]:
    async def create(call: RoutedCall) -> Reply:
        service, owner = batches_of(lifecycle), owner_of(access, call)
        return json_reply(await message_batch_fields(service, await create_message_batch(services, service, call, owner)))

    async def listing(call: RoutedCall) -> Reply:
        from ...batch.durable.model import MESSAGE_API

        parameters = Parameters(call, "after_id", "before_id", "limit", "beta")
        limit = parameters.limit(USUAL_LISTED, MAX_MESSAGE_BATCHES)
        service, owner = batches_of(lifecycle), owner_of(access, call)
        before = parameters["before_id"]
        found = await service.catalog.list_batches(owner, MESSAGE_API, before or parameters["after_id"], limit + 1, not before)
        rows = found[:limit][::-1] if before else found[:limit]  # newest first in both paging directions
        return json_reply(
            {
                "data": [await message_batch_fields(service, batch) for batch in rows],
                "has_more": len(found) > limit,
                "first_id": rows[0].id if rows else None,
                "last_id": rows[-1].id if rows else None,
            }
        )

    async def retrieve(call: RoutedCall, id: str) -> Reply:
        return json_reply(await message_batch_fields(batches_of(lifecycle), await found_batch(call, id)))

    async def results(call: RoutedCall, id: str) -> StreamedReply:
        batch = await found_batch(call, id)
        return await streamed(batches_of(lifecycle).catalog.lines(batch, None), "application/x-jsonl")

    async def cancel(call: RoutedCall, id: str) -> Reply:
        service, batch = batches_of(lifecycle), await found_batch(call, id)
        if batch.ended is not None:
            raise RequestError(f"the batch {batch.id} has ended; there is nothing to cancel", code="batch_ended")
        await service.cancel(batch)
        return json_reply(await message_batch_fields(service, await found_batch(call, id)))

    async def remove(call: RoutedCall, id: str) -> Reply:
        service, batch = batches_of(lifecycle), await found_batch(call, id)
        if batch.ended is None:
            raise RequestError(
                f"the batch {batch.id} is running; cancel it first, and wait until it has ended", code="batch_runs"
            )
        await service.storage.remove(batch.input_file)
        await service.catalog.remove_batch(batch.id)
        return json_reply({"id": batch.id, "type": "message_batch_deleted"})

    async def found_batch(call: RoutedCall, id: str) -> Batch:
        from ...batch.durable.model import MESSAGE_API

        owner = owner_of(access, call)
        batch = await batches_of(lifecycle).catalog.batch(id, owner)
        if batch is None or batch.api != MESSAGE_API:
            raise missing_batch(id, PLACE)
        return batch

    return [
        APIRoute("POST", PLACE, create, "Runs many requests for messages as a batch"),
        APIRoute("GET", PLACE, listing, "The batches of messages, the newest first", ("after_id", "before_id", "limit")),
        APIRoute("GET", f"{PLACE}/{{id}}", retrieve, "One batch of messages"),
        APIRoute("DELETE", f"{PLACE}/{{id}}", remove, "Deletes a batch of messages that has ended"),
        APIRoute("GET", f"{PLACE}/{{id}}/results", results, "The results of a batch of messages, a line for each"),
        APIRoute("POST", f"{PLACE}/{{id}}/cancel", cancel, "Starts no more requests of a batch of messages"),
    ]


async def create_message_batch(services: GatewayServices, service: BatchService, call: RoutedCall, owner: str) -> Batch:
    """Streams the requests into a file, one per line, then creates a batch from it."""
    from ...batch.durable.model import MESSAGE_API, Batch, File, new_id
    from ...batch.durable.storage import FileStorageUnavailable

    id, now = new_id("msgbatch_"), time.time()
    file = File(id=new_id("file-"), owner=owner, filename=f"{id}.jsonl", purpose="batch", bytes=0, created=now)
    file.expires = now + service.config.keep_days * 86_400
    members = _Members(services.server.max_body_bytes, service.config.max_items)
    await service.save_upload(file, members.lines(body_chunks(services, call)))
    try:
        await service.catalog.add_file(file)
        batch = Batch(id=id, owner=owner, api=MESSAGE_API, endpoint=ENDPOINT, input_file=file.id, status="validating")
        batch.total = members.count
        return await service.create(batch)
    except BaseException:
        with suppress(FileStorageUnavailable):  # the first error is the cause
            await service.storage.remove(file.id)
        raise


class _Members:
    """Checks the shape of the requests. Their params are checked when they run."""

    def __init__(self, line_bytes: int, max_requests: int) -> None:
        from ...batch.request_array import RequestArray

        self.count = 0
        self._max_requests = max_requests
        self._array = RequestArray(line_bytes)
        self._known: set[int] = set()

    async def lines(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if lines := self._array.feed(chunk):
                yield self._checked(lines)
        yield self._checked(self._array.close())
        if not self.count:
            raise RequestError("requests must have at least one request", detail={"param": "requests"})

    def _checked(self, lines: list[bytes]) -> bytes:
        for line in lines:
            try:
                member = _member.decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise self._wrong("", f"it is not JSON: {error}") from None
            custom_id = member.custom_id
            if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
                raise self._wrong(".custom_id", f"it must match {_CUSTOM_ID.pattern}; it is {excerpt(custom_id)}")
            if not isinstance(member.params, dict):
                raise self._wrong(".params", "it must be an object")
            name = hash(custom_id)
            if name in self._known:
                raise self._wrong(
                    ".custom_id", f"{excerpt(custom_id)} is used by another request; give each request a unique custom_id"
                )
            self._known.add(name)
            self.count += 1
            if self.count > self._max_requests:
                raise RequestError(f"a batch has at most {self._max_requests} requests (batches.max_items)", status=413)
        return b"".join(line + b"\n" for line in lines)

    def _wrong(self, place: str, rule: str) -> RequestError:
        return RequestError(f"requests.{self.count}{place}: {rule}", detail={"param": "requests"})


async def message_batch_fields(service: BatchService, batch: Batch) -> JsonObject:
    """The batch as the API shows it. The counts other than ``processing`` stay 0 until the batch has ended."""
    ended = batch.ended is not None
    totals = await service.queue.totals(batch) if ended else None
    cancelling = "cancelling" in batch.times
    counts = {
        "processing": 0 if ended else batch.total,
        "succeeded": totals.succeeded if totals is not None else 0,
        "errored": totals.errored if totals is not None else 0,
        "canceled": totals.canceled if totals is not None else 0,
        "expired": totals.expired if totals is not None else 0,
    }
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if cancelling else "in_progress",
        "request_counts": counts,
        "created_at": _moment(batch.created),
        "expires_at": _moment(batch.expires),
        "ended_at": _moment(batch.ended),
        "cancel_initiated_at": _moment(batch.times.get("cancelling")),
        "archived_at": None,
        "results_url": f"{PLACE}/{batch.id}/results" if ended else None,
    }


def _moment(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds is not None else None
