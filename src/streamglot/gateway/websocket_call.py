"""A call that came as a message on a WebSocket. The endpoint answers it like any other call, and its stream leaves as messages.

The dialect's writer writes server-sent events. A WebSocket carries the same objects without that framing, one per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct, field
from wsproto.frame_protocol import CloseReason

from ..json_types import JsonObject
from .http.call import DONE, Call, CallDeadline
from .http.websocket import WebSocket

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
