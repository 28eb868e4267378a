"""The web page: files of the package, served with a strict Content-Security-Policy.

The files contain no data about the gateway. The page gets all its data from the public API with its user's key, so the files can
be served to everybody.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...errors import RequestError, excerpt
from ..auth.access import Access
from ..http.call import RoutedCall
from ..http.reply import Reply
from ..observe.recording import Recording
from ..requests import RunningRequests
from ..services import GatewayServices
from .openapi import description, viewer
from .router import APIRoute, admit, json_reply

FOLDER: Final = Path(__file__).parents[2] / "web"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
"""Media types by file extension. Other files of the folder are not served."""
MAX_FILES_HELD: Final = 128
"""Compressed files held in memory: more than the page has."""
POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""No inline script and no eval. HTML enters the document only as DOMPurify's output; browsers with Trusted Types enforce it.
Images in answers must be data URLs, because fetching an image would reveal parts of the conversation to its host."""
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


class PageFile(Struct, frozen=True):
    """A file with the headers that it is sent with."""

    media_type: str
    data: bytes
    compressed: bytes
    tag: str


def page_routes() -> list[APIRoute]:
    async def index(call: RoutedCall) -> Reply:
        return _file_reply(call, "index.html")

    async def file(call: RoutedCall, path: str) -> Reply:
        return _file_reply(call, path)

    return [APIRoute("GET", "/", index, "The page: chat, inspector, overview"), APIRoute("GET", "/web/{path:path}", file)]


def _file_reply(call: RoutedCall, path: str) -> Reply:
    file = page_file(path)
    headers = {**HEADERS, "etag": file.tag}
    if call.headers.get("if-none-match") == file.tag:
        return Reply(304, headers=headers)
    if "gzip" in call.headers.get("accept-encoding", ""):
        return Reply(200, file.compressed, file.media_type, {**headers, "content-encoding": "gzip"})
    return Reply(200, file.data, file.media_type, headers)


def page_file(path: str) -> PageFile:
    """A file of the page. Only names that the folder lists are opened."""
    found = _names().get(path)
    if found is None or not found.is_file():
        raise RequestError(f"the page has no file {excerpt(path)}", code="unknown_url", status=404)
    return _read(found, found.stat().st_mtime_ns)


@cache
def _names() -> dict[str, Path]:
    files = (file for file in FOLDER.rglob("*") if file.suffix in MEDIA_TYPES)
    return {file.relative_to(FOLDER).as_posix(): file for file in files}


@lru_cache(MAX_FILES_HELD)
def _read(file: Path, _changed: int) -> PageFile:
    """Reads a file. ``_changed`` is its modification time: it is a cache key, so that changes show at once."""
    data = file.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    return PageFile(MEDIA_TYPES[file.suffix], data, gzip.compress(data, 6, mtime=0), tag)


def description_routes(table: Callable[[], Iterable[APIRoute]]) -> list[APIRoute]:
    """The routes that describe all routes. ``table`` returns those."""

    async def openapi(_: RoutedCall) -> Reply:
        return json_reply(description(table()))

    async def docs(_: RoutedCall) -> Reply:
        return Reply(200, viewer(table()).encode(), MEDIA_TYPES[".html"])

    return [APIRoute("GET", "/openapi.json", openapi), APIRoute("GET", "/docs", docs)]


def state_routes(services: GatewayServices, access: Access, recording: Recording, requests: RunningRequests) -> list[APIRoute]:
    """The routes for those who run the gateway."""

    def admit_to_page(call: RoutedCall) -> None:
        """Admits a caller to a page about the gateway itself: everybody, or only callers with a key."""
        if not access.is_public(call.path, call.headers.get("host", "")):
            admit(access, call)

    async def health(_: RoutedCall) -> Reply:
        return json_reply({"status": "ok"})

    async def ready(call: RoutedCall) -> Reply:
        admit_to_page(call)
        states = services.pool.states()
        down = bool(states) and all(state == "open" for state in states.values())
        status = 503 if requests.stopping or down else 200
        ready = "ready" if status == 200 else "not ready"
        return json_reply({"status": ready, "upstreams": states, "store": recording.store_state()}, status)

    async def metrics(call: RoutedCall) -> Reply:
        admit_to_page(call)
        recording.metrics.note_breakers({name: state == "open" for name, state in services.pool.states().items()})
        recording.store_state()
        recording.metrics.publish(len(requests.running))
        page, media_type = recording.metrics.page(call.headers.get("accept", ""))
        return Reply(200, page, media_type)

    return [
        APIRoute("GET", "/health", health, "Whether the process runs"),
        APIRoute("GET", "/ready", ready, "Whether the gateway can serve requests"),
        APIRoute("GET", "/metrics", metrics, "Prometheus metrics"),
    ]
