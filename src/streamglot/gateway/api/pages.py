"""The pages that the gateway serves: the web page, and the OpenAPI description with a small page that shows it.

The files of the web page contain no data about the gateway. The page gets all its data from the public API with its user's key,
so the files can be served to everybody. They have a strict Content-Security-Policy, and nothing is loaded from elsewhere.
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
from ...json_types import JsonObject
from ..auth.access import Access
from ..endpoints import ENDPOINTS
from ..http.call import Reply, RoutedCall
from ..observe.recording import Recording
from ..services import GatewayServices, RunningRequests
from .router import PARAMETER, APIRoute, admit, json_reply

_WITHOUT_BODY = ("/cancel", "/stop")
_GEMINI = ("/v1/models/{model}:generateContent", "/v1/models/{model}:streamGenerateContent")
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


def description(routes: Iterable[APIRoute]) -> JsonObject:
    """The endpoints of dialects and these routes."""
    from ... import __version__

    paths: dict[str, JsonObject] = {}
    for path, endpoint in ENDPOINTS.items():
        paths[path] = {"post": _streaming(endpoint.dialect, f"A request in the dialect {endpoint.dialect}")}
    for path in (*_GEMINI, *(one.replace("/v1/", "/v1beta/") for one in _GEMINI)):
        paths[path] = {"post": _streaming("gemini", "A request in the dialect gemini")}
        paths[path]["post"]["parameters"] = [_in_path("model")]
    for route in routes:
        if route.summary:
            path = PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamglot", "version": __version__, "description": "Every LLM stream, one language."},
        "paths": paths,
    }


def _operation(route: APIRoute) -> JsonObject:
    operation: JsonObject = {"summary": route.summary, "responses": {"200": {"description": "the answer"}}}
    parameters = [_in_path(name) for name, _ in PARAMETER.findall(route.path)]
    parameters += [_in_query(name) for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.method in ("POST", "PATCH") and not route.path.endswith(_WITHOUT_BODY):
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    return operation


def _streaming(dialect: str, summary: str) -> JsonObject:
    answer = {"description": "a stream, or one JSON object if the request did not ask for a stream"}
    error = {"description": f"an error in the shape of {dialect}"}
    return {
        "summary": summary,
        "tags": [dialect],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": answer, "default": error},
    }


def _in_path(name: str) -> JsonObject:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(name: str) -> JsonObject:
    return {"name": name, "in": "query", "schema": {"type": "string"}}


def viewer(routes: Iterable[APIRoute]) -> str:
    """The page."""
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{path}</code></td><td>{operation['summary']}</td></tr>"
        for path, methods in description(routes)["paths"].items()
        for method, operation in methods.items()
    )
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>streamglot: endpoints</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse;width:100%}}td{{padding:.3rem .6rem;border-bottom:1px solid #ddd}}</style></head>
<body><h1>Endpoints</h1><p>The same as <a href="/openapi.json">openapi.json</a>.</p><table>{rows}</table></body></html>"""
