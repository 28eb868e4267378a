"""The web page: files of the package, served with a strict Content-Security-Policy.

The files contain no data about the gateway. The page gets all its data from the public API with its user's key, so the files can
be served to everybody.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from ...errors import RequestError, excerpt

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


def page_routes() -> list[Route]:
    async def index(http: HttpRequest) -> Response:
        return _answer(http, "index.html")

    async def file(http: HttpRequest) -> Response:
        return _answer(http, http.path_params["path"])

    return [Route("/", index, methods=["GET"]), Route("/web/{path:path}", file, methods=["GET"])]


def _answer(http: HttpRequest, path: str) -> Response:
    file = page_file(path)
    headers = {**HEADERS, "etag": file.tag}
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in http.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type)
    return Response(file.data, headers=headers, media_type=file.media_type)


def page_file(path: str) -> PageFile:
    """Returns a file of the page. Only names that the folder lists are opened."""
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
