"""Stored responses: retrieve, cancel and delete them, and list their input items."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...dialects import dialect
from ...errors import RequestError, excerpt
from ...events import Event, StreamEnd, StreamError, StreamStart
from ...json_types import JsonObject
from ...messages import Request, Response
from ...stages import replay
from ..auth.access import Access
from ..endpoints import REPEATED, RETRIEVABLE
from ..event_ids import FRAMES
from ..http.call import RoutedCall
from ..http.reply import Reply, StreamCutError, StreamedReply
from ..observe.recording import Recording
from ..request_options import strict_output
from ..sealing import Sealer
from ..services import GatewayServices
from .resume import ENDED_SECONDS, NO_SUCH_EVENT, NOT_FOUND, event_number, resumed, stopped
from .router import Answer, APIRoute, Parameters, admit, json_reply, seen_by, store_of

if TYPE_CHECKING:
    from ...store import TurnDetail

POLL_SECONDS: Final = 0.05
"""Seconds between two reads of a turn that is being cancelled: too short for a person to notice."""
USUAL_ITEMS: Final = 20
MAX_ITEMS: Final = 100
"""Items in one answer: the limit of the vendor's API."""
INSTRUCTIONS: Final = "instructions"
_UNFINISHED: Final = ("cancelled", "client_gone")


def response_routes(services: GatewayServices, access: Access, recording: Recording) -> list[APIRoute]:
    async def found(call: RoutedCall, id: str) -> TurnDetail:
        caller = seen_by(admit(access, call))
        turn = await store_of(recording).responses.find(id, caller)
        if turn is None or turn.dialects["client"] != RETRIEVABLE:
            raise _missing(id)
        return turn

    def is_strict(call: RoutedCall) -> bool:
        return strict_output(services.server.output, call.headers)

    async def retrieve(call: RoutedCall, id: str) -> Answer:
        parameters = Parameters(call, "stream", "starting_after", "include", "include[]")
        turn = await found(call, id)
        if parameters["stream"] == "true":
            return await streamed(call, turn, parameters["starting_after"])
        return json_reply(_restored(turn, is_strict(call), recording.sealer))

    async def streamed(call: RoutedCall, turn: TurnDetail, given: str) -> Answer:
        """Streams a response as it was streamed before. If that stream is no longer stored, builds it from the stored turn.

        This dialect numbers its events from 0, and omits those that the client already has.
        """
        after = event_number("starting_after", given) + 1 if given else 0
        if turn.stream:
            try:
                caller = seen_by(admit(access, call))
                return await resumed(store_of(recording).buffer, services.server, caller, turn.id, after)
            except RequestError as error:
                if error.code == NO_SUCH_EVENT and error.detail:
                    raise _beyond(turn, after, error.detail["events"]) from None
                if error.code != NOT_FOUND:
                    raise
        if not turn.ending or (turn.stream and after):
            raise _no_stream(turn)
        aborts = services.server.broken_stream == "abort"
        return _replayed(turn, after, is_strict(call), recording.sealer, abort=aborts)

    async def cancel(call: RoutedCall, id: str) -> Reply:
        """Cancels a response. The end of a stream on another worker is known before its turn's end is in the database."""
        turn = await found(call, id)
        if not turn.ending:
            stop_result = await stopped(store_of(recording).buffer, seen_by(admit(access, call)), turn.id)
            until = time.monotonic() + (ENDED_SECONDS if stop_result.ended else 0)
            while not (turn := await found(call, id)).ending and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
        return json_reply(_restored(turn, is_strict(call), recording.sealer))

    async def withdraw(call: RoutedCall, id: str) -> Reply:
        turn = await found(call, id)
        await store_of(recording).responses.withdraw(turn.response_id, seen_by(admit(access, call)))
        return json_reply({"id": turn.response_id, "object": "response.deleted", "deleted": True})

    async def input_items(call: RoutedCall, id: str) -> Reply:
        parameters = Parameters(call, "limit", "order", "after", "include", "include[]")
        order, limit = parameters.one_of("order", "desc", "asc"), parameters.limit(USUAL_ITEMS, MAX_ITEMS)
        turn = await found(call, id)
        request = _request(turn)
        if recording.sealer is not None:
            request = msgspec.structs.replace(request, messages=recording.sealer.messages(request.messages, RETRIEVABLE))
        items = dialect(RETRIEVABLE).input_items(request, turn.response_id, _instructed(turn))
        return json_reply(listed(items if order == "asc" else items[::-1], parameters["after"], limit))

    return [
        APIRoute(
            "GET",
            "/v1/responses/{id}",
            retrieve,
            "A stored response; with stream=true as a stream, from the event after starting_after",
            ("stream", "starting_after", "include"),
        ),
        APIRoute("DELETE", "/v1/responses/{id}", withdraw, "Deletes a response: it can no longer be fetched by its id"),
        APIRoute(
            "GET",
            "/v1/responses/{id}/input_items",
            input_items,
            "The input items of a response",
            ("order", "after", "limit", "include"),
        ),
        APIRoute("POST", "/v1/responses/{id}/cancel", cancel, "Stops a response in the background"),
    ]


def _writer(turn: TurnDetail, strict: bool) -> Any:  # Any: the writer of this dialect, whose folder is not imported here
    request = _request(turn)
    fields = {**turn.client_options, **dialect(RETRIEVABLE).repeated_fields(request, _instructed(turn))}
    mirror = {name: value for name, value in fields.items() if name in REPEATED}
    return dialect(RETRIEVABLE).writer(
        id=turn.response_id,
        model=request.model or turn.model,
        created=int(turn.started),
        mirror=mirror,
        tools=request.tools,
        strict=strict,
    )


def _instructed(turn: TurnDetail) -> bool:
    """Whether the first message was given as instructions and not as part of the input."""
    return bool(turn.client_options.get(INSTRUCTIONS) or turn.more.get(INSTRUCTIONS))


def _replayed(turn: TurnDetail, after: int, strict: bool, sealer: Sealer | None, abort: bool) -> Answer:
    """The response as a stream. Its event numbers are the same each time. ``abort``: an error cuts the connection."""
    writer, events = _writer(turn, strict), _events(turn, sealer)
    data = writer.feed(events) + writer.close()
    count = FRAMES.count(data)
    if after > count:
        raise _beyond(turn, after, count)
    data, headers = FRAMES.rest(data, after), {"cache-control": "no-cache"}
    if abort and isinstance(events[-1], StreamError):
        return StreamedReply(_cut(data), "text/event-stream", headers)
    return Reply(200, data, "text/event-stream", headers)


async def _cut(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise StreamCutError


def _restored(turn: TurnDetail, strict: bool, sealer: Sealer | None) -> JsonObject:
    """The response object as its client received it, or as much of it as is stored."""
    writer = _writer(turn, strict)
    writer.feed(_events(turn, sealer))
    response: JsonObject = writer.response
    if response["status"] == "completed" and turn.duration is not None:
        response["completed_at"] = int(turn.started + turn.duration)
    return response


def _events(turn: TurnDetail, sealer: Sealer | None) -> list[Event]:
    """The events of a stored turn. A turn without an end counts as cancelled."""
    if not turn.ending:
        return [StreamStart(turn.response_id)]
    response = turn.client_response or Response()
    response.id = turn.response_id
    if sealer is not None:
        response = sealer.response(response, RETRIEVABLE)
    if turn.ending in _UNFINISHED:
        response.error = None
        return [*replay(response)[:-1], StreamEnd("cancelled")]
    response.error = response.error or turn.error
    return replay(response)


def listed(items: list[JsonObject], after: str, limit: int) -> JsonObject:
    """One page of items."""
    ids = [item["id"] for item in items]
    if after and after not in ids:
        raise RequestError(
            f"there is no item {excerpt(after)}; after must be the id of an item", code="item_not_found", status=404
        )
    rest = items[ids.index(after) + 1 :] if after else items
    page = rest[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(rest) > limit}


def _request(turn: TurnDetail) -> Request:
    if turn.request is None:
        raise RequestError(
            f"the content of the response {turn.response_id} was not stored, because store.content is off",
            code="content_not_kept",
            status=404,
        )
    return turn.request


def _beyond(turn: TurnDetail, after: int, count: int) -> RequestError:
    return RequestError(
        f"the response {turn.response_id} has {count} events, with the numbers 0 to {count - 1}, and none after {after - 1}; "
        "starting_after must be one of these numbers",
        code=NO_SUCH_EVENT,
    )


def _no_stream(turn: TurnDetail) -> RequestError:
    step = ", or for its stream without starting_after" if turn.ending else ""
    return RequestError(
        f"the stream of the response {turn.response_id} is not stored; request the response without stream{step}",
        code=NOT_FOUND,
        status=404,
    )


def _missing(response_id: str) -> RequestError:
    return RequestError(
        f"there is no response {excerpt(response_id)}: it never existed, was deleted, or was made with store: false",
        code="response_not_found",
        status=404,
    )
