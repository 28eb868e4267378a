"""The approvals API: lists the calls that wait for a person's decision, and takes the decision.

GET  /approvals          the open questions of all workers; a key sees its own, the operator all
GET  /approvals/events   the list and the waits for upstreams as a stream, sent again whenever they change
POST /approvals/{id}     {"approved": true, "text": "changed arguments"} or {"approved": false, "message": "why"}
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...errors import RequestError
from ...json_types import JsonObject
from ..auth.access import Access
from ..http.call import RoutedCall
from ..http.reply import EVENTS, Reply, StreamedReply
from ..observe.live import live_feed, shown_wait
from ..observe.recording import Recording
from ..requests import RunningRequest, RunningRequests
from ..services import GatewayServices
from .router import APIRoute, admit, json_of, json_reply, seen_by


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
