"""The OpenAPI description of the gateway, and a small page that shows it without loading anything from elsewhere."""

from __future__ import annotations

from ...json_types import JsonObject
from ..endpoints import ENDPOINTS
from .store_view import FILTERS

_PLAIN = {
    ("get", "/v1/models"): "The models that can be named",
    ("get", "/v1/models/{model}"): "One model",
    ("get", "/v1beta/models"): "The models, for clients of Gemini",
    ("get", "/api/tags"): "The models, for clients of Ollama",
    ("get", "/api/ps"): "The models that are loaded, for clients of Ollama",
    ("post", "/api/show"): "One model, for clients of Ollama",
    ("post", "/v1/responses/input_tokens"): "An estimate of the tokens of a request for a response",
    ("post", "/v1beta/models/{model}:countTokens"): "An estimate of the tokens of a request, for clients of Gemini",
    ("post", "/v1/messages/count_tokens"): "An estimate of the tokens of a request",
    ("post", "/v1/embeddings"): "Embeddings, forwarded to the upstream",
    ("post", "/v1/batch"): "Many requests in one: chat completions and tool calls, each with its own result or error",
    ("get", "/v1/responses/{id}"): "A stored response; with stream=true as a stream, from the event after starting_after",
    ("delete", "/v1/responses/{id}"): "Deletes a response: it can no longer be fetched by its id",
    ("get", "/v1/responses/{id}/input_items"): "The input items of a response",
    ("post", "/v1/responses/{id}/cancel"): "Stops a response in the background",
    ("post", "/v1/files"): "Uploads a file, as a form",
    ("get", "/v1/files"): "The files, the newest first",
    ("get", "/v1/files/{id}"): "One file",
    ("delete", "/v1/files/{id}"): "Deletes a file",
    ("get", "/v1/files/{id}/content"): "The content of a file; for the results of a running batch, the results so far",
    ("post", "/v1/batches"): "Runs the requests of an uploaded file as a batch",
    ("get", "/v1/batches"): "The batches, the newest first",
    ("get", "/v1/batches/{id}"): "One batch",
    ("post", "/v1/batches/{id}/cancel"): "Starts no more requests of a batch",
    ("post", "/v1/messages/batches"): "Runs many requests for messages as a batch",
    ("get", "/v1/messages/batches"): "The batches of messages, the newest first",
    ("get", "/v1/messages/batches/{id}"): "One batch of messages",
    ("delete", "/v1/messages/batches/{id}"): "Deletes a batch of messages that has ended",
    ("get", "/v1/messages/batches/{id}/results"): "The results of a batch of messages, a line for each",
    ("post", "/v1/messages/batches/{id}/cancel"): "Starts no more requests of a batch of messages",
    ("get", "/v1/streams/{id}"): "Resumes a stream after an event",
    ("post", "/v1/streams/{id}/stop"): "Stops a stream, and its upstream",
    ("get", "/sessions"): "The sessions, the newest first",
    ("get", "/sessions/{id}"): "One session and its turns",
    ("patch", "/sessions/{id}"): "Renames a session",
    ("delete", "/sessions/{id}"): "Removes a session with all its turns",
    ("get", "/sessions/{id}/export"): "All turns of a session as a file",
    ("get", "/turns"): "The turns, the newest first",
    ("get", "/turns/{id}"): "Everything that is stored about a turn",
    ("get", "/turns/{id}/raw"): "The bytes of a turn as they were received, with their timing",
    ("get", "/turns/{id}/export"): "A turn as a file",
    ("get", "/search"): "The turns in which words occur",
    ("get", "/turns/{id}/inspect"): "A turn as linked rows: upstream bytes, events, client bytes; a running one is followed",
    ("get", "/turns/{id}/inspect/curl"): "A command that sends the request of a turn again",
    ("get", "/turns/{id}/inspect/test"): "A turn as a test: its recording and a pytest file",
    ("get", "/inspect"): "The dialects and in-band formats that a pasted stream may have",
    ("post", "/inspect"): "A pasted stream or recording as linked rows",
    ("post", "/inspect/test"): "A pasted stream as a test",
    ("get", "/approvals"): "The calls that wait for a person's decision",
    ("post", "/approvals/{id}"): "Decides about a call: approved, text for changed arguments, message for a refusal",
    ("get", "/approvals/events"): "The open approvals as a stream, sent again whenever they change",
    ("get", "/overview"): "The running requests, and the figures of the last hour",
    ("get", "/overview/events"): "The overview as a stream, sent again whenever it changes",
    ("get", "/overview/models"): "The models with their upstreams, and the tools",
    ("post", "/overview/{id}/stop"): "Stops a request of this process by its request id; own if it is the caller's own",
    ("get", "/"): "The page: chat, inspector, overview",
    ("get", "/health"): "Whether the process runs",
    ("get", "/ready"): "Whether the gateway can serve requests",
    ("get", "/metrics"): "Prometheus metrics",
}
_IN_QUERY = {
    ("get", "/v1/responses/{id}"): ("stream", "starting_after", "include"),
    ("get", "/v1/responses/{id}/input_items"): ("order", "after", "limit", "include"),
    ("get", "/v1/files"): ("after", "limit", "order", "purpose"),
    ("get", "/v1/batches"): ("after", "limit"),
    ("get", "/v1/messages/batches"): ("after_id", "before_id", "limit"),
    ("get", "/v1/streams/{id}"): ("after",),
    ("get", "/sessions"): ("before", "limit"),
    ("get", "/sessions/{id}"): ("before", "limit"),
    ("get", "/sessions/{id}/export"): ("format",),
    ("get", "/turns"): FILTERS,
    ("get", "/turns/{id}/raw"): ("format", "direction"),
    ("get", "/turns/{id}/export"): ("format",),
    ("get", "/search"): ("q", *FILTERS),
    ("get", "/turns/{id}/inspect"): ("as", "follow"),
    ("get", "/turns/{id}/inspect/curl"): ("of",),
    ("post", "/inspect"): ("from", "inband", "as"),
    ("post", "/inspect/test"): ("from", "inband"),
}
_WITHOUT_BODY = ("/cancel", "/stop")
_GEMINI = ("/v1/models/{model}:generateContent", "/v1/models/{model}:streamGenerateContent")


def description() -> JsonObject:
    from ... import __version__

    paths: dict[str, JsonObject] = {}
    for path, endpoint in ENDPOINTS.items():
        paths[path] = {"post": _streaming(endpoint.dialect, f"A request in the dialect {endpoint.dialect}")}
    for path in (*_GEMINI, *(one.replace("/v1/", "/v1beta/") for one in _GEMINI)):
        paths[path] = {"post": _streaming("gemini", "A request in the dialect gemini")}
        paths[path]["post"]["parameters"] = [_in_path("model")]
    for (method, path), summary in _PLAIN.items():
        operation: JsonObject = {"summary": summary, "responses": {"200": {"description": "the answer"}}}
        parameters = [_in_path(name) for name in ("model", "id") if f"{{{name}}}" in path]
        parameters += [_in_query(name) for name in _IN_QUERY.get((method, path), ())]
        if parameters:
            operation["parameters"] = parameters
        if method in ("post", "patch") and not path.endswith(_WITHOUT_BODY):
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamglot", "version": __version__, "description": "Every LLM stream, one language."},
        "paths": paths,
    }


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


def viewer() -> str:
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{path}</code></td><td>{operation['summary']}</td></tr>"
        for path, methods in description()["paths"].items()
        for method, operation in methods.items()
    )
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>streamglot: endpoints</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse;width:100%}}td{{padding:.3rem .6rem;border-bottom:1px solid #ddd}}</style></head>
<body><h1>Endpoints</h1><p>The same as <a href="/openapi.json">openapi.json</a>.</p><table>{rows}</table></body></html>"""
