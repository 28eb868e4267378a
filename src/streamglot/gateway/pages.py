"""Everything that is no stream: models, health, metrics, the front page, forwarded embeddings."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..dialects import dialect
from ..errors import RequestError, StreamglotError
from .call import json_object
from .forward import forward_json
from .listing import by_path, entry, listing, tags
from .openapi import description, viewer
from .tokens import estimate

if TYPE_CHECKING:
    from .app import Gateway


def pages(gateway: Gateway) -> Starlette:
    """The application for all addresses that are no face."""

    def admit(http: HttpRequest) -> None:
        gateway.doorkeeper.admit(http.headers, http.query_params.get("key", ""))

    async def models(http: HttpRequest) -> Response:
        admit(http)
        body = listing(gateway.routes.models(), http.headers, http.url.path, "key" in http.query_params)
        return reply(body)

    async def model(http: HttpRequest) -> Response:
        admit(http)
        name = http.path_params["name"]
        owner = dict(gateway.routes.models()).get(name)
        if owner is None:
            candidates = gateway.routes.find(name, lambda: 0.0)
            owner = candidates[0].upstream.name
        return reply(by_path(name) if "x-goog-api-key" in http.headers else entry(name, owner))

    async def ollama_tags(http: HttpRequest) -> Response:
        admit(http)
        return reply(tags(gateway.routes.models()))

    async def ollama_version(http: HttpRequest) -> Response:
        from .. import __version__

        return reply({"version": __version__})

    async def count_tokens(http: HttpRequest) -> Response:
        admit(http)
        body = json_object(await http.body())
        return reply({"input_tokens": estimate(dialect("anthropic").parse_request({"max_tokens": 1, **body}))})

    async def embeddings(http: HttpRequest) -> Response:
        admit(http)
        body = json_object(await http.body())
        status, answer, media_type = await forward_json(gateway, body, "embeddings")
        return Response(answer, status, media_type=media_type)

    async def health(http: HttpRequest) -> Response:
        return reply({"status": "ok"})

    async def ready(http: HttpRequest) -> Response:
        states = gateway.states()
        down = bool(states) and all(state == "open" for state in states.values())
        status = 503 if gateway.stopping or down else 200
        return reply({"status": "ready" if status == 200 else "not ready", "upstreams": states}, status)

    async def metrics(http: HttpRequest) -> Response:
        for name, state in gateway.states().items():
            gateway.metrics.upstream_state.labels(name).set(state == "open")
        return PlainTextResponse(gateway.metrics.page(), media_type="text/plain; version=0.0.4")

    async def openapi(http: HttpRequest) -> Response:
        return reply(description())

    async def docs(http: HttpRequest) -> Response:
        return HTMLResponse(viewer())

    async def front(http: HttpRequest) -> Response:
        return HTMLResponse(front_page(gateway, f"{http.url.scheme}://{http.url.netloc}"))

    get = ["GET"]
    routes = [
        Route("/", front, methods=get),
        Route("/health", health, methods=get),
        Route("/ready", ready, methods=get),
        Route("/metrics", metrics, methods=get),
        Route("/openapi.json", openapi, methods=get),
        Route("/docs", docs, methods=get),
        Route("/api/tags", ollama_tags, methods=get),
        Route("/api/version", ollama_version, methods=get),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]
    for version in ("v1", "v1beta", "v1alpha"):
        routes += [
            Route(f"/{version}/models", models, methods=get),
            Route(f"/{version}/models/{{name:path}}", model, methods=get),
        ]
    application = Starlette(routes=routes)
    application.add_exception_handler(StreamglotError, refused)
    application.add_exception_handler(404, nothing_here)
    application.add_exception_handler(405, nothing_here)
    return application


def reply(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def refused(http: HttpRequest, error: Any) -> Response:
    """An error in the shape of the dialect that the address belongs to."""
    name = "anthropic" if "anthropic-version" in http.headers else "gemini" if "x-goog-api-key" in http.headers else "openai_chat"
    return reply(dialect(name).error_body(error.as_event()), error.status)


async def nothing_here(http: HttpRequest, error: Any) -> Response:
    message = f"there is nothing at {http.method} {http.url.path}; / lists the addresses"
    return await refused(http, RequestError(message, code="unknown_url", status=getattr(error, "status_code", 404)))


def front_page(gateway: Gateway, base: str) -> str:
    """A plain page: addresses, upstreams, snippets to paste."""
    rows = "".join(
        f"<tr><td>{escape(upstream.name)}</td><td>{escape(upstream.dialect)}</td><td>{escape(state)}</td></tr>"
        for upstream, state in ((gateway.routes.upstreams[name], state) for name, state in gateway.states().items())
    )
    found = "".join(
        f"<tr><td>{escape(one.provider.title)}</td><td>{'found' if one.there else 'not found'}</td><td>{escape(one.because)}</td></tr>"
        for one in gateway.found
    )
    snippets = "".join(f"<h3>{escape(title)}</h3><pre>{escape(text)}</pre>" for title, text in snippets_for(base))
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>streamglot</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1c1c28;background:#fff}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}}
pre{{background:#f4f4f8;padding:.8rem;overflow:auto;border-radius:6px}}code{{background:#f4f4f8;padding:0 .2rem}}
@media (prefers-color-scheme:dark){{body{{background:#15151c;color:#e8e8f0}}pre,code{{background:#22222c}}td,th{{border-color:#333}}}}
</style></head><body><h1>streamglot</h1><p>Every LLM stream, one language. Point any client here.</p>
<h2>Upstreams</h2><table><tr><th>name</th><th>dialect</th><th>state</th></tr>{rows}</table>
<h2>Looked for</h2><table><tr><th>provider</th><th></th><th></th></tr>{found}</table>
<h2>Addresses</h2><p><code>/v1/chat/completions</code> <code>/v1/responses</code> <code>/v1/messages</code>
<code>/v1beta/models/…:generateContent</code> <code>/api/chat</code> <code>/agui</code> <code>/ui</code>
<code>/v1/completions</code> <code>/v1/models</code> <a href="/docs">all of them</a></p>
<h2>Snippets</h2>{snippets}</body></html>"""


def snippets_for(base: str) -> list[tuple[str, str]]:
    return [
        (
            "curl",
            f"curl -N {base}/v1/chat/completions -H 'content-type: application/json' \\\n"
            '  -d \'{"model": "replay", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}\'',
        ),
        (
            "openai",
            f'from openai import OpenAI\nclient = OpenAI(base_url="{base}/v1", api_key="none")\n'
            'for chunk in client.chat.completions.create(model="replay", stream=True,\n'
            '        messages=[{"role": "user", "content": "Hello"}]):\n    print(chunk.choices[0].delta.content or "", end="")',
        ),
        (
            "anthropic",
            f'from anthropic import Anthropic\nclient = Anthropic(base_url="{base}", api_key="none")\n'
            'with client.messages.stream(model="replay", max_tokens=99,\n'
            '        messages=[{"role": "user", "content": "Hello"}]) as stream:\n    print(stream.get_final_text())',
        ),
    ]
