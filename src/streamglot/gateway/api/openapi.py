"""The OpenAPI description of the gateway, and a small page that shows it without loading anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from ...json_types import JsonObject
from ..endpoints import ENDPOINTS
from .router import PARAMETER, APIRoute

_WITHOUT_BODY = ("/cancel", "/stop")
_GEMINI = ("/v1/models/{model}:generateContent", "/v1/models/{model}:streamGenerateContent")


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
