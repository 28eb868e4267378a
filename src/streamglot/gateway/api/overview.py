"""What an operator watches: running exchanges, the figures of the last hour, the state of upstreams, and the calls that wait for
a person's decision. A key sees its own, the operator all.

GET  /overview                   the state
GET  /overview/events            the state as server-sent events, sent again whenever it changes
POST /overview/{id}/stop         stops an exchange of this process, by its request id; {"own": true} if it is the caller's own
GET  /overview/models            the models with their upstreams, and the tools, for the web page
GET  /approvals                  the open questions of all workers
GET  /approvals/events           the list and the waits for upstreams as a stream, sent again whenever they change
POST /approvals/{id}             {"approved": true, "text": "changed arguments"} or {"approved": false, "message": "why"}
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from glob import escape
from typing import Final

import msgspec

from ...engine.answer import gets_tools_as_text
from ...engine.upstreams import UpstreamPool
from ...errors import RequestError, StreamglotError, excerpt
from ...json_types import JsonObject
from ...upstream.models import CLIENT_WAIT_SECONDS
from ...upstream.prices import load_prices
from ...upstream.providers import abilities_of
from ..auth.access import Access
from ..auth.authenticator import Caller
from ..http.call import EVENTS, Reply, RoutedCall, StreamedReply, json_object
from ..observe.live import MAX_OPEN, live_feed, open_exchange, shown_wait
from ..observe.recording import Recording
from ..services import GatewayServices, RunningRequest, RunningRequests
from .router import APIRoute, admit, body_of, json_of, json_reply, seen_by

COALESCE_SECONDS: Final = 0.5
"""Seconds between two states sent to one watcher. A person cannot follow more, and a burst of requests costs only one state."""
TOOLS_SECONDS: Final = 5.0
"""Seconds to wait for the tools of MCP servers that must be started first."""


def overview_routes(services: GatewayServices, access: Access, recording: Recording, requests: RunningRequests) -> list[APIRoute]:
    def admitted(call: RoutedCall) -> Caller | None:
        return access.authenticator.admit(call.headers)

    def state_for(call: RoutedCall) -> JsonObject:
        return overview(services, recording, requests, admitted(call))

    async def state(call: RoutedCall) -> Reply:
        admitted(call)
        await recording.approvals.refresh()
        return json_reply(state_for(call))

    async def events(call: RoutedCall) -> StreamedReply:
        admitted(call)
        recording.live.check_room("overview")
        await asyncio.to_thread(load_prices)  # loading prices must not block the event loop
        await recording.approvals.refresh()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        feed = live_feed(
            recording.live,
            "overview",
            lambda: state_for(call),
            lambda: requests.stopping,
            quiet=services.server.keep_alive_seconds,
            half_closed=lambda: call.half_closed,
            pause=COALESCE_SECONDS,
        )
        return StreamedReply(feed, EVENTS, headers)

    async def stop(call: RoutedCall, id: str) -> Reply:
        caller = admitted(call)
        own = caller is not None or await says_own(call)
        for request in requests.seen_by(caller):
            if request.record.request_id == id:
                request.stop() if own else request.interrupt(stopped_by_operator())
                return json_reply({"id": id, "stopping": True})
        message = f"no request {excerpt(id)} of yours runs in this process; GET /overview lists those that run"
        raise RequestError(message, code="not_found", status=404)

    async def says_own(call: RoutedCall) -> bool:
        """Whether the body says that the request to stop is the caller's own. Without keys nothing else tells."""
        body = await body_of(services, call)
        return bool(body) and json_object(body).get("own") is True

    async def models(call: RoutedCall) -> Reply:
        caller, pool = admitted(call), services.pool
        await pool.models_known(CLIENT_WAIT_SECONDS)
        return json_reply({**_models(pool, caller), "tools": await _tools(pool, caller)})

    return [
        APIRoute("GET", "/overview", state, "The running requests, and the figures of the last hour"),
        APIRoute("GET", "/overview/events", events, "The overview as a stream, sent again whenever it changes"),
        APIRoute("GET", "/overview/models", models, "The models with their upstreams, and the tools"),
        APIRoute(
            "POST",
            "/overview/{id}/stop",
            stop,
            "Stops a request of this process by its request id; own if it is the caller's own",
        ),
    ]


def stopped_by_operator() -> StreamglotError:
    """The error of a request that was not stopped by its own client. Its answer must not look complete."""
    message = "cancelled by the operator: the answer is not complete"
    return StreamglotError(message, code="cancelled_by_operator", status=403)


def overview(services: GatewayServices, recording: Recording, requests: RunningRequests, caller: Caller | None) -> JsonObject:
    """The state. ``operator`` says whether the reader sees the exchanges of all keys."""
    from ... import __version__

    key, now = None if caller is None else caller.name, services.clock()
    running = sorted(requests.seen_by(caller), key=lambda request: request.record.began)
    return {
        "version": __version__,
        "operator": caller is None,
        "since": recording.live.since,
        "open_count": len(running),
        "open": [open_exchange(one.record, now) for one in running[:MAX_OPEN]],
        **recording.live.state(key),
        "upstreams": _upstreams(services.pool, now) if caller is None else [],
        "approvals": [request for request in recording.approvals.seen() if key in (None, request.key)],
        "store": recording.store_state(),
    }


def _upstreams(pool: UpstreamPool, now: float) -> list[JsonObject]:
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


def _models(pool: UpstreamPool, caller: Caller | None) -> JsonObject:
    """The models.

    ``patterns`` belong to upstreams that serve more models than they list: any matching name can be requested. A key sees those
    patterns that have a model for it.
    """
    routes = pool.routes
    named = [(name, owner) for name, owner in pool.models() if caller is None or caller.may_use(name)]
    default = routes.named("")
    return {
        "default": default if caller is None or caller.may_use(default) else "",
        "models": [{"name": name, "upstream": owner, **_facts(pool, owner)} for name, owner in named],
        "patterns": [
            {"upstream": upstream.name, "pattern": pattern, **_facts(pool, upstream.name)}
            for upstream in routes.upstreams.values()
            for pattern in upstream.models
            if any(mark in pattern for mark in "*?[")
            and (caller is None or caller.may_use_some(pattern) or caller.may_use_some(f"{escape(upstream.name)}/{pattern}"))
        ],
    }


def _facts(pool: UpstreamPool, name: str) -> JsonObject:
    upstream = pool.routes.upstreams[name]
    refused = abilities_of(upstream).refused or ()
    return {
        "dialect": upstream.dialect,
        "tools": "prompt" if gets_tools_as_text(upstream) else "native",
        "refused": list(refused),
    }


async def _tools(pool: UpstreamPool, caller: Caller | None) -> list[dict[str, str]]:
    """The tools that this caller may enable. Servers that do not answer in time are left out."""
    patterns = ["*"] if caller is None or caller.tools is None else list(caller.tools)
    registry = pool.tools.registry
    if not registry or not patterns:
        return []
    try:
        async with asyncio.timeout(TOOLS_SECONDS):
            found, _ = await registry.select(patterns)
    except TimeoutError:
        return []
    return [{"name": tool.name, "description": tool.description[:200]} for tool in found]


def approval_routes(services: GatewayServices, access: Access, recording: Recording, requests: RunningRequests) -> list[APIRoute]:
    approvals = recording.approvals

    def key_of(call: RoutedCall) -> str | None:
        return seen_by(admit(access, call))

    def open_to(call: RoutedCall) -> JsonObject:
        """The questions that this caller may decide."""
        key = key_of(call)
        return {"approvals": [request for request in approvals.seen() if key in (None, request.key)]}

    def shown_to(call: RoutedCall) -> JsonObject:
        """What a chat shows beside the stream: the questions, and the requests that wait for an upstream."""
        waits = waiting_requests(requests.seen_by(admit(access, call)))
        return {**open_to(call), **({"waits": waits} if waits else {})}

    async def listed(call: RoutedCall) -> Reply:
        key_of(call)
        await approvals.refresh()
        return json_reply(open_to(call))

    async def events(call: RoutedCall) -> StreamedReply:
        key_of(call)
        recording.live.check_room("approvals")
        await approvals.refresh()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        feed = live_feed(
            recording.live,
            "approvals",
            lambda: shown_to(call),
            lambda: requests.stopping,
            quiet=services.server.keep_alive_seconds,
            half_closed=lambda: call.half_closed,
        )
        return StreamedReply(feed, EVENTS, headers)

    async def decide(call: RoutedCall, id: str) -> Reply:
        from ...policies import Decision

        key = key_of(call)
        body = await json_of(services, call)
        try:
            decision = msgspec.convert(body, Decision)
        except msgspec.ValidationError as error:
            raise RequestError(f"the decision is invalid: {error}; send approved: true or false") from None
        taken = await approvals.decide(id, decision, key)
        return json_reply({"id": id, "approved": decision.approved, **({} if taken else {"taken": False})})

    return [
        APIRoute("GET", "/approvals", listed, "The calls that wait for a person's decision"),
        APIRoute(
            "POST",
            "/approvals/{id}",
            decide,
            "Decides about a call: approved, text for changed arguments, message for a refusal",
        ),
        APIRoute("GET", "/approvals/events", events, "The open approvals as a stream, sent again whenever they change"),
    ]


def waiting_requests(running: Iterable[RunningRequest]) -> list[JsonObject]:
    """The requests that wait before their next attempt at an upstream."""
    waits = ((handler.record.request_id, handler.record.wait) for handler in running)
    return [{"request_id": id, **shown_wait(wait)} for id, wait in waits if wait is not None]
