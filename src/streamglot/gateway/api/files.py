"""``/v1/files``: upload, list, show, download, delete. An upload is streamed to the storage."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ...errors import RequestError, Unsupported, excerpt
from ...json_types import JsonObject
from ..auth.access import Access
from ..auth.authenticator import anonymous
from ..http.call import Reply, RoutedCall, StreamedReply, too_slow
from ..http.multipart import Multipart, Part, PartData, PartStart, boundary_of
from ..lifecycle import Lifecycle
from ..services import GatewayServices
from .router import APIRoute, Parameters, admit, json_reply

if TYPE_CHECKING:
    from ...batch.durable.model import File
    from ...batch.durable.service import BatchService

PURPOSES: Final = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
FIELD_BYTES: Final = 4096
"""Bytes of a form field other than the file."""
NAME_CHARS: Final = 255
"""Characters of a file's name: the limit of common file systems."""
MAX_LISTED: Final = 10_000
"""Rows of one page, at most and by default: the value of the vendor's API."""
SHORTEST, LONGEST = 3_600, 2_592_000
"""Seconds that a file may be kept: an hour to 30 days, as in the vendor's API."""
DAY: Final = 86_400.0


def file_routes(services: GatewayServices, access: Access, lifecycle: Lifecycle) -> list[APIRoute]:
    async def upload(call: RoutedCall) -> Reply:
        service, owner = batches_of(lifecycle), owner_of(access, call)
        return json_reply(shown_file(await uploaded(services, service, call, owner)))

    async def listing(call: RoutedCall) -> Reply:
        parameters = Parameters(call, "after", "limit", "order", "purpose")
        limit, newest = parameters.limit(MAX_LISTED, MAX_LISTED), parameters.one_of("order", "desc", "asc") == "desc"
        service, owner = batches_of(lifecycle), owner_of(access, call)
        found = await service.catalog.list_files(owner, parameters["purpose"], parameters["after"], limit + 1, newest)
        return json_reply(page([shown_file(file) for file in found], limit))

    async def retrieve(call: RoutedCall, id: str) -> Reply:
        return json_reply(shown_file(await found_file(access, lifecycle, call, id)))

    async def content(call: RoutedCall, id: str) -> StreamedReply:
        file = await found_file(access, lifecycle, call, id)
        return await streamed(batches_of(lifecycle).contents(file))

    async def remove(call: RoutedCall, id: str) -> Reply:
        file = await found_file(access, lifecycle, call, id)
        await batches_of(lifecycle).remove_file(file)
        return json_reply({"id": file.id, "object": "file", "deleted": True})

    return [
        APIRoute("POST", "/v1/files", upload, "Uploads a file, as a form"),
        APIRoute("GET", "/v1/files", listing, "The files, the newest first", ("after", "limit", "order", "purpose")),
        APIRoute("GET", "/v1/files/{id}", retrieve, "One file"),
        APIRoute("DELETE", "/v1/files/{id}", remove, "Deletes a file"),
        APIRoute(
            "GET",
            "/v1/files/{id}/content",
            content,
            "The content of a file; for the results of a running batch, the results so far",
        ),
    ]


def batches_of(lifecycle: Lifecycle) -> BatchService:
    if lifecycle.batches is None:
        raise Unsupported(
            "this gateway has no files and batches: set store.url to a database, and batches.enabled",
            code="batches_disabled",
            status=501,
        )
    return lifecycle.batches


def owner_of(access: Access, call: RoutedCall) -> str:
    """The owner of files and batches: the name of the key, or an id that separates callers without a key."""
    caller = admit(access, call)
    return caller.name if caller is not None else anonymous(call.headers)


async def found_file(access: Access, lifecycle: Lifecycle, call: RoutedCall, id: str) -> File:
    owner = owner_of(access, call)
    file = await batches_of(lifecycle).catalog.file(id, owner)
    if file is None or (file.expires is not None and file.expires < time.time()):
        raise RequestError(f"there is no file {excerpt(id)}; GET /v1/files lists those of your key", code="not_found", status=404)
    return file


def shown_file(file: File) -> JsonObject:
    shown: JsonObject = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    return shown | ({"expires_at": int(file.expires)} if file.expires is not None else {})


def page(rows: list[JsonObject], limit: int) -> JsonObject:
    """One page of a list. A row beyond the limit shows that there is another page."""
    shown = rows[:limit]
    return {
        "object": "list",
        "data": shown,
        "has_more": len(rows) > limit,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


async def streamed(chunks: AsyncIterator[bytes], media_type: str = "application/octet-stream") -> StreamedReply:
    """A download. It reads the first chunk, so that contents that cannot be read are an error and not a broken body."""
    first = await anext(chunks, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return StreamedReply(body(), media_type)


# --- uploads


async def uploaded(services: GatewayServices, service: BatchService, call: RoutedCall, owner: str) -> File:
    """Stores the file of a form. Errors in the form are only known at its end; the stored contents are then removed."""
    from ...batch.durable.model import File, new_id
    from ...batch.durable.storage import FileStorageUnavailable

    form = _Form(services, call)
    now = time.time()
    file = File(id=new_id("file-"), owner=owner, filename="", purpose="", bytes=0, created=now)
    await service.save_upload(file, form.contents())
    try:
        if form.filename is None:
            raise RequestError("the form has no file: send one in the field file", detail={"param": "file"})
        file.filename, file.purpose = _clean(form.filename), form.fields.get("purpose", "")
        if file.purpose not in PURPOSES:
            rule = f"purpose must be one of {', '.join(PURPOSES)}, not {excerpt(file.purpose)}"
            raise RequestError(rule, detail={"param": "purpose"})
        file.expires = now + _kept_seconds(form.fields, service.config.keep_days * DAY)
        await service.catalog.add_file(file)
    except BaseException:
        with suppress(FileStorageUnavailable):  # the first error is the cause
            await service.storage.remove(file.id)
        raise
    return file


class _Form:
    """A form that is read as a stream. ``contents`` yields the bytes of the field ``file``."""

    def __init__(self, services: GatewayServices, call: RoutedCall) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._services = services
        self._call = call
        self._parser = Multipart(boundary_of(call.headers.get("content-type", "")))
        self._name = ""
        self._value = b""

    async def contents(self) -> AsyncIterator[bytes]:
        async for chunk in body_chunks(self._services, self._call):
            for part in self._parser.feed(chunk):
                data = self._take(part)
                if data:
                    yield data
        self._parser.close()

    def _take(self, part: Part) -> bytes:
        """Processes one part of the form. Returns the bytes that belong to the file."""
        if isinstance(part, PartStart):
            if part.name == "file":
                if self.filename is not None:
                    raise RequestError("the form has two files; send one at a time", detail={"param": "file"})
                self.filename = part.filename or "upload"
            self._name, self._value = part.name, b""
        elif isinstance(part, PartData):
            if self._name == "file":
                return part.data
            self._value += part.data
            if len(self._value) > FIELD_BYTES:
                raise RequestError(f"the form's field {excerpt(self._name)} has more than {FIELD_BYTES} bytes", status=413)
        elif self._name != "file":
            self.fields[self._name] = self._value.decode("utf-8", "replace")
        return b""


async def body_chunks(services: GatewayServices, call: RoutedCall) -> AsyncIterator[bytes]:
    """The body of a request.

    The client must send something within each ``server.body_seconds``, but may take any total time.
    """
    seconds = services.server.body_seconds
    while True:
        try:
            with services.within(seconds):
                chunk = await call.read()
        except TimeoutError:
            raise too_slow(seconds) from None
        if not chunk:
            return
        yield chunk


def _clean(name: str) -> str:
    return re.sub(r"[^\w .,()@+=-]", "_", name)[:NAME_CHARS] or "upload"


def _kept_seconds(fields: dict[str, str], usual: float) -> float:
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return usual
    if anchor != "created_at" or text is None:
        raise RequestError("expires_after needs the anchor created_at and seconds", detail={"param": "expires_after"})
    if not (text.isascii() and text.isdigit() and len(text) < 10 and SHORTEST <= int(text) <= LONGEST):
        rule = f"expires_after.seconds must be a number from {SHORTEST} to {LONGEST}, not {excerpt(text)}"
        raise RequestError(rule, detail={"param": "expires_after"})
    return float(text)
