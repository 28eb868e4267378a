"""The connections of one process to its upstreams, kept open for reuse by address, with verified TLS.

Requests through a proxy, and those that set framing headers themselves, go to the general client in ``aiohttp_client``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote, urlsplit

from ...errors import ConfigError, UpstreamError, UpstreamTruncated
from ...installation import missing_package
from ...tasks import TaskSupervisor, WriteLine, patient_timeout
from ..secrets import basic_authorization, shown_url
from ..settings import Upstream
from . import UpstreamResponse
from .writes import Writes

if TYPE_CHECKING:
    from .aiohttp_client import AiohttpClient
    from .connection import UpstreamConnection

IDLE_SECONDS: Final = 30.0
"""How long an idle connection stays open, in seconds: less than the servers' own timeouts."""
ADDRESSES: Final = 1024
"""Parsed URLs in the cache. There is one per model where the URL contains the model."""
_OWN_HEADERS: Final = frozenset(("host", "content-length", "transfer-encoding", "connection", "expect", "upgrade"))
"""Headers that this client sets itself."""
_URL_SAFE: Final = "%/:?#[]@!$&'()*+,;=~"


class ParsedUrl(NamedTuple):
    """A parsed URL. ``start`` is the request from behind its method up to the variable headers, ``user`` the authorization in the URL, ``url`` the URL
    without it."""

    host: str
    port: int
    tls: bool
    start: str
    user: str
    url: str


class ConnectionPool:
    """The connection pool. The packages that it needs are an extra, so they are imported with the first pool and not with this
    module."""

    def __init__(self, log: WriteLine | None = None) -> None:
        try:
            from .connection import UpstreamConnection
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from None
        self._connection_type = UpstreamConnection
        self.writes = Writes()
        self._tasks = TaskSupervisor(log)
        self._general: AiohttpClient | None = None
        self._idle: dict[tuple[str, int, bool, str], dict[UpstreamConnection, None]] = {}
        self._all: set[UpstreamConnection] = set()
        self._trust: dict[str, ssl.SSLContext] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.abort()
        if self._general is not None:
            await self._general.__aexit__(kind, value, trace)

    async def post(self, upstream: Upstream, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        """The response as soon as its headers arrive. Redirects are not followed, because they would send the key elsewhere."""
        return await self._send("POST", upstream, url, headers, body)

    async def get(self, upstream: Upstream, url: str, headers: Mapping[str, str]) -> UpstreamResponse:
        """Like ``post``, for a request without a body."""
        return await self._send("GET", upstream, url, headers, b"")

    async def _send(self, method: str, upstream: Upstream, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        parsed = parse_url(url)
        names = set(map(str.lower, headers))
        if parsed.user and "authorization" not in names:
            headers = {**headers, "authorization": parsed.user}
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not lines.count("\n") == lines.count("\r") == len(headers) or "\0" in lines:
            raise ConfigError(
                f"a header for upstream {upstream.name!r} contains a line break or a NUL; correct its headers and its key"
            )
        if upstream.proxy or not _OWN_HEADERS.isdisjoint(names):
            return await (await self._general_client()).send(method, upstream, parsed.url, headers, body)
        accept = "" if "accept" in names else "accept: */*\r\n"
        head = f"{method} {parsed.start}{lines}{accept}content-length: {len(body)}\r\n\r\n".encode()
        key = (parsed.host, parsed.port, parsed.tls, upstream.ca_file)
        kept = self._idle_connection(key)
        if kept is not None:
            try:
                return await kept.ask(head, body)
            except UpstreamTruncated:  # the server closed the idle connection: the request is sent again, once
                if kept.has_received():
                    raise
        connection = await self._connect(key, parsed, upstream)
        return await connection.ask(head, body)

    async def _general_client(self) -> AiohttpClient:
        """The general client, created on first use: importing aiohttp takes 0.17 s of CPU."""
        if self._general is None:
            try:
                from .aiohttp_client import AiohttpClient
            except ModuleNotFoundError as error:
                raise missing_package(error) or error from None
            self._general = await AiohttpClient().__aenter__()
        return self._general

    # --- connections

    def _idle_connection(self, key: tuple[str, int, bool, str]) -> UpstreamConnection | None:
        """The most recently used connection to this address, if it is still usable."""
        idle = self._idle.get(key)
        limit = asyncio.get_running_loop().time() - IDLE_SECONDS
        while idle:
            connection, _ = idle.popitem()
            if connection.alive() and connection.since > limit:
                return connection
            connection.abort()
        return None

    async def _connect(self, key: tuple[str, int, bool, str], parsed: ParsedUrl, upstream: Upstream) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(key, {})

        def keep(connection: UpstreamConnection) -> None:
            connection.since = loop.time()
            idle[connection] = None
            if self._sweeper is None:
                self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep)

        def lost(connection: UpstreamConnection) -> None:
            idle.pop(connection, None)
            self._all.discard(connection)

        trust = self._trusted(upstream.ca_file) if parsed.tls else None
        seconds = upstream.timeouts.connect
        try:
            async with patient_timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: self._connection_type(keep, lost, self.writes), parsed.host, parsed.port, ssl=trust
                )
        except TimeoutError:
            raise _unreachable(parsed, f"no connection within {seconds:g} s (timeouts.connect)") from None
        except (OSError, ValueError) as error:
            raise _unreachable(parsed, f"{type(error).__name__}: {error}") from None
        self._all.add(connection)
        return connection

    def _sweep(self) -> None:
        """Closes connections that were idle for too long, and schedules itself again while there are idle ones."""
        loop = asyncio.get_running_loop()
        limit = loop.time() - IDLE_SECONDS
        for idle in self._idle.values():
            for connection in [connection for connection in idle if connection.since <= limit]:
                idle.pop(connection)
                self._tasks.attempt("idle connections", connection.abort)
        waiting = any(self._idle.values())
        self._sweeper = loop.call_later(IDLE_SECONDS / 2, self._sweep) if waiting else None

    def _trusted(self, path: str) -> ssl.SSLContext:
        if path not in self._trust:
            try:
                context = ssl.create_default_context(cafile=path or None)
            except (OSError, OverflowError, ssl.SSLError) as error:  # a port above 65,535 raises OverflowError
                raise ConfigError(f"ca_file {path!r} cannot be read: {error}") from None
            context.set_alpn_protocols(["http/1.1"])
            self._trust[path] = context
        return self._trust[path]


@lru_cache(ADDRESSES)
def parse_url(url: str) -> ParsedUrl:
    """Parses a URL."""
    try:
        split = urlsplit(url)
        host, port = split.hostname or "", split.port
        written = f"[{host}]" if ":" in host else host.encode("idna").decode()
        target = quote(split.path or "/", _URL_SAFE) + (f"?{quote(split.query, _URL_SAFE)}" if split.query else "")
    except ValueError as error:
        raise _unusable(url, str(error)) from None
    if split.scheme not in ("http", "https") or not host:
        raise _unusable(url, "it must begin with http:// or https:// and name a host")
    tls = split.scheme == "https"
    usual = 443 if tls else 80
    named = written if port in (None, usual) else f"{written}:{port}"
    start = f"{target} HTTP/1.1\r\nhost: {named}\r\n"
    return ParsedUrl(
        written.strip("[]"), port or usual, tls, start, basic_authorization(url), f"{split.scheme}://{named}{target}"
    )


def _unusable(url: str, why: str) -> UpstreamError:
    return UpstreamError(
        f"its URL {shown_url(url)} cannot be used: {why}; correct its base_url", code="upstream_unreachable", retryable=False
    )


def _unreachable(parsed: ParsedUrl, why: str) -> UpstreamError:
    address = f"{'https' if parsed.tls else 'http'}://{parsed.host}:{parsed.port}"
    return UpstreamError(
        f"it cannot be reached at {address}: {why}; check that it is running and that base_url is right",
        code="upstream_unreachable",
    )
