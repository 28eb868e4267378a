"""``POST /v1/batch``: many requests in one call, each with its own result or error.

Each chat completion is served as a separate call (``ItemCall``), and its answer is collected. It therefore has the routes,
retries, policies, tools, limits, budget and recorded turn of any other request of its key.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from ...batch.items import (
    CHAT_DIALECT,
    ID_CHARS,
    TOOL_CALL,
    BatchItem,
    ItemResponse,
    chat_body,
    chat_result,
    failed,
    parse_items,
    payload_of,
    run_tool_call,
    succeeded,
)
from ...batch.runner import Outcome, RetryPolicy, run_all, with_retries
from ...dialects import dialect
from ...engine.attempts import retry_after_of
from ...engine.exchange import Exchange
from ...engine.stats import ExchangeRecord
from ...engine.tool_call import ToolCall
from ...errors import FOREIGN_ERRORS, RequestError, StreamglotError, excerpt
from ...events import StreamError
from ...framing import Sse, sse
from ...json_types import JsonObject, JsonValue
from ...messages import Response
from ...stages import Collect
from ..admission import Admission, Admitted
from ..auth.authenticator import Caller, anonymous
from ..endpoints import ENDPOINTS
from ..handler import RequestHandler
from ..http.call import DONE, EVENTS, JSON, CallDeadline, Reply, RoutedCall, StreamedReply
from ..observe.recording import Recording
from ..services import GatewayServices, RunningRequests
from .batch_answers import BatchAnswers
from .router import KEY, Answer, APIRoute, json_of, query_of, request_id, while_there

CHAT_PATH: Final = "/v1/chat/completions"
_OWN_HEADERS: Final = frozenset(
    ("content-length", "content-type", "content-encoding", "transfer-encoding", "x-request-id", "x-streamglot-keep", "connection")
)
"""Headers that describe the batch's request, not an item's."""

Emit = Callable[[JsonObject], Awaitable[None]]
"""Receives one delta of an item's answer. Awaiting it applies backpressure."""
Serve = Callable[["ItemCall"], Awaitable[StreamError | None]]
"""Answers the call of an item. Returns the error that ended the answer."""
RETRY: Final = RetryPolicy()
"""Retries of a whole item after a transient error, in addition to the engine's retries at one upstream."""
WAITING: Final = 64
"""Events that may wait for a slow client, plus one for each item. When the queue is full, the upstreams are slowed down."""
CLAIMS: Final = 8
"""Attempts to run a named batch that another process began and did not end. More of them mean that something stops the batch."""


class ItemServer:
    """Serves the items of batches as the gateway serves calls of their callers."""

    def __init__(self, services: GatewayServices, admission: Admission, recording: Recording, requests: RunningRequests) -> None:
        self.services = services
        self.requests = requests
        self._admission = admission
        self._recording = recording

    async def chat(self, call: ItemCall) -> StreamError | None:
        """Answers a chat completion. Returns the error that ended it."""
        handler = RequestHandler(self.services, self._admission, self._recording, ENDPOINTS[CHAT_PATH], call, "")
        await call.served(self.requests.serve(handler))
        return handler.error

    async def tool(
        self, caller: Caller | None, headers: Mapping[str, str], request_id: str, payload: JsonObject
    ) -> Outcome[JsonValue]:
        """Runs a tool call."""
        services, admission = self.services, self._admission
        record = ExchangeRecord(request_id, CHAT_DIALECT, services.clock())
        admitted = Admitted(ENDPOINTS[CHAT_PATH], record, dict(headers), caller)

        async def exchange(call: ToolCall) -> Exchange:
            await admission.record_tool_call(admitted, call.request)
            return admission.exchange(admitted, call.request, upstreams=call, stages=call.stages)

        await admission.admit_tool_call(admitted)
        async with admission.slot(caller):
            allow = partial(admission.allow_tools, admitted)
            return Outcome(await run_tool_call(services.pool, payload, exchange, allow))


class BatchRun:
    """One running batch. ``listen`` attaches a client to its events; without a client no events are made."""

    def __init__(
        self, server: ItemServer, call: RoutedCall, caller: Caller | None, batch_id: str, items: list[BatchItem]
    ) -> None:
        self.batch_id = batch_id
        self._server = server
        self._services = server.services
        self._request_id = request_id(call)
        self._headers: Mapping[str, str] = dict(call.headers)
        self._key = query_of(call).get(KEY, "")
        self._caller = caller
        self._items = items
        self._events: asyncio.Queue[bytes | None] | None = None

    def listen(self) -> asyncio.Queue[bytes | None]:
        """The queue of the batch's events.

        None marks the end; an empty item marks a batch that stopped before its end.
        """
        self._events = asyncio.Queue(max(WAITING, len(self._items) + 1))
        return self._events

    def leave(self) -> None:
        """Detaches the client. Items that wait for room in the queue continue."""
        events, self._events = self._events, None
        while events is not None and not events.empty():
            events.get_nowait()

    async def run(self) -> bytes:
        """Runs all items and returns the whole answer, with the responses in the order of the requests."""
        concurrent = max(1, self._services.server.batch_concurrent)
        if self._caller is not None and self._caller.concurrent:
            concurrent = min(concurrent, self._caller.concurrent)
        responses: dict[int | str, ItemResponse] = {}
        began = self._services.clock()
        async with aclosing(run_all(self._items, self._run, concurrent=concurrent)) as results:
            async for response in results:
                responses[response["request_id"]] = response
                await self._tell(b"response", response)
        if self._services.server.log:
            failures = sum(response["error"] is not None for response in responses.values())
            self._services.log(
                {
                    "event": "batch",
                    "request_id": self._request_id,
                    "batch_id": self.batch_id,
                    "requests": len(self._items),
                    "failed": failures,
                    "seconds": round(self._services.clock() - began, 4),
                }
            )
        return answer_of(self.batch_id, [responses[item.id] for item in self._items])

    async def _run(self, item: BatchItem) -> ItemResponse:
        """Runs one item. An internal error becomes the error of this item only."""
        try:
            outcome = await with_retries(lambda: self._final_when_stopping(item), RETRY)
        except FOREIGN_ERRORS as error:
            self._services.log_fault(item_request_id(self._request_id, item), error)
            return failed(item, StreamglotError("internal error of the gateway; its log has the details").as_event())
        return succeeded(item, outcome.value) if outcome.error is None else failed(item, outcome.error)

    async def _final_when_stopping(self, item: BatchItem) -> Outcome[JsonValue]:
        """Makes an attempt. While the gateway stops, the outcome is final, because every further attempt would be refused."""
        outcome = await self._attempt(item)
        outcome.final = outcome.final or self._server.requests.stopping
        return outcome

    async def _attempt(self, item: BatchItem) -> Outcome[JsonValue]:
        try:
            payload = payload_of(item)
            request_id = item_request_id(self._request_id, item)
            if item.type == TOOL_CALL:
                return await self._server.tool(self._caller, self._headers, request_id, payload)
            emit = self._emit(item) if self._events is not None else None
            chat = ChatItem(self._server.chat, self._headers, self._key, request_id, emit)
            return await chat.run(payload)
        except StreamglotError as error:
            return Outcome(error=error.as_event(), retry_after=retry_after_of(error))

    def _emit(self, item: BatchItem) -> Emit:
        async def emit(delta: JsonObject) -> None:
            await self._tell(b"delta", {"request_id": item.id, "delta": delta})

        return emit

    async def _tell(self, name: bytes, data: object) -> None:
        if self._events is not None:
            await self._events.put(sse.event(msgspec.json.encode(data), name))

    async def send_end(self) -> None:
        if self._events is not None:
            await self._events.put(None)

    def send_failure(self) -> None:
        """Tells the client that the batch stopped before its end.

        If the queue is full, drops an event, as the stream is incomplete anyway.
        """
        if self._events is not None:
            if self._events.full():
                self._events.get_nowait()
            self._events.put_nowait(b"")


def answer_of(batch_id: str, responses: list[ItemResponse]) -> bytes:
    return msgspec.json.encode({"batch_id": batch_id, "responses": responses})


def batch_routes(
    services: GatewayServices, admission: Admission, recording: Recording, requests: RunningRequests
) -> list[APIRoute]:
    answers = BatchAnswers(lambda: recording.store)
    server = ItemServer(services, admission, recording, requests)

    async def batch(call: RoutedCall) -> Answer:
        caller = admission.caller(call.headers, query_of(call).get(KEY, ""))
        body = await json_of(services, call)
        items = parse_items(body.get("requests"), services.server.batch_items)
        named, stream = _batch_id(body.get("batch_id")), body.get("stream", False)
        if not isinstance(stream, bool):
            raise RequestError(f"stream must be true or false, not {excerpt(stream)}", detail={"param": "stream"})
        owner = caller.name if caller is not None else anonymous(call.headers)
        run = BatchRun(server, call, caller, named or services.new_id(), items)
        headers = {"x-request-id": request_id(call)}
        if not named:
            if stream:
                return BatchEvents(services, run, asyncio.ensure_future(_run_and_notify(run))).stream(headers)
            return _json(await while_there(call, run.run()), headers)
        digest = hashlib.sha256(msgspec.json.encode(body["requests"], order="deterministic")).hexdigest()
        for _ in range(CLAIMS):
            known = await answers.find(owner, named, digest)
            if known is not None:
                return _replayed(known, headers) if stream else _json(known, headers)
            if await answers.claim(owner, named, digest) and not answers.is_running(owner, named):
                break
        else:
            raise _stopped()
        future = answers.begin(owner, named, digest)
        response = BatchEvents(services, run, None).stream(headers) if stream else None
        services.tasks.spawn("batch", _run_named(requests, run, answers, owner, future))
        return response if response is not None else _json(await asyncio.shield(future), headers)

    return [
        APIRoute(
            "POST",
            "/v1/batch",
            batch,
            "Many requests in one: chat completions and tool calls, each with its own result or error",
        )
    ]


def _batch_id(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= ID_CHARS:
        raise RequestError(
            f"batch_id must be a string of at most {ID_CHARS} characters, not {excerpt(value)}", detail={"param": "batch_id"}
        )
    return value


async def _run_and_notify(run: BatchRun) -> bytes:
    """Runs a batch and tells its listener that it has ended."""
    try:
        data = await run.run()
        await run.send_end()
    except BaseException:
        run.send_failure()
        raise
    return data


async def _run_named(
    requests: RunningRequests, run: BatchRun, answers: BatchAnswers, owner: str, future: asyncio.Future[bytes]
) -> None:
    """Runs a named batch to its end even if the client disconnects, because the client may ask for it again.

    An answer that the gateway refused because it stops is not kept.
    """
    data: bytes | None = None
    try:
        data = await _run_and_notify(run)
    except BaseException as error:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else _stopped())
        raise
    finally:
        answers.finish(owner, run.batch_id, None if requests.stopping else data)
        if data is not None and not future.done():
            future.set_result(data)


def _stopped() -> StreamglotError:
    return StreamglotError(
        "the batch was stopped before its end; send it again", code="batch_stopped", status=503, retryable=True
    )


def _json(data: bytes, headers: Mapping[str, str]) -> Reply:
    return Reply(200, data, JSON, headers)


def _done(batch_id: str) -> bytes:
    return sse.event(msgspec.json.encode({"batch_id": batch_id}), b"done")


def _replayed(data: bytes, headers: Mapping[str, str]) -> Reply:
    """The answer to a batch that was run before, as events without deltas."""
    answer = msgspec.json.decode(data)
    events = [sse.event(msgspec.json.encode(response), b"response") for response in answer["responses"]]
    return Reply(200, b"".join((*events, _done(answer["batch_id"]))), EVENTS, headers)


class BatchEvents:
    """Streams the events of a batch.

    When the client disconnects, a batch without a name (``task``) is cancelled. A named batch continues.
    """

    def __init__(self, services: GatewayServices, run: BatchRun, task: asyncio.Task[bytes] | None) -> None:
        self._services = services
        self._run = run
        self._task = task
        self._events = run.listen()

    def stream(self, headers: Mapping[str, str]) -> StreamedReply:
        headers = {**headers, "cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamedReply(self._bytes(), EVENTS, headers, self._ended)

    async def _bytes(self) -> AsyncIterator[bytes]:
        quiet = self._services.server.keep_alive_seconds
        while True:
            try:
                async with asyncio.timeout(quiet):
                    event = await self._events.get()
            except TimeoutError:
                yield sse.comment("ping")
                continue
            if event == b"":
                yield sse.event(msgspec.json.encode(dialect(CHAT_DIALECT).error_body(_stopped().as_event())), b"error")
                return
            if event is None:
                yield _done(self._run.batch_id)
                return
            yield event

    async def _ended(self) -> None:
        self._run.leave()
        if self._task is not None:
            self._task.cancel()
            (ended,) = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(ended, Exception):
                self._services.log_fault(self._run.batch_id, ended)


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
