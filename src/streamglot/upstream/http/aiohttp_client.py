"""Requests to upstreams with aiohttp: pooled connections, verified TLS, proxies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp

from ...errors import ConfigError, UpstreamError, UpstreamProtocolError, UpstreamTruncated
from ..secrets import shown_url
from ..settings import Upstream

READ_BYTES: Final = 2**16
"""Bytes buffered for one stream. A slow client stops the upstream after twice this amount."""
HEADER_BYTES: Final = 2**16
"""Bytes of one response header. Policies and cookies are long, but no header is longer than this."""
DRAIN_SECONDS: Final = 1.0
"""How long to wait for the end of a completed answer, in seconds, so that its connection can be reused."""
IDLE_SECONDS: Final = 30.0
"""How long an idle connection stays open, in seconds: less than the servers' own timeouts."""


class AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, upstream: Upstream) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._read = response.content.readany
        self._upstream = upstream

    async def read(self) -> bytes:
        try:
            return await self._read()
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamTruncated(f"the connection broke: {_reason(error)}") from None

    async def drain(self) -> None:
        """Waits briefly for the end of a completed answer, so that the connection returns to the pool."""
        content = self._response.content
        try:
            if not content.at_eof():
                async with asyncio.timeout(DRAIN_SECONDS):
                    while await content.readany():
                        pass
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._response.close()

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class AiohttpClient:
    """The connection pool of one process."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._trust: dict[str, ssl.SSLContext] = {}

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=60)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            read_bufsize=READ_BYTES,
            max_field_size=HEADER_BYTES,
            max_line_size=HEADER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, upstream: Upstream, url: str, headers: Mapping[str, str], body: bytes) -> AiohttpResponse:
        return await self.send("POST", upstream, url, headers, body)

    async def send(self, method: str, upstream: Upstream, url: str, headers: Mapping[str, str], body: bytes) -> AiohttpResponse:
        """The response as soon as its headers arrive. Redirects are not followed, because they would send the key elsewhere."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=upstream.timeouts.connect)
        trust = self._trusted(upstream.ca_file) if upstream.ca_file else True
        try:
            response = await self._session.request(
                method,
                url,
                data=body or None,
                headers=headers,
                proxy=upstream.proxy,
                timeout=timeout,
                allow_redirects=False,
                ssl=trust,
            )
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise _unreachable(url, f"no connection within {upstream.timeouts.connect:g} s (timeouts.connect)") from None
        except aiohttp.ServerDisconnectedError:
            raise UpstreamTruncated("the connection was closed before an answer came") from None
        except aiohttp.ClientResponseError as error:
            raise UpstreamProtocolError(f"the answer is not HTTP: {error.message or _reason(error)}", retryable=True) from None
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise _unreachable(url, _reason(error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamTruncated(f"the connection broke before an answer came: {_reason(error)}") from None
        return AiohttpResponse(response, upstream)

    def _trusted(self, path: str) -> ssl.SSLContext:
        if path not in self._trust:
            try:
                self._trust[path] = ssl.create_default_context(cafile=path)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"ca_file {path!r} cannot be read: {error}") from None
        return self._trust[path]


def _unreachable(url: str, why: str) -> UpstreamError:
    return UpstreamError(
        f"it cannot be reached at {shown_url(url)}: {why}; check that it is running and that base_url is right",
        code="upstream_unreachable",
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
