"""The approvals API: lists the calls that wait for a person's decision, and takes the decision.

GET  /approvals          the open questions; a key sees its own, the operator all
GET  /approvals/events   the list as a stream, sent again whenever it changes
POST /approvals/{id}     {"approved": true, "text": "changed arguments"} or {"approved": false, "message": "why"}
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...errors import RequestError, excerpt
from ...framing import sse
from ..http.asgi import read_body
from ..http.call import json_object
from .resume import seen_by
from .store_view import id_in, json_reply

if TYPE_CHECKING:
    from ...policies import ApprovalRequest
    from ..app import Gateway


def approval_routes(gateway: Gateway) -> list[Route]:
    def open_to(http: HttpRequest) -> list[ApprovalRequest]:
        """Returns the questions that this caller may decide."""
        key = seen_by(gateway.authenticator.admit(http.headers, http.query_params.get("key", "")))
        return [request for request in gateway.pool.approvals.open() if key is None or request.key == key]

    async def listed(http: HttpRequest) -> Response:
        return json_reply({"approvals": open_to(http)})

    async def events(http: HttpRequest) -> Response:
        open_to(http)
        gateway.live.check_room("approvals")
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(lists(http), 200, headers, "text/event-stream")

    async def lists(http: HttpRequest) -> AsyncIterator[bytes]:
        quiet, sent = gateway.server.keep_alive_seconds, b""
        with gateway.live.watched("approvals") as changed:
            while not gateway.stopping:
                try:
                    async with asyncio.timeout(quiet):
                        await changed.wait()
                except TimeoutError:
                    yield sse.comment("ping")
                    continue
                changed.clear()
                try:
                    now = msgspec.json.encode({"approvals": open_to(http)})
                except RequestError:  # its key was revoked, or keys are required now and it has none
                    return
                if now != sent:
                    sent = now
                    yield b"event: approvals\ndata: %b\n\n" % now

    async def decide(http: HttpRequest) -> Response:
        from ...policies import Decision

        id, server = id_in(http), gateway.server
        known = {request.id for request in open_to(http)}
        body = json_object(
            await read_body(http.receive, http.headers, server.max_body_bytes, gateway.within(server.body_seconds))
        )
        try:
            decision = msgspec.convert(body, Decision)
        except msgspec.ValidationError as error:
            raise RequestError(f"the decision is invalid: {error}; send approved: true or false") from None
        if id not in known:
            message = (
                f"there is no open approval {excerpt(id)}: it was decided or has expired; GET /approvals lists the open ones"
            )
            raise RequestError(message, code="not_found", status=404)
        gateway.pool.approvals.decide(id, decision)
        answer: dict[str, Any] = {"id": id, "approved": decision.approved}
        return json_reply(answer)

    return [
        Route("/approvals", listed, methods=["GET"]),
        Route("/approvals/events", events, methods=["GET"]),
        Route("/approvals/{id}", decide, methods=["POST"]),
    ]
