"""Bytes over HTTP, by aiohttp: pooled connections, verified TLS, proxies. The only module that knows the client library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp

from ..errors import UpstreamError, UpstreamTimeout, UpstreamTruncated
from .settings import Upstream

READ_BYTES = 2**16
"""What may wait unread for one stream: a slow client stops the upstream after twice this."""


class HttpAnswer:
    def __init__(self, response: aiohttp.ClientResponse, upstream: Upstream) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._upstream = upstream

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamTruncated(f"the connection to upstream {self._upstream.name!r} broke: {_said(error)}") from None

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class HttpClient:
    """The pool of connections of one process."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=30, ttl_dns_cache=60)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            read_bufsize=READ_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("User-Agent",),
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, upstream: Upstream, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=upstream.timeouts.connect)
        try:
            response = await self._session.post(url, data=body, headers=headers, proxy=upstream.proxy, timeout=timeout)
        except asyncio.TimeoutError:
            raise UpstreamTimeout(f"upstream {upstream.name!r} did not answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamError(
                f"upstream {upstream.name!r} cannot be reached at {_host(url)}: {_said(error)}; is it running, and is base_url right?",
                code="upstream_unreachable",
            ) from None
        return HttpAnswer(response, upstream)

    async def get(self, upstream: Upstream, url: str, headers: Mapping[str, str], seconds: float) -> bytes:
        """A small answer that is wanted whole, such as a list of models."""
        assert self._session is not None
        try:
            async with asyncio.timeout(seconds), self._session.get(url, headers=headers, proxy=upstream.proxy) as response:
                if response.status != 200:
                    raise UpstreamError(f"upstream {upstream.name!r} answered {response.status}")
                return await response.content.read(READ_BYTES * 64)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise UpstreamError(f"upstream {upstream.name!r} cannot be reached: {_said(error)}") from None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _host(url: str) -> str:
    """The address without what may be secret in it."""
    return url.split("?", 1)[0]
