"""A client for the files and batches API of a gateway. Files are streamed and never held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec
from msgspec import Struct

from ...config import load
from ...errors import ConfigError, StreamglotError, UpstreamError, excerpt
from ...json_types import JSON_ERRORS, JsonObject
from ..files import shown

PIECE_BYTES: Final = 2**18
"""Bytes of a file that are read or written at a time."""
ANSWER_SECONDS: Final = 60.0
"""Seconds without any data after which a request fails. The transfer of a file may take longer while data still flows."""
ERROR_BYTES: Final = 2**16
"""Bytes of an error response that are read: enough for its message."""


class GatewayAddress(Struct):
    """``url`` is the base address, without ``/v1``."""

    url: str
    key: str = ""


def gateway_address(url: str, key: str) -> GatewayAddress:
    """Returns the given address, or the one of the configuration if none is given."""
    if not url:
        server = load().config.server
        host = "127.0.0.1" if server.host in ("", "0.0.0.0", "::") else server.host
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address of a gateway must begin with http:// or https://, not {excerpt(url)}")
    return GatewayAddress(url.rstrip("/").removesuffix("/v1"), key)


class GatewayClient:
    """Used with ``async with``. If the gateway refuses a request, its own message is raised."""

    def __init__(self, address: GatewayAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"authorization": f"Bearer {self._address.key}"} if self._address.key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=ANSWER_SECONDS)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._session is not None
        await self._session.close()

    # --- files

    async def upload(self, path: Path) -> JsonObject:
        try:
            with path.open("rb") as file:
                form = aiohttp.FormData()
                form.add_field("purpose", "batch")
                form.add_field("file", file, filename=path.name, content_type="application/jsonl")
                return await self._json("POST", "/v1/files", data=form)
        except OSError as error:
            raise ConfigError(f"the file {shown(path)} cannot be read: {error.strerror or error}") from None

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file in pieces."""
        async with self._asked("GET", f"/v1/files/{file_id}/content") as answer:
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                yield piece

    async def lines(self, file_id: str) -> AsyncIterator[bytes]:
        """Yields the lines of a file without their line ends."""
        rest = b""
        async for piece in self.content(file_id):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest

    # --- batches

    async def create(self, input_file_id: str, endpoint: str, metadata: dict[str, str] | None = None) -> JsonObject:
        body: JsonObject = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": "24h"}
        if metadata:
            body["metadata"] = metadata
        return await self._json("POST", "/v1/batches", json=body)

    async def batch(self, id: str) -> JsonObject:
        return await self._json("GET", f"/v1/batches/{id}")

    async def batches(self, limit: int) -> list[JsonObject]:
        found = (await self._json("GET", f"/v1/batches?limit={limit}")).get("data")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def cancel(self, id: str) -> JsonObject:
        return await self._json("POST", f"/v1/batches/{id}/cancel")

    # --- HTTP

    async def _json(self, method: str, path: str, **more: Any) -> JsonObject:  # Any: the arguments of aiohttp's ``request``
        async with self._asked(method, path, **more) as answer:
            try:
                value = msgspec.json.decode(await answer.read())
            except JSON_ERRORS:
                value = None
        if not isinstance(value, dict):
            raise UpstreamError(f"{self._address.url}{path} does not answer with a JSON object: is it a gateway?")
        return value

    @asynccontextmanager
    # Any: as for ``_json``
    async def _asked(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        try:
            async with self._session.request(method, f"{self._address.url}{path}", **more) as answer:
                if answer.status >= 400:
                    raise _refused(answer.status, await answer.content.read(ERROR_BYTES))
                yield answer
        except (TimeoutError, aiohttp.ClientError) as error:
            raise UpstreamError(
                f"the gateway at {self._address.url} does not answer ({error or type(error).__name__}); start it with "
                "`streamglot serve`, or name another one with --url",
                code="upstream_unreachable",
            ) from None


def _refused(status: int, body: bytes) -> StreamglotError:
    try:
        error = msgspec.json.decode(body)["error"]
        message = error["message"]
    except (*JSON_ERRORS, KeyError, TypeError, IndexError):
        message = body.decode("utf-8", "replace")[:300] or "no explanation"
    return StreamglotError(f"the gateway refused the request ({status}): {message}", status=status)
