"""One item of a batch as a separate call.

The request handler serves it like a client's call, and the answer is collected here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

import msgspec

from ...batch.requests import CHAT_DIALECT, BatchItem, chat_body, chat_result
from ...batch.runner import Outcome
from ...dialects import dialect
from ...errors import StreamglotError
from ...events import StreamError
from ...framing import Sse
from ...json_types import JsonObject, JsonValue
from ...messages import Response
from ...stages import Collect
from ..http.call import DONE, CallDeadline

CHAT_PATH: Final = "/v1/chat/completions"
_OWN_HEADERS: Final = frozenset(
    ("content-length", "content-type", "content-encoding", "transfer-encoding", "x-request-id", "x-streamglot-keep", "connection")
)
"""Headers that describe the batch's request, not an item's."""

Emit = Callable[[JsonObject], Awaitable[None]]
"""Receives one delta of an item's answer. Awaiting it applies backpressure."""
Serve = Callable[["ItemCall"], Awaitable[StreamError | None]]
"""Answers the call of an item. Returns the error that ended the answer."""


class ItemCall:
    """Satisfies ``Call``. ``received`` gets the bytes of a stream as they arrive; without it they are collected in ``pieces``."""

    def __init__(
        self,
        headers: Mapping[str, str],
        key: str,
        body: bytes,
        request_id: str,
        received: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self.method = "POST"
        self.path = CHAT_PATH
        self.headers = {name: value for name, value in headers.items() if name not in _OWN_HEADERS}
        self.headers["x-request-id"] = request_id
        self.extra_headers: dict[str, str] = {}
        self.started = self.ended = self.remembers = self.half_closed = False
        self.bytes_sent = 0
        self.status = 0
        self.answer_headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self._key = key
        self._body = body
        self._received = received
        self._on_disconnect: Callable[[], None] | None = None

    def query(self, name: str) -> str:
        return self._key if name == "key" else ""

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:  # noqa: ARG002  # the whole batch was read within the limits
        return self._body

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        self._on_disconnect = on_disconnect

    def unwatch(self) -> None:
        self._on_disconnect = None

    async def served(self, work: Coroutine[object, object, None]) -> None:
        """Waits for the handler. If the batch is cancelled, the handler sees a client that disconnected, and ends as usual."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._on_disconnect is not None:
                self._on_disconnect()
            else:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    def task(self) -> asyncio.Task[object] | None:
        return asyncio.current_task()

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:
        self.started = True
        self.status, self.answer_headers = status, headers
        return DONE

    def write(self, data: bytes) -> Awaitable[None]:
        self.bytes_sent += len(data)
        if self._received is not None and self.status == 200:
            return self._received(data)
        self.pieces.append(data)
        return DONE

    def end(self, data: bytes = b"") -> Awaitable[None]:
        self.ended = True
        return self.write(data)

    def break_off(self, data: bytes) -> Awaitable[None]:
        return self.end(data)

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002  # an item is always JSON
        self.started = self.ended = True
        self.status, self.answer_headers = status, headers
        self.bytes_sent += len(body)
        self.pieces.append(body)
        return DONE

    def cut(self) -> None:
        self.ended = True


class _StreamedAnswer:
    """Reads the stream of an item. Passes deltas to the batch's client, and returns the whole answer at the end."""

    def __init__(self, emit: Emit) -> None:
        self.began = False
        self._emit = emit
        self._frames = Sse()
        self._reader = dialect(CHAT_DIALECT).reader()
        self._collect = Collect()

    async def feed(self, data: bytes) -> None:
        self._collect.feed_all(self._reader.feed(data))
        for frame in self._frames.feed(data):
            if frame.kind == "data" and frame.data != b"[DONE]":
                for choice in msgspec.json.decode(frame.data, type=_Chunk).choices:
                    if choice.delta:
                        self.began = True
                        await self._emit({"index": choice.index, **choice.delta} if choice.index else choice.delta)

    def close(self) -> Response:
        self._collect.feed_all(self._reader.close())
        return self._collect.close()[0]


class _Choice(msgspec.Struct):
    index: int = 0
    delta: JsonObject = msgspec.field(default_factory=dict)


class _Chunk(msgspec.Struct):
    """The fields that are read of a chunk. The gateway's own writer made the chunk."""

    choices: list[_Choice] = msgspec.field(default_factory=list)


class ChatItem:
    """Runs one attempt at a chat completion of a batch, streamed or not."""

    def __init__(self, serve: Serve, headers: Mapping[str, str], key: str, request_id: str, emit: Emit | None) -> None:
        self._serve = serve
        self._headers = headers
        self._key = key
        self._request_id = request_id
        self._emit = emit

    async def run(self, payload: JsonObject) -> Outcome[JsonValue]:
        body, text_only = chat_body(payload)
        streamed = _StreamedAnswer(self._emit) if self._emit is not None else None
        wanted = {"stream": True, "stream_options": {"include_usage": True}} if streamed is not None else {"stream": False}
        sent = msgspec.json.encode({**body, **wanted})
        call = ItemCall(self._headers, self._key, sent, self._request_id, streamed.feed if streamed is not None else None)
        error = await self._serve(call)
        if error is None and call.status == 200:
            if streamed is None:
                completion = msgspec.json.decode(b"".join(call.pieces))
                return Outcome(_text_of(completion) if text_only else completion)
            response = streamed.close()
            if response.error is None:
                return Outcome(chat_result(response, text_only))
            error = response.error
        after = call.answer_headers.get("retry-after", "")
        return Outcome(
            error=error or _no_answer(),
            retry_after=float(after) if after.isdecimal() else None,
            final=streamed is not None and streamed.began,  # a retry would send the client the beginning of this answer again
        )


def _text_of(completion: JsonObject) -> str:
    choices = completion.get("choices")
    return (choices[0]["message"].get("content") or "") if choices else ""


def _no_answer() -> StreamError:
    return StreamglotError("the request ended without an answer; see its line in the gateway's log").as_event()


def item_request_id(request_id: str, item: BatchItem) -> str:
    """The request id of one item, as used in the log and at the upstream."""
    return f"{request_id}-{item.id}"
