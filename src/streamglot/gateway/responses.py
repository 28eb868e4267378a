"""Responses that are asked for again: got by their id, taken back, and what they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from ..dialects import dialect
from ..errors import RequestError, excerpt
from ..events import Event, StreamEnd, StreamStart
from ..messages import Request, Response
from ..stages import replay
from .archive import archive_of, id_in, json_reply
from .faces import ASKED_AGAIN, REPEATED
from .parameters import Parameters
from .resume import resumed, stopped

if TYPE_CHECKING:
    from ..store import TurnDetail
    from .app import Gateway

USUAL_ITEMS: Final = 20
MOST_ITEMS: Final = 100
"""Of one answer, as the vendor has it."""
_UNFINISHED: Final = ("cancelled", "client_gone")


def response_routes(gateway: Gateway) -> list[Route]:
    async def found(http: HttpRequest) -> TurnDetail:
        archive, response_id = archive_of(gateway, http), id_in(http)
        turn = await archive.store.responses.find(response_id, archive.caller)
        if turn is None or turn.dialects["client"] != ASKED_AGAIN:
            raise _missing(response_id)
        return turn

    async def retrieve(http: HttpRequest) -> HttpResponse:
        asked = Parameters(http, "stream", "starting_after", "include", "include[]")
        turn = await found(http)
        if asked["stream"] == "true":
            return await resumed(gateway, archive_of(gateway, http).caller, turn.id, _after(asked["starting_after"]))
        return json_reply(restored(turn))

    async def cancel(http: HttpRequest) -> HttpResponse:
        turn = await found(http)
        if not turn.ending:
            await stopped(gateway, archive_of(gateway, http).caller, turn.id)
        return json_reply(restored(await found(http)))

    async def withdraw(http: HttpRequest) -> HttpResponse:
        turn = await found(http)
        archive = archive_of(gateway, http)
        await archive.store.responses.withdraw(turn.response_id, archive.caller)
        return json_reply({"id": turn.response_id, "object": "response.deleted", "deleted": True})

    async def input_items(http: HttpRequest) -> HttpResponse:
        asked = Parameters(http, "limit", "order", "after", "include", "include[]")
        order, limit = asked.one_of("order", "desc", "asc"), asked.limit(USUAL_ITEMS, MOST_ITEMS)
        turn = await found(http)
        items = dialect(ASKED_AGAIN).stored.input_items(_request(turn), turn.response_id)
        return json_reply(listed(items if order == "asc" else items[::-1], asked["after"], limit))

    return [
        Route("/v1/responses/{id}", retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", withdraw, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
    ]


def _after(number: str) -> int:
    """This dialect counts its events from 0, and leaves out those that a client has."""
    if number and not number.isdecimal():
        raise RequestError(f"starting_after must be the sequence_number of an event, not {excerpt(number)}")
    return int(number) + 1 if number else 0


def restored(turn: TurnDetail) -> dict[str, Any]:
    """The response object: as its client was given it, or as far as it is known."""
    request = _request(turn)
    said = {**dialect(ASKED_AGAIN).stored.repeated(request), **turn.wish}
    mirror = {name: value for name, value in said.items() if name in REPEATED}
    writer: Any = dialect(ASKED_AGAIN).writer(
        id=turn.response_id, model=request.model or turn.model, created=int(turn.started), mirror=mirror
    )
    writer.feed(_events(turn))
    response: dict[str, Any] = writer.response
    if response["status"] == "completed" and turn.duration is not None:
        response["completed_at"] = int(turn.started + turn.duration)
    return response


def _events(turn: TurnDetail) -> list[Event]:
    """The turn as a stream again. One that was left has no end of its own: it counts as cancelled."""
    if not turn.ending:
        return [StreamStart(turn.response_id)]
    response = turn.response or Response()
    response.id = turn.response_id
    if turn.ending in _UNFINISHED:
        response.error = None
        return [*replay(response)[:-1], StreamEnd("cancelled")]
    response.error = response.error or turn.error
    return replay(response)


def listed(items: list[dict[str, Any]], after: str, limit: int) -> dict[str, Any]:
    """A page of items."""
    ids = [item["id"] for item in items]
    if after and after not in ids:
        raise RequestError(f"there is no item {excerpt(after)} to go on after", code="item_not_found", status=404)
    rest = items[ids.index(after) + 1 :] if after else items
    page = rest[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(rest) > limit}


def _request(turn: TurnDetail) -> Request:
    if turn.request is None:
        raise RequestError(
            f"what the response {turn.response_id} says was not kept, because store.content is off",
            code="content_not_kept",
            status=404,
        )
    return turn.request


def _missing(response_id: str) -> RequestError:
    return RequestError(
        f"there is no response {excerpt(response_id)} to be had: it never was, it was deleted, or it was made with store: false",
        code="response_not_found",
        status=404,
    )
