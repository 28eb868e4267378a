"""``/v1/messages/batches``: a batch whose requests come in the body and whose results are one list of lines."""

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
from ..http.call import RoutedCall
from ..http.reply import Reply, StreamedReply
from ..lifecycle import Lifecycle
from ..services import GatewayServices
from .batches import missing_batch
from .files import batches_of, body_chunks, owner_of, streamed
from .router import APIRoute, Parameters, json_reply

if TYPE_CHECKING:
    from ...batch.model import Batch
    from ...batch.service import BatchService

ENDPOINT: Final = "/v1/messages"
PLACE: Final = "/v1/messages/batches"
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_LISTED: Final = 1_000
USUAL_LISTED: Final = 20
"""Rows of one page, at most and by default: the values of the vendor's API."""


class _Member(msgspec.Struct):
    custom_id: JsonValue = None
    params: JsonValue = None


_member: Final = msgspec.json.Decoder(_Member)


def message_batch_routes(services: GatewayServices, access: Access, lifecycle: Lifecycle) -> list[APIRoute]:
    async def create(call: RoutedCall) -> Reply:
        service, owner = batches_of(lifecycle), owner_of(access, call)
        return json_reply(await shown(service, await created(services, service, call, owner)))

    async def listing(call: RoutedCall) -> Reply:
        from ...batch.model import MESSAGE_API

        parameters = Parameters(call, "after_id", "before_id", "limit", "beta")
        limit = parameters.limit(USUAL_LISTED, MAX_LISTED)
        service, owner = batches_of(lifecycle), owner_of(access, call)
        before = parameters["before_id"]
        found = await service.catalog.list_batches(owner, MESSAGE_API, before or parameters["after_id"], limit + 1, not before)
        rows = found[:limit][::-1] if before else found[:limit]  # newest first in both paging directions
        return json_reply(
            {
                "data": [await shown(service, batch) for batch in rows],
                "has_more": len(found) > limit,
                "first_id": rows[0].id if rows else None,
                "last_id": rows[-1].id if rows else None,
            }
        )

    async def retrieve(call: RoutedCall, id: str) -> Reply:
        return json_reply(await shown(batches_of(lifecycle), await found_batch(call, id)))

    async def results(call: RoutedCall, id: str) -> StreamedReply:
        batch = await found_batch(call, id)
        return await streamed(batches_of(lifecycle).catalog.lines(batch, None), "application/x-jsonl")

    async def cancel(call: RoutedCall, id: str) -> Reply:
        service, batch = batches_of(lifecycle), await found_batch(call, id)
        if batch.ended is not None:
            raise RequestError(f"the batch {batch.id} has ended; there is nothing to cancel", code="batch_ended")
        await service.cancel(batch)
        return json_reply(await shown(service, await found_batch(call, id)))

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
        from ...batch.model import MESSAGE_API

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


async def created(services: GatewayServices, service: BatchService, call: RoutedCall, owner: str) -> Batch:
    """Streams the requests into a file, one per line, then creates a batch from it."""
    from ...batch.files import FileStorageUnavailable
    from ...batch.model import MESSAGE_API, Batch, File
    from ...batch.rows import new_id

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


async def shown(service: BatchService, batch: Batch) -> JsonObject:
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
