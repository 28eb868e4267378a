"""Batches of requests in memory: for threads (``RequestBatch``, ``SizeBasedBatcher`` …) and for asyncio (``AsyncRequestBatch``).

    with RequestBatch(max_size=10, flush_timeout=0.5) as batch:
        batch.add_chat_request("Hello", model="llama3")
        batch.add_tool_call("get_markdown", {"scope": "full"})
        for response in batch.flush():
            print(response["request_id"], response["result"], response["error"])

Requests are sent when the batch is full, when its time is over, or by ``flush``, which returns the responses of all requests
since the previous flush, in order. They go to the upstreams and tools of this process, or to a function that accepts a whole
batch. No lock is held during sending, which happens on one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack

from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.tool_call import ToolCall
from ..engine.upstreams import UpstreamPool
from ..errors import ConfigError, StreamglotError, UpstreamProtocolError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import Request
from ..stages.stage import ExchangeContext
from ..tasks import LoopThread
from .collector import UNCLAIMED, AsyncBatcher, Send
from .items import (
    CHAT_COMPLETION,
    CHAT_DIALECT,
    TOOL_CALL,
    BatchItem,
    ExecuteTool,
    ItemResponse,
    chat_body,
    chat_payload,
    chat_result,
    execute_tool_call,
    failed,
    payload_of,
    run_tool_call,
    succeeded,
)
from .runner import CONCURRENT, Completion, Outcome, RetryPolicy, collected, run_all, with_retries

BatchSend: TypeAlias = Callable[[JsonObject], JsonObject | Awaitable[JsonObject]]
"""Gets ``{"batch_id", "requests"}`` and returns ``{"batch_id", "responses"}``, or an awaitable of it."""
PERMANENT: Final = frozenset(
    ("invalid_request_error", "authentication_error", "permission_error", "permission_denied_error", "not_found_error")
)
"""Types of errors of the chat API that another attempt does not change."""
RAN: Final = frozenset(("tool_error", "tool_timeout", "invalid_arguments", "tool_not_found", "policy_refused"))
"""Codes of tool calls that are not repeated: the tool ran, and a second run may do its work twice, or it may not run."""


def _may_be_repeated(item: BatchItem, error: object) -> bool:
    """Whether an item with this error in its response is sent again."""
    if not error:
        return False
    if not isinstance(error, dict):
        return True
    if error.get("retryable") is False or error.get("type") in PERMANENT:
        return False
    return item.type != TOOL_CALL or error.get("code") not in RAN


def _retry_after(error: object) -> float | None:
    seconds = error.get("retry_after") if isinstance(error, dict) else None
    return float(seconds) if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0 else None


T = TypeVar("T")


class BatchOptions(TypedDict, total=False):
    """The options of every batch; ``AsyncRequestBatch`` describes them."""

    client: BatchClient | None
    send: BatchSend | None
    tools: Sequence[object]
    model: str
    concurrent: int
    retry: RetryPolicy | None
    execute_tool: ExecuteTool | None


class AsyncRequestBatch:
    """A batch of requests on one event loop.

    ``client`` is an open ``Client``. Without one, the upstreams and tools of the configuration are used, and ``tools`` are
    additional functions. ``model`` applies to chat completions that name none. ``send`` replaces the upstreams: it gets whole
    batches. ``execute_tool(name, arguments)`` runs the tool calls of this batch; what it returns is their result, unchanged.
    ``retry``: how failed items are tried again, each alone.
    """

    def __init__(
        self,
        max_size: int = 10,
        flush_timeout: float | None = 0.5,
        *,
        client: BatchClient | None = None,
        send: BatchSend | None = None,
        tools: Sequence[object] = (),
        model: str = "",
        concurrent: int = CONCURRENT,
        retry: RetryPolicy | None = None,
        execute_tool: ExecuteTool | None = None,
    ) -> None:
        if send is not None and execute_tool is not None:
            raise ConfigError("give send or execute_tool, not both: send gets whole batches, their tool calls included")
        self.max_size = max_size
        self.flush_timeout = flush_timeout
        self._own = PoolClient(tools) if client is None and send is None else None
        sender: Send[BatchItem, ItemResponse]
        if send is not None:
            sender = WholeSender(send, lambda: str(uuid.uuid4()), model=model, retry=retry)
        else:
            own = client or self._need_own()
            sender = LocalSender(own, model=model, concurrent=concurrent, retry=retry, execute_tool=execute_tool)
        self._batcher = AsyncBatcher(_never_raising(sender), max_size=max_size, flush_interval=flush_timeout)
        self._next_id = 1

    def _need_own(self) -> PoolClient:
        assert self._own is not None
        return self._own

    @property
    def requests(self) -> list[JsonObject]:
        """The requests that have not been sent yet."""
        return [item.request() for item in self._batcher.pending]

    def add(self, request: Mapping[str, JsonValue]) -> asyncio.Future[ItemResponse]:
        """Adds a request: an object with ``type``, ``payload`` and optionally ``id``. Its future never raises."""
        id = request.get("id", self._next_id)
        self._next_id += 1
        return self._batcher.add(BatchItem(id, request.get("type", ""), request.get("payload"), time.time()))

    def add_chat_request(self, message: object, **fields: object) -> asyncio.Future[ItemResponse]:
        """Adds a chat completion. ``fields`` are those of the chat API: model, temperature …"""
        return self.add({"type": CHAT_COMPLETION, "payload": chat_payload(message, fields)})

    def add_tool_call(self, tool: str, params: Mapping[str, JsonValue] | None = None) -> asyncio.Future[ItemResponse]:
        return self.add({"type": TOOL_CALL, "payload": {"tool": tool, "params": dict(params or {})}})

    async def flush(self) -> list[ItemResponse]:
        """Sends the pending requests and returns the responses of all requests since the last flush, in order."""
        return await self._batcher.flush()

    async def close(self) -> None:
        await self._batcher.close()
        if self._own is not None:
            await self._own.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def _never_raising(sender: Send[BatchItem, ItemResponse]) -> Send[BatchItem, ItemResponse]:
    """Wraps a sender so that a batch that cannot be sent gives each of its items an error."""

    async def send(items: list[BatchItem]) -> AsyncGenerator[tuple[int, ItemResponse], None]:
        left = set(range(len(items)))
        error = StreamglotError("the batch was answered without a response to this request", code="no_result")
        try:
            async for place, response in sender(items):
                left.discard(place)
                yield place, response
        except StreamglotError as failure:
            error = failure
        except Exception as failure:
            error = StreamglotError(f"the batch could not be sent: {type(failure).__name__}: {failure}", code="batch_failed")
        for place in left:
            yield place, failed(items[place], error.as_event())

    return send


# --- threads


@lru_cache(1)
def _shared_worker() -> LoopThread:
    """The thread that sends the batches of plain programs.

    All batches share it, because batches are often made and dropped.
    """
    return LoopThread("streamglot batches")


class _ThreadShell:
    """An ``AsyncRequestBatch`` for threads.

    Every method may be called from any thread, but not from a callback of a future, because callbacks run on the sending thread.
    """

    def __init__(self, max_size: int, flush_interval: float | None, **options: Unpack[BatchOptions]) -> None:
        client = options.get("client")
        if client is not None and client.loop is None:
            raise ConfigError("this client was opened with `async with`: use AsyncRequestBatch with it")
        self._loop = _shared_worker().loop if client is None or client.loop is None else client.loop
        self._inner = AsyncRequestBatch(max_size, flush_interval, **options)
        weakref.finalize(self, _close_later, self._loop, self._inner).atexit = False

    def add(self, request: Mapping[str, JsonValue]) -> Future[ItemResponse]:
        """Adds a request: an object with ``type`` and ``payload``. The future of its response never raises."""
        future: Future[ItemResponse] = Future()
        future.set_running_or_notify_cancel()  # a request that was added cannot be removed
        given = dict(request)

        def add() -> None:
            inner = self._inner.add(given)
            inner.add_done_callback(lambda done: _copy(done, future))

        self._loop.call_soon_threadsafe(add)
        return future

    @property
    def batch(self) -> list[JsonObject]:
        """The requests that have not been sent yet."""

        async def requests() -> list[JsonObject]:
            return self._inner.requests

        return self._run(requests())

    def flush(self) -> list[ItemResponse]:
        """Sends the pending requests and returns the responses of all requests since the last flush, in order."""
        return self._run(self._inner.flush())

    def close(self) -> None:
        """Sends the pending requests, waits for them, and closes the connections."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, step: Coroutine[object, object, T]) -> T:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            step.close()
            raise ConfigError("a batch cannot be waited for on the thread that sends it: call this from another thread")
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()


def _close_later(loop: asyncio.AbstractEventLoop, inner: AsyncRequestBatch) -> None:
    """Closes the connections of a batch that was dropped without ``close``, once its requests are answered."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(inner.close(), loop)


def _copy(done: asyncio.Future[ItemResponse], future: Future[ItemResponse]) -> None:
    if done.cancelled():
        future.set_exception(StreamglotError("the loop that sent the batch was stopped", code="cancelled"))
    else:
        future.set_result(done.result())


class SizeBasedBatcher(_ThreadShell):
    """Sends a batch when it has ``max_size`` requests. The rest is sent by ``flush``."""

    def __init__(self, max_size: int = 10, **options: Unpack[BatchOptions]) -> None:
        self.max_size = max_size
        super().__init__(max_size, None, **options)


class TimeBasedBatcher(_ThreadShell):
    """Sends a batch ``flush_interval`` seconds after its first request."""

    def __init__(self, flush_interval: float = 0.1, **options: Unpack[BatchOptions]) -> None:
        self.flush_interval = flush_interval
        super().__init__(0, flush_interval, **options)


class HybridBatcher(_ThreadShell):
    """Sends a batch when it has ``max_size`` requests, or ``flush_interval`` seconds after its first one."""

    def __init__(self, max_size: int = 10, flush_interval: float = 0.1, **options: Unpack[BatchOptions]) -> None:
        self.max_size, self.flush_interval = max_size, flush_interval
        super().__init__(max_size, flush_interval, **options)


class RequestBatch(_ThreadShell):
    """A batch of numbered requests. ``add_request`` returns the number; ``future`` has the response under it. The options are
    those of ``AsyncRequestBatch``."""

    def __init__(
        self,
        max_size: int = 10,
        flush_timeout: float = 0.5,
        *,
        client: BatchClient | None = None,
        send: BatchSend | None = None,
        tools: Sequence[object] = (),
        model: str = "",
        concurrent: int = CONCURRENT,
        retry: RetryPolicy | None = None,
        execute_tool: ExecuteTool | None = None,
    ) -> None:
        self.max_size, self.flush_timeout = max_size, flush_timeout
        super().__init__(
            max_size,
            flush_timeout,
            client=client,
            send=send,
            tools=tools,
            model=model,
            concurrent=concurrent,
            retry=retry,
            execute_tool=execute_tool,
        )
        self._lock = threading.Lock()
        self._next_id = 1
        self._futures: OrderedDict[int, Future[ItemResponse]] = OrderedDict()

    def add_request(self, request_type: str, payload: Mapping[str, JsonValue]) -> int:
        """Adds a request and returns its id. Nothing is sent under the lock; the other thread sends."""
        with self._lock:
            request_id = self._next_id
            self._next_id += 1
            self._futures[request_id] = self.add({"id": request_id, "type": request_type, "payload": dict(payload)})
            if len(self._futures) > UNCLAIMED:
                self._futures.popitem(last=False)
        return request_id

    def add_chat_request(self, message: object, **fields: object) -> int:
        """Adds a chat completion: a text, a message or a list of messages, with fields of the chat API (model …)."""
        return self.add_request(CHAT_COMPLETION, chat_payload(message, fields))

    def add_tool_call(self, tool: str, params: Mapping[str, JsonValue] | None = None) -> int:
        return self.add_request(TOOL_CALL, {"tool": tool, "params": dict(params or {})})

    @property
    def requests(self) -> list[JsonObject]:
        """The requests that have not been sent yet."""
        return self.batch

    def future(self, request_id: int) -> Future[ItemResponse]:
        """The future of this request's response. The last 10,000 requests are known."""
        with self._lock:
            found = self._futures.get(request_id)
        if found is None:
            raise ConfigError(f"this batch has no request {request_id} any more; read its response from `flush`")
        return found


class BatchClient(Protocol):
    """The methods of a client that a batch uses: its pool, the loop that the pool belongs to, and exchanges."""

    pool: UpstreamPool

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    def exchange(self, made: Request, *, collects: bool = False, call: ToolCall | None = None) -> Exchange: ...


class PoolClient:
    """A minimal client around a pool, for programs that pass no client. It uses the upstreams and tools of the configuration."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, tools: Sequence[object] = ()) -> None:
        self.pool = UpstreamPool(tools=tools)
        self._patterns = [tool.name for tool in self.pool.tools.registry.given()]
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens the pool with the first batch. Concurrent batches wait for the same opening."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self.pool.open())
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening = None
            await self.pool.close()

    def exchange(self, made: Request, *, collects: bool = False, call: ToolCall | None = None) -> Exchange:
        record = self.pool.record(made)
        patterns = self._patterns if call is None else [call.tool.name]
        return Exchange(
            made,
            self.pool if call is None else call,
            record=record,
            context=ExchangeContext(record.request_id, record.dialect, record.key, record.model, tools=patterns),
            stages=self.pool.stages if call is None else call.stages,
            observers=self.pool.observers,
            collects=collects,
        )


class LocalSender:
    """Runs the items of a batch in this process, ``concurrent`` at a time. Each is retried separately."""

    def __init__(
        self,
        client: BatchClient,
        *,
        model: str = "",
        concurrent: int = CONCURRENT,
        retry: RetryPolicy | None = None,
        execute_tool: ExecuteTool | None = None,
    ) -> None:
        self._client = client
        self._execute_tool = execute_tool
        self._model = model
        self._concurrent = concurrent
        self._retry = retry or RetryPolicy()

    async def __call__(self, items: list[BatchItem]) -> AsyncIterator[tuple[int, ItemResponse]]:
        async def run(numbered: tuple[int, BatchItem]) -> tuple[int, ItemResponse]:
            place, item = numbered
            return place, await self._run(item)

        async for place, response in run_all(enumerate(items), run, concurrent=self._concurrent):
            yield place, response

    async def _exchange_of(self, call: ToolCall) -> Exchange:
        return self._client.exchange(call.request, collects=True, call=call)

    async def _run(self, item: BatchItem) -> ItemResponse:
        try:
            payload = payload_of(item)
            if item.type == TOOL_CALL and self._execute_tool is not None:
                return succeeded(item, await execute_tool_call(self._execute_tool, payload))
            if isinstance(self._client, PoolClient):
                await self._client.open()
            if item.type == TOOL_CALL:
                return succeeded(item, await run_tool_call(self._client.pool, payload, self._exchange_of))
            body, text_only = chat_body(payload)
            request = dialect(CHAT_DIALECT).parse_request({"model": self._model, **body})
        except StreamglotError as error:
            return failed(item, error.as_event())

        async def attempt() -> Outcome[Completion]:
            return await collected(self._client.pool, self._client.exchange(request, collects=True))

        outcome = await with_retries(attempt, self._retry)
        if outcome.error is not None or outcome.value is None:
            assert outcome.error is not None
            return failed(item, outcome.error)
        return succeeded(item, chat_result(outcome.value.response, text_only))


class WholeSender:
    """Passes a batch as a whole to a function, for example one that posts it to a gateway's ``/v1/batch``.

    ``model`` is for chat completions that name none. An item whose response has an error is sent again alone, as ``retry`` says,
    unless the error is permanent or the item is a tool call that ran.
    """

    def __init__(self, send: BatchSend, new_id: Callable[[], str], *, model: str = "", retry: RetryPolicy | None = None) -> None:
        self._send = send
        self._new_id = new_id
        self._model = model
        self._retry = retry or RetryPolicy()

    async def __call__(self, items: list[BatchItem]) -> AsyncIterator[tuple[int, ItemResponse]]:
        failed: list[tuple[int, ItemResponse]] = []
        async for place, response in self._ask(items):
            if _may_be_repeated(items[place], response["error"]):
                failed.append((place, response))
            else:
                yield place, response

        async def again(one: tuple[int, ItemResponse]) -> tuple[int, ItemResponse]:
            place, response = one
            return place, await self._again(items[place], response)

        async for place, response in run_all(failed, again):
            yield place, response

    async def _again(self, item: BatchItem, response: ItemResponse) -> ItemResponse:
        """Sends a failed item alone until it succeeds or its retries are used up. Returns its last response."""
        for attempt in range(1, self._retry.retries + 1):
            await asyncio.sleep(self._retry.pause(attempt, _retry_after(response["error"]), random.random()))
            try:
                answers = [found async for _, found in self._ask([item])]
            except Exception as error:  # the sender is foreign code; the error that the item has stays
                response = {**response, "error": response["error"] or f"{type(error).__name__}: {error}"}
                continue
            response = answers[0] if answers else response
            if not _may_be_repeated(item, response["error"]):
                break
        return response

    async def _ask(self, items: list[BatchItem]) -> AsyncIterator[tuple[int, ItemResponse]]:
        requests = [{**item.request(), "payload": self._with_model(item)} for item in items]
        given = {"batch_id": self._new_id(), "requests": requests}
        if inspect.iscoroutinefunction(self._send):
            answer = await self._send(given)
        else:
            answer = await asyncio.to_thread(self._send, given)
            if inspect.isawaitable(answer):
                answer = await answer
        places: dict[Any, int] = {item.id: place for place, item in enumerate(items)}  # Any: an answer may have an id of any type
        responses = answer.get("responses") if isinstance(answer, dict) else None
        if not isinstance(responses, list):
            raise UpstreamProtocolError(f"the answer to a batch must be an object with responses, not {excerpt(answer)}")
        for response in responses:
            place = places.get(response.get("request_id")) if isinstance(response, dict) else None
            if place is not None:
                yield place, {"result": None, "error": None, **response}

    def _with_model(self, item: BatchItem) -> JsonValue:
        payload = item.payload
        if not self._model or item.type != CHAT_COMPLETION or not isinstance(payload, dict) or payload.get("model"):
            return payload
        return {**payload, "model": self._model}
