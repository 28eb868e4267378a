"""The routes that are not endpoints of dialects: models, health, metrics, the page, forwarded embeddings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ...dialects import dialect
from ...engine.record import clean_id
from ...engine.tokens import estimate
from ...engine.upstream_request import retry_after_of
from ...errors import RequestError, StreamglotError
from ...json_types import JsonObject
from ...upstream.model_lists import CLIENT_WAIT_SECONDS
from ...upstream.providers import provider_name
from ..auth.authenticator import Caller, anonymous
from ..endpoints import COUNTED_BY, dialect_of
from ..http.asgi import DisconnectWatch, read_body
from ..http.call import ClientDisconnected, json_object
from ..http.reply import retry_after
from .approvals import approval_routes
from .batch import batch_routes
from .batches import batches_routes
from .files import file_routes
from .forward import EMBEDDINGS_PATH, count_tokens, forward_json
from .inspect import inspect_routes
from .message_batches import message_batch_routes
from .metered import Metered
from .models import by_address, by_path, entry, listing
from .openapi import description, viewer
from .overview import overview_routes
from .page import page_routes
from .responses import response_routes
from .resume import resume_routes
from .session_edits import session_routes
from .store_view import store_routes

if TYPE_CHECKING:
    from ..app import Gateway

Answered = TypeVar("Answered")


def pages(gateway: Gateway) -> Starlette:
    """Returns the application for all paths that are not endpoints."""

    def admit(http: HttpRequest) -> Caller | None:
        return gateway.authenticator.admit(http.headers, http.query_params.get("key", ""))

    def admit_to_page(http: HttpRequest) -> None:
        """Admits a caller to a page about the gateway itself: everybody, or only callers with a key."""
        if not gateway.is_public(http.url.path, http.headers.get("host", "")):
            admit(http)

    async def allowed(http: HttpRequest) -> list[tuple[str, str]]:
        caller = admit(http)
        known = await gateway.pool.models_known(CLIENT_WAIT_SECONDS)
        return [(name, owner) for name, owner in known if caller is None or caller.may_use(name)]

    def providers() -> dict[str, str]:
        return {name: provider_name(upstream) for name, upstream in gateway.pool.routes.upstreams.items()}

    async def models(http: HttpRequest) -> Response:
        return reply(listing(await allowed(http), providers(), http.headers, http.url.path, "key" in http.query_params))

    async def model(http: HttpRequest) -> Response:
        name = http.path_params["name"].removeprefix("models/")
        owner = dict(await allowed(http)).get(name)
        if owner is None:
            caller = admit(http)
            if caller is not None:
                caller.check(name, gateway.clock())
            owner = gateway.pool.routes.find(name, lambda: 0.0)[0].upstream.name
        return reply(
            by_path(name)
            if by_address(http.headers, http.url.path, "key" in http.query_params)
            else entry(name, owner, providers()[owner])
        )

    from ...dialects.ollama import catalog

    async def local_tags(http: HttpRequest) -> Response:
        return reply(catalog.tags(await allowed(http)))

    async def local_running(http: HttpRequest) -> Response:
        return reply(catalog.running(await allowed(http)))

    async def local_version(_: HttpRequest) -> Response:
        return reply(catalog.version())

    async def local_show(http: HttpRequest) -> Response:
        _, body = await asked(http, field="name")
        name = str(body.get("model") or body.get("name") or "")
        owner = gateway.pool.routes.find(name, lambda: 0.0)[0].upstream.name
        return reply(catalog.show(name, owner))

    async def asked(http: HttpRequest, model: str = "", field: str = "model") -> tuple[Caller | None, JsonObject]:
        """Returns the caller and the body of a request that is not an exchange, with the same limits.

        ``model`` comes from the path; ``field`` is another field that may have the model's name.
        """
        caller = admit(http)
        http.state.told = partial(gateway.limits_told, caller, dialect_of(http.url.path, http.headers), upstream_limits(http))
        server = gateway.server
        body = json_object(
            await read_body(http.receive, http.headers, server.max_body_bytes, gateway.within(server.body_seconds))
        )
        gateway.admission.check(caller, model or str(body.get("model") or body.get(field) or ""))
        return caller, body

    async def counted(http: HttpRequest) -> Response:
        caller, body = await asked(http)
        counting = dialect(COUNTED_BY)
        counting.need_conversation(body)
        request = counting.parse_count(body)
        async with gateway.slot(caller):
            answer = await while_there(
                http, count_tokens(gateway.services, body, request, request_id(http), upstream_limits(http))
            )
        data = answer or msgspec.json.encode(counting.count_body(estimate(request)))
        return Response(data, headers=limits_told(http), media_type="application/json")

    def estimated(name: str) -> Callable[[HttpRequest], Awaitable[Response]]:
        """Returns a route that estimates the tokens of a request in this dialect without calling an upstream."""

        async def count(http: HttpRequest) -> Response:
            model = http.path_params.get("name", "")
            _, body = await asked(http, model)
            counting = dialect(name)
            return reply(counting.count_body(estimate(counting.parse_count(body, model))), headers=limits_told(http))

        return count

    async def embeddings(http: HttpRequest) -> Response:
        caller, body = await asked(http)
        async with Metered(
            gateway.services, gateway.admission, gateway.recording, caller, http.headers, body, request_id(http), "embeddings"
        ) as metered:
            owner = caller.name if caller is not None else anonymous(http.headers)
            limits = upstream_limits(http)
            work = forward_json(gateway.services, body, EMBEDDINGS_PATH, request_id(http), metered.asked, owner, limits)
            metered.answer = await while_there(http, work)
        return Response(metered.answer, headers=limits_told(http), media_type="application/json")

    async def health(_: HttpRequest) -> Response:
        return reply({"status": "ok"})

    async def ready(http: HttpRequest) -> Response:
        admit_to_page(http)
        states = gateway.pool.states()
        down = bool(states) and all(state == "open" for state in states.values())
        status = 503 if gateway.stopping or down else 200
        ready = "ready" if status == 200 else "not ready"
        return reply({"status": ready, "upstreams": states, "store": gateway.store_state()}, status)

    async def metrics(http: HttpRequest) -> Response:
        admit_to_page(http)
        gateway.metrics.note_breakers({name: state == "open" for name, state in gateway.pool.states().items()})
        gateway.store_state()
        page, media_type = gateway.metrics_page(http.headers.get("accept", ""))
        return Response(page, headers={"content-type": media_type})

    async def openapi(_: HttpRequest) -> Response:
        return reply(description())

    async def docs(_: HttpRequest) -> Response:
        return HTMLResponse(viewer())

    get = ["GET"]
    routes = [
        *page_routes(),
        Route("/health", health, methods=get),
        Route("/ready", ready, methods=get),
        Route("/metrics", metrics, methods=get),
        Route("/openapi.json", openapi, methods=get),
        Route("/docs", docs, methods=get),
        Route("/api/tags", local_tags, methods=get),
        Route("/api/ps", local_running, methods=get),
        Route("/api/show", local_show, methods=["POST"]),
        Route("/api/version", local_version, methods=get),
        Route("/v1/messages/count_tokens", counted, methods=["POST"]),
        Route("/v1/responses/input_tokens", estimated("openai_responses"), methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        *batch_routes(gateway, request_id, while_there),
        *resume_routes(gateway),
        *approval_routes(gateway),
        *overview_routes(gateway),
        *session_routes(gateway),
        *store_routes(gateway),
        *inspect_routes(gateway),
        *response_routes(gateway),
        *file_routes(gateway),
        *batches_routes(gateway),
        *message_batch_routes(gateway),
    ]
    for version in ("v1", "v1beta", "v1alpha"):
        routes += [
            Route(f"/{version}/models/{{name:path}}:countTokens", estimated("gemini"), methods=["POST"]),
            Route(f"/{version}/models", models, methods=get),
            Route(f"/{version}/models/{{name:path}}", model, methods=get),
        ]
    application = Starlette(routes=routes)
    application.add_exception_handler(StreamglotError, refused)
    application.add_exception_handler(ClientDisconnected, gone)
    application.add_exception_handler(500, broken)
    application.add_exception_handler(404, nothing_here)
    application.add_exception_handler(405, nothing_here)
    return application


def reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def request_id(http: HttpRequest) -> str:
    """Returns the client's request id, or a new one. Repeated calls return the same id."""
    if not hasattr(http.state, "request_id"):
        http.state.request_id = clean_id(http.headers.get("x-request-id", "")) or uuid.uuid4().hex
    named: str = http.state.request_id
    return named


def upstream_limits(http: HttpRequest) -> dict[str, str]:
    """Returns the headers in which the upstream of this request told its rate limits. Whoever asks it adds them."""
    if not hasattr(http.state, "limits"):
        http.state.limits = {}
    limits: dict[str, str] = http.state.limits
    return limits


def limits_told(http: HttpRequest) -> dict[str, str]:
    """Returns the headers that tell the client its rate limits. Pages about the gateway itself have none."""
    headers: dict[str, str] = http.state.told() if hasattr(http.state, "told") else {}
    return headers


async def while_there(http: HttpRequest, work: Coroutine[object, object, Answered]) -> Answered:
    """Returns the result of the work. If the client disconnects first, cancels the work and its upstream request."""
    task = asyncio.ensure_future(work)
    watch = DisconnectWatch(http.scope, http.receive)
    watch.start(lambda: _drop(task))
    try:
        return await task
    except asyncio.CancelledError:
        task.cancel()
        raise ClientDisconnected from None
    finally:
        watch.stop()


def _drop(task: asyncio.Task[object]) -> None:
    task.cancel()


async def gone(_: HttpRequest, __: Exception) -> Response:
    """Returns an empty response, because the client has disconnected."""
    return Response(status_code=499)


async def refused(http: HttpRequest, error: Any) -> Response:  # Any: a StreamglotError, which Starlette does not know
    """Returns an error in the shape of the dialect that the path belongs to."""
    headers = {**limits_told(http), "x-request-id": request_id(http)}
    after = retry_after_of(error)
    if after is not None:
        headers["retry-after"] = retry_after(after)
    if not error.retryable:
        headers["x-should-retry"] = "false"
    return reply(dialect(dialect_of(http.url.path, http.headers)).error_body(error.as_event()), error.status, headers)


async def broken(http: HttpRequest, _: Exception) -> Response:
    """Answers after an internal error. Its place in the code goes to the log, not to the client."""
    message = f"internal error of the gateway; its log has the details (request id {request_id(http)})"
    return await refused(http, StreamglotError(message))


async def nothing_here(http: HttpRequest, error: object) -> Response:
    message = f"there is no endpoint {http.method} {http.url.path}; see /docs for the list"
    return await refused(http, RequestError(message, code="unknown_url", status=getattr(error, "status_code", 404)))
