"""Going on with a stream: from any event of it, on any worker, while it runs or after its end; and stopping it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..errors import RequestError, StreamglotError, excerpt
from .keys import Caller, anonymous
from .numbering import NUMBERINGS, Numbering

if TYPE_CHECKING:
    from ..store import Chunk, Store
    from .app import Gateway

MOST_EVENTS: Final = 2**31 - 2
"""No stream has more: a larger number is one that it never reached."""
ENDED_SECONDS: Final = 5.0
"""How long who stops a stream waits to see it ended."""


def store_of(gateway: Gateway) -> Store:
    if gateway.store is None:
        raise RequestError("this gateway keeps nothing (store.url is none): set store.url", code="store_off", status=404)
    return gateway.store


def seen_by(caller: Caller | None) -> str | None:
    """Whose turns a client may see: a key its own, and all where no keys are asked for."""
    return None if caller is None else caller.name


async def resumed(gateway: Gateway, who: str | None, stream_id: str, after: int) -> Response:
    """The stream after this event. What was lost of it is an error before its first byte, not a stream that breaks off."""
    buffer, after = store_of(gateway).buffer, min(after, MOST_EVENTS)
    headers: dict[str, str] = msgspec.json.decode(await buffer.head(stream_id, who) or b"{}")
    numbering = NUMBERINGS[headers["content-type"]]
    chunks = buffer.read(stream_id, after, who)
    first = await anext(chunks, None)
    headers |= {"x-streamglot-stream": stream_id, "x-streamglot-after": str(after)}
    return StreamingResponse(_bytes(first, chunks, numbering, after), 200, headers)


async def _bytes(first: Chunk | None, chunks: AsyncIterator[Chunk], numbering: Numbering, after: int) -> AsyncIterator[bytes]:
    if first is None:
        return
    yield numbering.rest(first.data, after + 1 - first.first) if first.first <= after else first.data
    async for chunk in chunks:
        yield chunk.data


async def stopped(gateway: Gateway, who: str | None, stream_id: str) -> Response:
    """Asks for the stream to stop, wherever it runs, and waits for it to end."""
    buffer = store_of(gateway).buffer
    if not await buffer.stop(stream_id, who):
        raise RequestError(f"there is no stream {stream_id!r} of yours to stop", code="stream_not_found", status=404)
    last = 0
    try:
        async with asyncio.timeout(ENDED_SECONDS):
            async for chunk in buffer.read(stream_id, 0, who):
                last = chunk.last
    except TimeoutError:
        ended = False
    except StreamglotError:
        ended = True  # a part of it is no longer kept; it is over all the same
    else:
        ended = True
    return Response(msgspec.json.encode({"id": stream_id, "ended": ended, "events": last}), media_type="application/json")


def resume_routes(gateway: Gateway) -> list[Route]:
    def who(http: HttpRequest) -> str | None:
        return seen_by(gateway.doorkeeper.admit(http.headers, http.query_params.get("key", "")))

    async def stream(http: HttpRequest) -> Response:
        given: Any = http.query_params.get("after") or http.headers.get("last-event-id") or "0"
        if not given.isdecimal():
            raise RequestError(f"after must be the number of an event, not {excerpt(given)}")
        return await resumed(gateway, who(http), http.path_params["id"], int(given))

    async def stop(http: HttpRequest) -> Response:
        return await stopped(gateway, who(http), http.path_params["id"])

    async def chat(http: HttpRequest) -> Response:
        """A page that was loaded again asks whether its chat is being answered: from the beginning, or nothing."""
        from ..store import Filter, chat_session

        store, caller = store_of(gateway), who(http)
        owner = anonymous(http.headers) if caller is None else caller
        session = chat_session(owner, http.path_params["id"])
        found = await store.queries.turns(Filter(session_id=session, caller=owner, limit=1))
        if not found or found[0].ending:
            return Response(status_code=204)
        return await resumed(gateway, owner, found[0].id, 0)

    return [
        Route("/v1/streams/{id}", stream, methods=["GET"]),
        Route("/v1/streams/{id}/stop", stop, methods=["POST"]),
        Route("/ui/{id}/stream", chat, methods=["GET"]),
    ]
