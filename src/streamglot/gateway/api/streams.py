"""Streams and stored responses by their id.

A stream is resumed from any event, on any worker, while it runs or after its end, or stopped. A stored response is retrieved,
cancelled or deleted, and its input items are listed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...config import ServerConfig
from ...dialects import dialect
from ...errors import RequestError, StreamglotError, excerpt
from ...events import Event, StreamEnd, StreamError, StreamStart
from ...framing import sse
from ...json_types import JsonObject
from ...messages import Request, Response
from ...stages import replay
from ..admission import strict_output
from ..auth.access import Access
from ..auth.authenticator import anonymous
from ..endpoints import ENDPOINTS, REPEATED, RETRIEVABLE
from ..http.call import Reply, RoutedCall, StreamCutError, StreamedReply
from ..observe.recording import Recording
from ..resumable import CUT, DIALECT, EVENT_IDS, FRAMES, RESPONSE_ID, Elements
from ..sealing import Sealer
from ..services import GatewayServices
from .router import Answer, APIRoute, Parameters, admit, json_reply, query_of, seen_by, store_of

if TYPE_CHECKING:
    from ...store import Chunk, TurnDetail
    from ...store.streams import StreamBuffer

MAX_EVENTS: Final = 2**31 - 2
"""Events in one stream. No stream has more, so larger event numbers count as this one."""
MAX_DIGITS: Final = 20
"""Digits of an event number that is parsed. A longer number counts as ``MAX_EVENTS``, without the cost of parsing it."""
PAGE_SECONDS: Final = 5.0
"""Seconds that a page which was loaded again waits for the stream of the running answer. It may have none."""
FIRST_SECONDS: Final = 2.0
"""Seconds that a reader waits for its headers. An error within this time becomes an HTTP status."""
NOT_FOUND: Final = "stream_not_found"
LOST: Final = "stream_lost"
NO_SUCH_EVENT: Final = "no_such_event"
"""Error codes of the buffer: the stream does not exist, its process died, or it ended before the given event."""
ENDED_SECONDS: Final = 5.0
"""Seconds that a stop request waits for the stream to end."""


def event_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise RequestError(f"{name} must be the number of an event, not {excerpt(text)}")
    return min(int(text), MAX_EVENTS) if len(text) <= MAX_DIGITS else MAX_EVENTS


class Stopped(msgspec.Struct):
    """The result of a stop request: whether the stream has ended, and with how many events."""

    id: str
    ended: bool = False
    events: int = 0


class Arrivals:
    """Reads the chunks of a stream with a timeout. A wait that timed out can be repeated without losing a chunk."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._chunks = chunks
        self._next_chunk: asyncio.Task[Chunk | None] | None = None

    async def next_within(self, seconds: float) -> bool:
        """Whether the next chunk arrives within this time. Raises the error that comes in its place."""
        if self._next_chunk is None:
            self._next_chunk = asyncio.ensure_future(self._next())
        await asyncio.wait({self._next_chunk}, timeout=seconds)
        if self._next_chunk.done():
            self._next_chunk.result()
            return True
        return False

    async def _next(self) -> Chunk | None:
        return await anext(self._chunks, None)

    def take(self) -> Chunk | None:
        """The chunk that arrived, or None at the end."""
        assert self._next_chunk is not None
        chunk_read, self._next_chunk = self._next_chunk.result(), None
        return chunk_read

    async def leave(self) -> None:
        if self._next_chunk is not None:
            self._next_chunk.cancel()


async def resumed(buffer: StreamBuffer, server: ServerConfig, caller: str | None, stream_id: str, after: int) -> StreamedReply:
    """The stream after this event. An error before the headers becomes an HTTP status; a later one is the last event."""
    headers: dict[str, str] = msgspec.json.decode(await buffer.head(stream_id, caller) or b"{}")
    dialect_name, response_id = headers.pop(DIALECT, ""), headers.pop(RESPONSE_ID, "")
    headers.pop(CUT, None)
    arrivals = Arrivals(buffer.read(stream_id, after, caller))
    try:
        await arrivals.next_within(FIRST_SECONDS)
    except asyncio.CancelledError:
        await arrivals.leave()
        raise
    media_type = headers.pop("content-type")
    headers |= {"x-streamglot-stream": stream_id, "x-streamglot-after": str(after)}
    aborts = server.broken_stream == "abort"
    last_event = partial(encoded_error, dialect_name, media_type, response_id, abort=aborts) if dialect_name else None

    async def data() -> AsyncIterator[bytes]:
        async for piece in _bytes(arrivals, after, media_type, last_event, server.keep_alive_seconds, aborts):
            yield piece
        if aborts and CUT in msgspec.json.decode(await buffer.head(stream_id, caller)):
            raise StreamCutError

    return StreamedReply(data(), media_type, headers, arrivals.leave)


async def _bytes(
    arrivals: Arrivals,
    last: int,
    media_type: str,
    last_event: Callable[[int, StreamError], bytes] | None,
    quiet: float,
    aborts: bool,
) -> AsyncIterator[bytes]:
    """The bytes of a stream.

    While nothing arrives, it yields keep-alive comments if the media type has comments, because clients do not count those.
    ``last_event`` writes an error after the event with this number. ``aborts``: the connection is cut after it.
    """
    alive = sse.comment("ping") if EVENT_IDS[media_type] is FRAMES else b""
    try:
        while True:
            while not await arrivals.next_within(quiet):
                if alive:
                    yield alive
            chunk = arrivals.take()
            if chunk is None:
                return
            yield EVENT_IDS[media_type].rest(chunk.data, last + 1 - chunk.first) if chunk.first <= last else chunk.data
            last = chunk.last
    except StreamglotError as error:
        if last_event is None:  # an older version opened the stream and did not store its dialect
            raise
        end = last_event(last, error.as_event())
        if aborts:
            raise StreamCutError(end) from None
        yield end


def encoded_error(
    dialect_name: str, media_type: str, response_id: str, last: int, error: StreamError, *, abort: bool = False
) -> bytes:
    """The end, in the stream's dialect, of a stream that another process wrote up to this event."""
    array = isinstance(EVENT_IDS[media_type], Elements)
    options: dict[str, bool | int] = {"array": True} if array else {"sequence": last} if dialect_name == RETRIEVABLE else {}
    writer = dialect(dialect_name).writer(id=response_id, abort=abort, **options)
    data = writer.feed([error]) + writer.close()
    if any(endpoint.numbered for endpoint in ENDPOINTS.values() if endpoint.dialect == dialect_name):
        data, _ = FRAMES.numbered(data, last)
    return b",\r\n" + data.removeprefix(b"[") if array and last else data


async def stopped(buffer: StreamBuffer, caller: str | None, stream_id: str) -> Stopped:
    """Asks for the stream to stop, on whichever worker it runs, and waits for its end.

    It reads after an event number that no stream reaches. That yields no data, and the error at the end tells the number of
    events.
    """
    if not await buffer.stop(stream_id, caller):
        raise RequestError(f"there is no stream {stream_id!r} of yours to stop", code=NOT_FOUND, status=404)
    try:
        async with asyncio.timeout(ENDED_SECONDS):
            await anext(buffer.read(stream_id, MAX_EVENTS, caller), None)
    except TimeoutError:
        return Stopped(stream_id)
    except StreamglotError as error:
        if error.code == NO_SUCH_EVENT and error.detail:
            return Stopped(stream_id, True, error.detail["events"])
        if error.code not in (LOST, NOT_FOUND):
            raise
    return Stopped(stream_id, True)  # its process is dead, or the stream is no longer stored


def resume_routes(services: GatewayServices, access: Access, recording: Recording) -> list[APIRoute]:
    async def stream(call: RoutedCall, id: str) -> StreamedReply:
        # browsers send Last-Event-ID when they reconnect
        given = call.headers.get("last-event-id") or query_of(call).get("after") or "0"
        caller, after = seen_by(admit(access, call)), event_number("after", given)
        return await resumed(store_of(recording).buffer, services.server, caller, id, after)

    async def stop(call: RoutedCall, id: str) -> Reply:
        caller = seen_by(admit(access, call))
        return json_reply(await stopped(store_of(recording).buffer, caller, id))

    async def chat(call: RoutedCall, id: str) -> Answer:
        """Resumes the running answer of a chat from its beginning, for a page that was reloaded. Answers 204 if there is none."""
        from ...store import Filter, chat_session

        store, caller = store_of(recording), seen_by(admit(access, call))
        owner = anonymous(call.headers) if caller is None else caller
        session = chat_session(owner, id)
        found = await store.queries.turns(Filter(session_id=session, caller=owner, limit=1))
        if not found or found[0].ending:
            return Reply(204)
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                await store.buffer.head(found[0].id, owner)
            return await resumed(store.buffer, services.server, owner, found[0].id, 0)
        except TimeoutError:
            return Reply(204)
        except RequestError as error:
            if error.code != NOT_FOUND:
                raise
            return Reply(204)  # the stream is not resumable

    return [
        APIRoute("GET", "/v1/streams/{id}", stream, "Resumes a stream after an event", ("after",)),
        APIRoute("POST", "/v1/streams/{id}/stop", stop, "Stops a stream, and its upstream"),
        APIRoute("GET", "/ui/{id}/stream", chat),
    ]


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
