"""Clients for providers' batch APIs: one with uploaded files, one with messages.

Requests and results go through files on disk, so that memory use does not grow with a batch.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol
from urllib.parse import urljoin

import msgspec
from msgspec import Struct

from ...dialects import dialect
from ...dialects.common import upstream_errors as faults
from ...dialects.interface import join
from ...errors import UpstreamError
from ...json_types import JsonObject, JsonValue
from ...messages import Request
from ...upstream import Upstream
from ...upstream.providers import BATCH_APIS
from .importer import LineSplitter

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, FormData

SECONDS: Final = 600.0
"""Seconds that one upload or download may take."""
LINE_BYTES: Final = 64 * 2**20
"""Bytes of the longest line of results, which is one answer."""
ERROR_BYTES: Final = 2**16
"""Bytes of an error's body that are read."""
_RUNNING: Final = ("validating", "in_progress", "finalizing", "cancelling")


class RemoteState(Struct):
    """The state of a provider's batch. ``results`` are URLs that can be read once the batch has ended."""

    ended: bool
    results: list[str]
    message: str = ""


class RemoteResult(Struct):
    """A provider's result for one item. ``status`` is 0 if it is not given; ``body`` is None for an item that did not run."""

    number: int
    status: int
    body: bytes | None


class ProviderAPI(Protocol):
    def line(self, number: int, body: JsonObject) -> bytes:
        """One request in the provider's form."""

    async def send(self, lines: BinaryIO, name: str) -> str:
        """Sends the lines of a file as a batch. Returns the provider's id."""

    async def find(self, name: str) -> str | None:
        """The id of the batch that was sent under this name, if the provider supports names."""

    async def state(self, remote: str) -> RemoteState: ...

    async def cancel(self, remote: str) -> None: ...

    def results(self, url: str) -> AsyncIterator[RemoteResult]: ...


class _Connection:
    """Sends requests to one provider with its key."""

    def __init__(self, session: ClientSession, upstream: Upstream) -> None:
        place = dialect(upstream.dialect).endpoint(upstream.base_url, Request(), key=upstream.key, **upstream.options)
        self._session = session
        self._upstream = upstream
        self._headers = {**place.headers, **upstream.headers}
        self.messages_url = place.url

    @property
    def base(self) -> str:
        return self._upstream.base_url

    @asynccontextmanager
    async def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, data: BinaryIO | FormData | bytes | None = None
    ) -> AsyncIterator[ClientResponse]:
        """One answer. An error status or a missing answer raises an ``UpstreamError``."""
        import aiohttp

        sent = {**self._headers, **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=SECONDS, sock_connect=self._upstream.timeouts.connect)
        try:
            async with self._session.request(
                method, url, headers=sent, data=data, allow_redirects=False, proxy=self._upstream.proxy, timeout=timeout
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise await self._refused(answer)
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UpstreamError(
                f"the batch API of {self._upstream.name!r} does not answer: {error or type(error).__name__}"
            ) from None

    async def _refused(self, answer: ClientResponse) -> UpstreamError:
        body = await answer.content.read(ERROR_BYTES)
        try:
            explanation: JsonValue = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            explanation = body.decode("utf-8", "replace")[:300] or "no explanation"
        return faults.refusal(explanation, answer.status)

    async def json(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, data: BinaryIO | FormData | bytes | None = None
    ) -> JsonObject:
        async with self.ask(method, url, headers, data) as answer:
            try:
                found = msgspec.json.decode(await answer.read())
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                found = None
        if not isinstance(found, dict):
            raise UpstreamError(f"the batch API of {self._upstream.name!r} did not answer with a JSON object; check its base_url")
        return found

    async def lines(self, url: str) -> AsyncIterator[JsonObject]:
        splitter = LineSplitter(LINE_BYTES)
        async with self.ask("GET", url) as answer:
            async for chunk in answer.content.iter_any():
                for found in _objects(splitter.feed(chunk)):
                    yield found
            for found in _objects(splitter.close()):
                yield found


def _objects(lines: list[tuple[int, bytes | None]]) -> list[JsonObject]:
    """Decodes lines. Unreadable lines are left out, and their items are reported as not run."""
    found = []
    for _, line in lines:
        try:
            value = msgspec.json.decode(line or b"null")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


class FileBatchAPI:
    """Uploads a file and creates a batch from it. The results are files."""

    def __init__(self, connection: _Connection, endpoint: str) -> None:
        self._connection = connection
        self._endpoint = endpoint

    def line(self, number: int, body: JsonObject) -> bytes:
        return msgspec.json.encode({"custom_id": str(number), "method": "POST", "url": self._endpoint, "body": body})

    async def send(self, lines: BinaryIO, name: str) -> str:
        import aiohttp

        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", lines, filename=f"{name}.jsonl", content_type="application/jsonl")
        file = await self._connection.json("POST", join(self._connection.base, "files"), data=form)
        body = {
            "input_file_id": file.get("id"),
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {"name": name},
        }
        headers = {"content-type": "application/json"}
        made = await self._connection.json("POST", self._url(), headers, msgspec.json.encode(body))
        return str(made["id"])

    async def find(self, name: str) -> str | None:
        listed = await self._connection.json("GET", join(self._connection.base, "batches?limit=100"))
        for batch in listed.get("data") or ():
            if isinstance(batch, dict) and (batch.get("metadata") or {}).get("name") == name:
                return str(batch["id"])
        return None

    async def state(self, remote: str) -> RemoteState:
        found = await self._connection.json("GET", self._url(remote))
        files = [found.get("output_file_id"), found.get("error_file_id")]
        urls = [join(self._connection.base, f"files/{file}/content") for file in files if file]
        ended = found.get("status") not in _RUNNING
        errors = found.get("errors")
        return RemoteState(ended, urls, msgspec.json.encode(errors).decode()[:300] if ended and errors else "")

    async def cancel(self, remote: str) -> None:
        await self._connection.json("POST", self._url(f"{remote}/cancel"))

    async def results(self, url: str) -> AsyncIterator[RemoteResult]:
        async for line in self._connection.lines(url):
            response = line.get("response")
            if not isinstance(response, dict):
                yield RemoteResult(_number(line), 0, None)
                continue
            status = response.get("status_code")
            body = msgspec.json.encode(response.get("body"))
            yield RemoteResult(_number(line), status if isinstance(status, int) else 502, body)

    def _url(self, path: str = "") -> str:
        return join(self._connection.base, f"batches/{path}" if path else "batches")


class MessageBatchAPI:
    """Sends the requests in the body. The results are one list."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._place = f"{connection.messages_url}/batches"

    def line(self, number: int, body: JsonObject) -> bytes:
        return msgspec.json.encode({"custom_id": str(number), "params": body})

    async def send(self, lines: BinaryIO, name: str) -> str:  # noqa: ARG002  # this API takes no name
        headers = {"content-type": "application/json"}
        made = await self._connection.json("POST", self._place, headers, _as_array(lines))
        return str(made["id"])

    async def find(self, name: str) -> str | None:  # noqa: ARG002  # as above
        return None

    async def state(self, remote: str) -> RemoteState:
        found = await self._connection.json("GET", f"{self._place}/{remote}")
        url = found.get("results_url")
        return RemoteState(found.get("processing_status") == "ended", [urljoin(self._place, str(url))] if url else [])

    async def cancel(self, remote: str) -> None:
        await self._connection.json("POST", f"{self._place}/{remote}/cancel")

    async def results(self, url: str) -> AsyncIterator[RemoteResult]:
        async for line in self._connection.lines(url):
            result = line.get("result")
            result = result if isinstance(result, dict) else {}
            match result.get("type"):
                case "succeeded":
                    yield RemoteResult(_number(line), 200, msgspec.json.encode(result.get("message")))
                case "errored":
                    body = result.get("error")
                    yield RemoteResult(_number(line), faults.refusal(body).status, msgspec.json.encode(body))
                case _:
                    yield RemoteResult(_number(line), 0, None)


class _ArrayReader(io.RawIOBase):
    """Reads lines as the elements of an array in an object, while they are sent."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines
        self._waiting = b'{"requests":['
        self._first, self._over = True, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # Any: a writable buffer; ``Buffer`` has no operations before Python 3.12
        while not self._waiting and not self._over:
            line = self._lines.readline()
            self._over = not line
            self._waiting = (b"" if self._first else b",") + line.strip() if line else b"]}"
            self._first = False
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size


def _as_array(lines: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_ArrayReader(lines), 2**16)


def _number(line: JsonObject) -> int:
    """The item number of a line; -1 for a line with a foreign id."""
    name = line.get("custom_id")
    return int(name) if isinstance(name, str) and name.isdecimal() and len(name) < 10 else -1


def provider_api(session: ClientSession, upstream: Upstream) -> ProviderAPI | None:
    """The batch API of this upstream, if it has one and the configuration enables it."""
    if upstream.batches != "provider" or upstream.dialect not in BATCH_APIS:
        return None
    kind, endpoint = BATCH_APIS[upstream.dialect]
    connection = _Connection(session, upstream)
    return FileBatchAPI(connection, endpoint) if kind == "files" else MessageBatchAPI(connection)
