"""The approvals API: lists the calls that wait for a person's decision, and takes the decision.

GET  /approvals          the open questions of all workers; a key sees its own, the operator all
GET  /approvals/events   the list and the waits for upstreams as a stream, sent again whenever they change
POST /approvals/{id}     {"approved": true, "text": "changed arguments"} or {"approved": false, "message": "why"}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...errors import RequestError
from ...json_types import JsonObject
from ..http.asgi import is_half_closed, read_body
from ..http.call import json_object
from ..observe.live import live_feed, shown_wait
from .resume import seen_by
from .store_view import id_in, json_reply

if TYPE_CHECKING:
    from ..app import Gateway
    from ..requests import RunningRequest


def approval_routes(gateway: Gateway) -> list[Route]:
    def key_of(http: HttpRequest) -> str | None:
        return seen_by(gateway.authenticator.admit(http.headers, http.query_params.get("key", "")))

    def open_to(http: HttpRequest) -> JsonObject:
        """Returns the questions that this caller may decide."""
        key = key_of(http)
        return {"approvals": [request for request in gateway.approvals.seen() if key in (None, request.key)]}

    def shown_to(http: HttpRequest) -> JsonObject:
        """Returns what a chat shows beside the stream: the questions, and the requests that wait for an upstream."""
        caller = gateway.authenticator.admit(http.headers, http.query_params.get("key", ""))
        waits = waiting_requests(gateway.open_requests(caller))
        return {**open_to(http), **({"waits": waits} if waits else {})}

    async def listed(http: HttpRequest) -> Response:
        key_of(http)
        await gateway.approvals.refresh()
        return json_reply(open_to(http))

    async def events(http: HttpRequest) -> Response:
        key_of(http)
        gateway.live.check_room("approvals")
        await gateway.approvals.refresh()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        quiet = gateway.server.keep_alive_seconds
        feed = live_feed(
            gateway.live,
            "approvals",
            lambda: shown_to(http),
            lambda: gateway.stopping,
            quiet=quiet,
            half_closed=lambda: is_half_closed(http.scope),
        )
        return StreamingResponse(feed, 200, headers, "text/event-stream")

    async def decide(http: HttpRequest) -> Response:
        from ...policies import Decision

        id, key, server = id_in(http), key_of(http), gateway.server
        body = json_object(
            await read_body(http.receive, http.headers, server.max_body_bytes, gateway.within(server.body_seconds))
        )
        try:
            decision = msgspec.convert(body, Decision)
        except msgspec.ValidationError as error:
            raise RequestError(f"the decision is invalid: {error}; send approved: true or false") from None
        taken = await gateway.approvals.decide(id, decision, key)
        return json_reply({"id": id, "approved": decision.approved, **({} if taken else {"taken": False})})

    return [
        Route("/approvals", listed, methods=["GET"]),
        Route("/approvals/events", events, methods=["GET"]),
        Route("/approvals/{id}", decide, methods=["POST"]),
    ]


def waiting_requests(running: Iterable[RunningRequest]) -> list[JsonObject]:
    """Returns the requests that wait before their next attempt at an upstream."""
    waits = ((handler.record.request_id, handler.record.wait) for handler in running)
    return [{"request_id": id, **shown_wait(wait)} for id, wait in waits if wait is not None]
