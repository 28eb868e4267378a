"""The WebSocket mode of the Responses API: many responses over one connection.

Every ``response.create`` is a call of the endpoint at this path, which answers it like any other call. The dialect's writer
writes server-sent events; the connection carries the same objects without that framing, one per message.

Calls of one lane (``stream_id``) are answered one after the other, lanes concurrently. ``previous_response_id`` can continue the
latest response of each lane, even if it is not stored: its input and output stay in memory while the connection lives. No message
cancels a response. A client closes the connection, and the gateway then stops every upstream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, Struct, field
from wsproto.frame_protocol import CloseReason

from ..dialects import dialect
from ..errors import FOREIGN_ERRORS, RequestError, StreamglotError, excerpt
from ..events import StreamEnd, StreamStart
from ..json_types import JSON_ERRORS, JsonObject
from .auth.access import Access
from .endpoints import ENDPOINTS, Endpoint
from .http.call import DONE, Call, CallDeadline, json_object
from .http.http_call import HTTPCall
from .http.server import refuse_upgrade
from .http.websocket import HandshakeError, WebSocket, WebSocketClosed, accept
from .observe.recording import Recording
from .services import GatewayServices, RunningRequests

if TYPE_CHECKING:
    from ..store import Store

_DATA: Final = b"\ndata: "
_EVENT: Final = b"event: "
_REPEATED: Final = b"response.in_progress"
"""The event that is repeated as a keep-alive: clients count messages and ignore pings."""
_FINAL: Final = (b"response.completed", b"response.incomplete")
"""The last event of a response that can be continued."""


class _Response(Struct):
    id: str = ""
    output: list[Raw] = field(default_factory=list)


class _FinalEvent(Struct):
    response: _Response = field(default_factory=_Response)


PATH: Final = "/v1/responses"
"""The path of the endpoint that answers."""
MAX_LANES: Final = 16
"""Lanes that one connection can have. Known clients use one, plus one for each sub-agent."""
WAITING: Final = 16
"""Requests that may wait in one lane."""
STREAM_ID_CHARS: Final = 128
"""Characters of a ``stream_id``. Clients use names or UUIDs, which have 36."""
_NOT_FOUND: Final = "previous_response_not_found"
_OURS: Final = ("type", "generate", "stream_id", "client_metadata", "background")
"""Fields of a message that are not part of the request. ``background`` is one of them: the connection does not support it."""
_TRACE: Final = {"ws_request_header_traceparent": "traceparent", "ws_request_header_tracestate": "tracestate"}
"""Headers of a single request that a message can only carry as metadata."""
_OF_CONNECTION: Final = frozenset(("upgrade", "connection", "x-request-id", "content-type"))
"""Headers of the upgrade that do not apply to its messages."""

Fields = dict[str, Raw]
Answering = Callable[[Endpoint, Call, str], Awaitable[None]]
_decode_fields = msgspec.json.Decoder(Fields).decode


class Lane:
    """Requests that are answered in order.

    ``name`` is the JSON of the ``stream_id``. ``latest`` is the response that can be continued.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting: deque[tuple[Fields, int]] = deque()
        self.call: WebSocketCall | None = None
        self.task: asyncio.Task[None] | None = None
        self.latest = ""


class ResponsesWebSocket:
    """Serves one connection."""

    def __init__(
        self,
        services: GatewayServices,
        access: Access,
        store: Store | None,
        answer: Answering,
        upgrade: HTTPCall,
        socket: WebSocket,
    ) -> None:
        self._services = services
        self._access = access
        self._store = store
        self._answer = answer
        self._upgrade = upgrade
        self._socket = socket
        self._lanes: dict[bytes, Lane] = {}
        self._past: dict[str, bytes] = {}
        """Response id to its input and output items in JSON, without brackets. Limited to ``max_body_bytes`` in total."""
        self._waiting_bytes = 0
        self._headers = {
            name: value
            for name, value in upgrade.headers.items()
            if name not in _OF_CONNECTION and not name.startswith("sec-websocket-")
        }

    async def run(self) -> None:
        """Serves until the connection ends."""
        self._socket.on_disconnect = self._disconnected
        try:
            while True:
                await self._accept(await self._socket.receive())
        except WebSocketClosed:
            pass
        except asyncio.CancelledError:
            for task in self._tasks():
                task.cancel()
            raise
        finally:
            await asyncio.gather(*self._tasks(), return_exceptions=True)
            self._socket.close(1001)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [lane.task for lane in self._lanes.values() if lane.task is not None]

    def _disconnected(self) -> None:
        for lane in self._lanes.values():
            lane.waiting.clear()
            if lane.call is not None:
                lane.call.connection_lost()

    # --- messages

    async def _accept(self, message: bytes) -> None:
        name = b""
        try:
            fields = _fields_of(message)
            name = _stream_id(fields)
            kind = _text(fields, "type")
            if kind == "response.create":
                self._queue(name, fields, len(message))
            elif kind in ("response.steer", "response.inject"):
                await self._send(_not_supported(kind, fields), name)
            else:
                raise RequestError(
                    f"the message type {excerpt(kind)} is not supported; send response.create", code="unknown_message"
                )
        except StreamglotError as error:
            await self._refuse(error, name)

    async def _send(self, event: bytes, name: bytes) -> None:
        await self._socket.send(event[:-1] + b',"stream_id":%b}' % name if name else event)

    async def _refuse(self, error: StreamglotError, name: bytes) -> None:
        await self._send(error_event(error.status, _error_of(error)), name)

    def _queue(self, name: bytes, fields: Fields, size: int) -> None:
        lane = self._lanes.pop(name, None) or self._new_lane(name)
        self._lanes[name] = lane  # moved to the end: the lane used last is dropped last
        if len(lane.waiting) >= WAITING:
            raise _too_many(f"{WAITING} requests wait in this stream already; send the next one when some are answered")
        if self._waiting_bytes and self._waiting_bytes + size > self._services.server.max_body_bytes:
            raise _too_many("the requests that wait on this connection are too large together; send this one again later")
        lane.waiting.append((fields, size))
        self._waiting_bytes += size
        if lane.task is None:
            self._socket.busy = True
            lane.task = asyncio.create_task(self._work(lane))

    def _new_lane(self, name: bytes) -> Lane:
        if len(self._lanes) >= MAX_LANES:
            idle = next((lane for lane in self._lanes.values() if lane.task is None), None)
            if idle is None:
                raise _too_many(
                    f"{MAX_LANES} streams of this connection are busy; wait for one of them, or open another connection"
                )
            self._forget(self._lanes.pop(idle.name))
        return Lane(name)

    # --- responses

    async def _work(self, lane: Lane) -> None:
        """Answers the requests that wait in this lane."""
        try:
            while lane.waiting and not self._socket.closing:
                fields, size = lane.waiting.popleft()
                self._waiting_bytes -= size
                try:
                    await asyncio.create_task(self._respond(lane, fields))
                except StreamglotError as error:
                    await self._refuse(error, lane.name)
        except FOREIGN_ERRORS as error:
            self._services.log_fault("", error)
            self._socket.close(1011, "internal error of the gateway; its log has the details")
        finally:
            lane.task = None
            if not any(other.task is not None for other in self._lanes.values()):
                self._socket.settle()

    async def _respond(self, lane: Lane, fields: Fields) -> None:
        generate = fields.get("generate")
        headers = self._headers_of(fields)
        body, items = self._expanded(fields)
        if generate is not None and bytes(generate) == b"false":
            await self._prewarm(lane, body, items)
            return
        call = lane.call = WebSocketCall(self._socket, self._upgrade, headers, body, lane.name)
        try:
            await self._answer(ENDPOINTS[PATH], call, "")
        finally:
            lane.call = None
        id, output = call.response
        self._remember(lane, id, b",".join(filter(None, (items, output))))

    async def _prewarm(self, lane: Lane, body: bytes, items: bytes) -> None:
        """Remembers the start of a conversation that a client sends ahead of its question. No upstream is called."""
        services, endpoint = self._services, ENDPOINTS[PATH]
        caller = self._access.authenticator.admit(self._headers, self._upgrade.query("key"))
        client_body = json_object(body)
        request = dialect(endpoint.dialect).parse_request(client_body)
        if caller is not None:
            caller.check_model(services.pool.routes.named(request.model))
        id = f"{endpoint.id_prefix}{services.new_id()}"
        known = dialect(endpoint.dialect)
        options = {**known.writer_options(request), **endpoint.writer(request, client_body)}
        writer = known.writer(id=id, created=int(time.time()), **options)
        call = WebSocketCall(self._socket, self._upgrade, {}, b"", lane.name)
        await call.end(writer.feed([StreamStart(), StreamEnd("end")]))
        self._remember(lane, id, items)

    def _expanded(self, fields: Fields) -> tuple[bytes, bytes]:
        """The body with the history of ``previous_response_id`` inserted, and its input items."""
        items = _items_of(fields.get("input"))
        previous = _text(fields, "previous_response_id")
        request = {name: value for name, value in fields.items() if name not in _OURS}
        if previous in self._past:
            del request["previous_response_id"]
            items = b",".join(filter(None, (self._past[previous], items)))
            request["input"] = Raw(b"[%b]" % items)
        elif previous and self._store is None:
            message = f"this connection has no response {excerpt(previous)} to continue; send the whole conversation"
            raise RequestError(message, code=_NOT_FOUND)
        request["stream"] = Raw(b"true")
        return msgspec.json.encode(request), items

    def _headers_of(self, fields: Fields) -> dict[str, str]:
        try:
            decoded = msgspec.json.decode(fields.get("client_metadata", b"{}"), type=JsonObject)
        except JSON_ERRORS:
            return self._headers
        return {**self._headers, **{ours: decoded[name] for name, ours in _TRACE.items() if isinstance(decoded.get(name), str)}}

    def _remember(self, lane: Lane, id: str, items: bytes) -> None:
        """Keeps the latest response of a lane, unless it failed or is too large.

        Drops the oldest responses of other lanes to make room.
        """
        max_bytes = self._services.server.max_body_bytes
        self._forget(lane)
        if not id or len(items) > max_bytes:
            return
        lane.latest = id
        self._past[id] = items
        while sum(map(len, self._past.values())) > max_bytes:
            del self._past[next(iter(self._past))]

    def _forget(self, lane: Lane) -> None:
        self._past.pop(lane.latest, None)
        lane.latest = ""


async def serve(
    services: GatewayServices, access: Access, recording: Recording, requests: RunningRequests, answer: Answering, call: HTTPCall
) -> None:
    """Accepts the connection and serves it until it ends. ``answer`` answers one request at an endpoint."""
    endpoint, server = ENDPOINTS[PATH], services.server
    try:
        requests.check_open()
        access.authenticator.admit(call.headers, call.query("key"))
    except StreamglotError as error:
        body = msgspec.json.encode(dialect(endpoint.dialect).error_body(error.as_event()))
        await call.reply(error.status, body, "application/json", {})
        return
    try:
        socket = accept(call, server.max_body_bytes, server.body_seconds, {})
    except HandshakeError as error:
        await refuse_upgrade(call, f"{error}; send a POST request, or a WebSocket handshake of version 13")
        return
    await ResponsesWebSocket(services, access, recording.store, answer, call, socket).run()


def _fields_of(message: bytes) -> Fields:
    try:
        return _decode_fields(message)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RequestError(f"a message must be a JSON object ({error}): {excerpt(message)}", code="not_json") from None


def _text(fields: Fields, name: str) -> str:
    """A string field, or an empty string if it is absent."""
    try:
        return msgspec.json.decode(fields[name], type=str)
    except (KeyError, msgspec.MsgspecError):
        return ""


def _stream_id(fields: Fields) -> bytes:
    name = _text(fields, "stream_id")
    if len(name) > STREAM_ID_CHARS:
        raise RequestError(f"stream_id may have at most {STREAM_ID_CHARS} characters: {excerpt(name)}; send a shorter one")
    return msgspec.json.encode(name) if name else b""


def _items_of(given: Raw | None) -> bytes:
    """The items of an input in JSON, without brackets. A string becomes one user message."""
    data = bytes(given).strip() if given is not None else b""
    if data.startswith(b"["):
        return data[1:-1].strip()
    return b'{"type":"message","role":"user","content":%b}' % data if data.startswith(b'"') else b""


def _error_of(error: StreamglotError) -> JsonObject:
    decoded: JsonObject = dialect(ENDPOINTS[PATH].dialect).error_body(error.as_event())["error"]
    return decoded


def _not_supported(kind: str, fields: Fields) -> bytes:
    """The reply to a message that adds to a running response. Clients then send it as the next request."""
    what = "steering" if kind == "response.steer" else "injection"
    error = {"code": f"{what}_not_supported", "message": f"{kind} is not supported here; send it with the next response.create"}
    return msgspec.json.encode({"type": f"{kind}.failed", "error": error, "steer": {"input": fields.get("input", Raw(b"[]"))}})


def _too_many(message: str) -> RequestError:
    return RequestError(message, code="rate_limit_exceeded", status=429, retryable=True)


class WebSocketCall:
    """One call.

    ``upgrade`` is the request that opened the connection. ``headers`` are its headers merged with those of this message.
    """

    remembers = True
    half_closed = False

    def __init__(self, socket: WebSocket, upgrade: Call, headers: dict[str, str], body: bytes, stream_id: bytes) -> None:
        self.method = "POST"
        self.path = upgrade.path
        self.headers = headers
        self.extra_headers: dict[str, str] = {}
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self._socket = socket
        self._upgrade = upgrade
        self._body = body
        self._suffix = b',"stream_id":%b}' % stream_id if stream_id else b""
        self._on_disconnect: Callable[[], None] | None = None
        self._in_progress = b""
        self._final = b""

    @property
    def response(self) -> tuple[str, bytes]:
        """The response id and the output items in JSON, without the brackets.

        Both are empty if the response did not finish.
        """
        if not self._final:
            return "", b""
        found = msgspec.json.decode(self._final, type=_FinalEvent).response
        return found.id, b",".join(bytes(item) for item in found.output)

    def query(self, name: str) -> str:
        return self._upgrade.query(name)

    # --- the request

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:  # noqa: ARG002  # the WebSocket has these limits
        return self._body

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        if self._socket.closing:
            on_disconnect()
        else:
            self._on_disconnect = on_disconnect

    def unwatch(self) -> None:
        self._on_disconnect = None

    def connection_lost(self) -> None:
        """Reports that the connection is gone."""
        if self._on_disconnect is not None:
            on_disconnect, self._on_disconnect = self._on_disconnect, None
            on_disconnect()

    def task(self) -> asyncio.Task[object] | None:
        return asyncio.current_task()

    # --- the response

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002  # messages have neither
        """Does nothing: the first message starts the response.

        A keep-alive does not, so an error after it still has its status.
        """
        return DONE

    def write(self, data: bytes) -> Awaitable[None]:
        self.bytes_sent += len(data)
        messages = []
        for frame in data.split(b"\n\n"):
            place = frame.find(_DATA)
            if place < 0:
                if frame.startswith(b":") and self._in_progress:
                    messages.append(self._in_progress)
                continue
            message = frame[place + len(_DATA) :]
            name = frame[len(_EVENT) : place]
            if self._suffix:
                message = message[:-1] + self._suffix
            if name == _REPEATED:
                self._in_progress = message
            elif name in _FINAL:
                self._final = message
            messages.append(message)
        if not messages:
            return DONE
        self.started = True
        return self._socket.send(*messages)

    def end(self, data: bytes = b"") -> Awaitable[None]:
        self.ended = True
        return self.write(data)

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002  # an event has no media type
        """Sends an error event. An endpoint replies here only to refuse, because every answer on a WebSocket is a stream."""
        self.started = self.ended = True
        decoded = msgspec.json.decode(body, type=JsonObject)
        event = error_event(status, decoded.get("error", decoded), headers)
        return self._socket.send(event[:-1] + self._suffix if self._suffix else event)

    def break_off(self, data: bytes) -> Awaitable[None]:
        """Ends the response with its error, and closes the connection, also for other responses."""
        sent = self.end(data)
        self.unwatch()
        self._socket.close(CloseReason.INTERNAL_ERROR, "the response is incomplete")
        return sent

    def cut(self) -> None:
        """Closes the connection: nothing else shows a client that its response is incomplete."""
        self.ended = True
        self._socket.abort()


def error_event(status: int, error: object, headers: Mapping[str, str] | None = None) -> bytes:
    """An error event for a call whose response did not begin.

    Clients read ``status`` and the headers that say when to retry.
    """
    retry_headers = {
        name: value for name, value in (headers or {}).items() if name in ("retry-after", "x-request-id", "x-should-retry")
    }
    return msgspec.json.encode(
        {"type": "error", "status": status, "error": error, **({"headers": retry_headers} if retry_headers else {})}
    )
