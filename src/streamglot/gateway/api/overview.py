"""The overview: running exchanges, the figures of the last hour, the state of upstreams. A key sees its own exchanges.

GET  /overview                   the state
GET  /overview/events            the state as server-sent events, sent again whenever it changes
POST /overview/{id}/stop         stops an exchange of this process, by its request id; {"own": true} if it is the caller's own
GET  /overview/models            the models with their upstreams, and the tools, for the web page
"""

from __future__ import annotations

import asyncio
from glob import escape
from typing import TYPE_CHECKING, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...engine.pipeline import gets_tools_as_text
from ...errors import RequestError, StreamglotError, excerpt
from ...json_types import JsonObject
from ...upstream.model_lists import CLIENT_WAIT_SECONDS
from ...upstream.prices import load_prices
from ...upstream.providers import abilities_of
from ..auth.authenticator import Caller
from ..http.asgi import is_half_closed, read_body
from ..http.call import json_object
from ..observe.live import MAX_OPEN, live_feed, open_exchange
from .store_view import id_in, json_reply

if TYPE_CHECKING:
    from ..app import Gateway

COALESCE_SECONDS: Final = 0.5
"""Seconds between two states sent to one watcher. A person cannot follow more, and a burst of requests costs only one state."""
TOOLS_SECONDS: Final = 5.0
"""Seconds to wait for the tools of MCP servers that must be started first."""


def overview_routes(gateway: Gateway) -> list[Route]:
    def admitted(http: HttpRequest) -> Caller | None:
        return gateway.authenticator.admit(http.headers)

    async def state(http: HttpRequest) -> Response:
        admitted(http)
        await gateway.approvals.refresh()
        return json_reply(overview(gateway, admitted(http)))

    async def events(http: HttpRequest) -> Response:
        admitted(http)
        gateway.live.check_room("overview")
        await asyncio.to_thread(load_prices)  # loading prices must not block the event loop
        await gateway.approvals.refresh()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        feed = live_feed(
            gateway.live,
            "overview",
            lambda: overview(gateway, admitted(http)),
            lambda: gateway.stopping,
            quiet=gateway.server.keep_alive_seconds,
            half_closed=lambda: is_half_closed(http.scope),
            pause=COALESCE_SECONDS,
        )
        return StreamingResponse(feed, 200, headers, "text/event-stream")

    async def stop(http: HttpRequest) -> Response:
        caller, id = admitted(http), id_in(http)
        own = caller is not None or await says_own(http)
        for handler in gateway.open_requests(caller):
            if handler.record.request_id == id:
                handler.stop() if own else handler.interrupt(stopped_by_operator())
                return json_reply({"id": id, "stopping": True})
        message = f"no request {excerpt(id)} of yours runs in this process; GET /overview lists those that run"
        raise RequestError(message, code="not_found", status=404)

    async def says_own(http: HttpRequest) -> bool:
        """Whether the body says that the request to stop is the caller's own. Without keys nothing else tells."""
        server = gateway.server
        body = await read_body(http.receive, http.headers, server.max_body_bytes, gateway.within(server.body_seconds))
        return bool(body) and json_object(body).get("own") is True

    async def models(http: HttpRequest) -> Response:
        caller = admitted(http)
        await gateway.pool.models_known(CLIENT_WAIT_SECONDS)
        return json_reply({**_models(gateway, caller), "tools": await _tools(gateway, caller)})

    return [
        Route("/overview", state, methods=["GET"]),
        Route("/overview/events", events, methods=["GET"]),
        Route("/overview/models", models, methods=["GET"]),
        Route("/overview/{id}/stop", stop, methods=["POST"]),
    ]


def stopped_by_operator() -> StreamglotError:
    """The error of a request that was not stopped by its own client. Its answer must not look complete."""
    message = "cancelled by the operator: the answer is not complete"
    return StreamglotError(message, code="cancelled_by_operator", status=403)


def overview(gateway: Gateway, caller: Caller | None) -> JsonObject:
    """Returns the state. ``operator`` says whether the reader sees the exchanges of all keys."""
    from ... import __version__

    key, now = None if caller is None else caller.name, gateway.clock()
    running = sorted(gateway.open_requests(caller), key=lambda handler: handler.record.began)
    return {
        "version": __version__,
        "operator": caller is None,
        "since": gateway.live.since,
        "open_count": len(running),
        "open": [open_exchange(one.record, now) for one in running[:MAX_OPEN]],
        **gateway.live.state(key),
        "upstreams": _upstreams(gateway) if caller is None else [],
        "approvals": [asked for asked in gateway.approvals.seen() if key in (None, asked.key)],
        "store": gateway.store_state(),
    }


def _upstreams(gateway: Gateway) -> list[JsonObject]:
    pool, now = gateway.pool, gateway.clock()
    rows = []
    for name, state in pool.states().items():
        upstream = pool.routes.upstreams[name]
        breakers = pool.breakers(upstream)
        wait = breakers.wait(now) if state == "open" else 0.0
        row: JsonObject = {
            "name": name,
            "dialect": upstream.dialect,
            "state": state,
            "wait": round(wait, 1),
            "place": upstream.place,
        }
        blocked = {model: round(breaker.wait(now), 1) for model, breaker in breakers.open_models(now).items()}
        rows.append({**row, "blocked_models": blocked} if blocked else row)
    return rows


def _models(gateway: Gateway, caller: Caller | None) -> JsonObject:
    """Returns the models.

    ``patterns`` belong to upstreams that serve more models than they list: any matching name can be requested. A key sees those
    patterns that have a model for it.
    """
    routes = gateway.pool.routes
    named = [(name, owner) for name, owner in gateway.pool.models() if caller is None or caller.may_use(name)]
    default = routes.named("")
    return {
        "default": default if caller is None or caller.may_use(default) else "",
        "models": [{"name": name, "upstream": owner, **_facts(gateway, owner)} for name, owner in named],
        "patterns": [
            {"upstream": upstream.name, "pattern": pattern, **_facts(gateway, upstream.name)}
            for upstream in routes.upstreams.values()
            for pattern in upstream.models
            if any(mark in pattern for mark in "*?[")
            and (caller is None or caller.may_use_some(pattern) or caller.may_use_some(f"{escape(upstream.name)}/{pattern}"))
        ],
    }


def _facts(gateway: Gateway, name: str) -> JsonObject:
    upstream = gateway.pool.routes.upstreams[name]
    refused = abilities_of(upstream).refused or ()
    return {
        "dialect": upstream.dialect,
        "tools": "prompt" if gets_tools_as_text(upstream) else "native",
        "refused": list(refused),
    }


async def _tools(gateway: Gateway, caller: Caller | None) -> list[dict[str, str]]:
    """Returns the tools that this caller may enable. Servers that do not answer in time are left out."""
    patterns = ["*"] if caller is None or caller.tools is None else list(caller.tools)
    registry = gateway.pool.tools.registry
    if not registry or not patterns:
        return []
    try:
        async with asyncio.timeout(TOOLS_SECONDS):
            found, _ = await registry.select(patterns)
    except TimeoutError:
        return []
    return [{"name": tool.name, "description": tool.description[:200]} for tool in found]
