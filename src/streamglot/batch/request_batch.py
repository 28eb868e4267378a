"""Batches of requests in memory: for threads (``RequestBatch``, ``SizeBasedBatcher`` …) and for asyncio (``AsyncRequestBatch``).

    with RequestBatch(max_size=10, flush_timeout=0.5) as batch:
        batch.add_chat_request("Hello", model="llama3")
        batch.add_tool_call("get_markdown", {"scope": "full"})
        for response in batch.flush():
            print(response["request_id"], response["result"], response["error"])

Requests are sent when the batch is full, when its time is over, or by ``flush``, which returns the responses of all requests
since the previous flush, in order. No lock is held during sending, which happens on one event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

from ..errors import ConfigError, StreamglotError
from ..json_types import JsonObject, JsonValue
from ..loop_thread import LoopThread
from .async_batcher import UNCLAIMED, AsyncBatcher, Send
from .requests import CHAT_COMPLETION, TOOL_CALL, BatchItem, ExecuteTool, ItemResponse, chat_payload, failed
from .runner import CONCURRENT, RetryPolicy
from .sender import BatchClient, BatchSend, LocalSender, PoolClient, WholeSender

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
