"""Resumes a stream from any event, on any worker, while it runs or after its end; and stops a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from ...config import ServerConfig
from ...dialects import dialect
from ...errors import RequestError, StreamglotError, excerpt
from ...events import StreamError
from ...framing import sse
from ..auth.access import Access
from ..auth.authenticator import anonymous
from ..endpoints import ENDPOINTS, RETRIEVABLE
from ..event_ids import EVENT_IDS, FRAMES, Elements
from ..http.call import RoutedCall
from ..http.reply import Reply, StreamCutError, StreamedReply
from ..observe.recording import Recording
from ..services import GatewayServices
from ..stream_recorder import CUT, DIALECT, RESPONSE_ID
from .router import Answer, APIRoute, admit, json_reply, query_of, seen_by, store_of

if TYPE_CHECKING:
    from ...store import Chunk
    from ...store.buffer import StreamBuffer

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
