"""Streams many answers as one sequence of pairs, one answer after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from itertools import islice
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

from ..errors import ConfigError, StreamglotError
from ..events import (
    Choice,
    Event,
    ReasoningDelta,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ..json_types import JsonValue
from .items import chat_payload
from .runner import CONCURRENT, run_all

Item = TypeVar("Item")
Out = TypeVar("Out")

CONCURRENT_STREAMS: Final = 5
"""Default number of answers at once: the batch size of the pattern that this function comes from."""
WAITING: Final = 64
"""Chunks that wait for the reader. A slow reader slows the upstreams down instead of filling the memory."""

ChunkKind: TypeAlias = Literal["chunk", "reasoning", "tool_call", "error", "stream_done"]


class BatchChunk(tuple[ChunkKind, Any]):  # Any: the data of the kind, see below
    """A pair ``(kind, data)``, with the number of its ``request``, from 1; ``stream_done`` belongs to none and has None.

    - ``chunk``: a piece of text.
    - ``reasoning``: a piece of the model's thoughts.
    - ``tool_call``: a whole call in the form of the chat API: ``{"id", "type", "function": {"name", "arguments"}}``.
    - ``error``: a message. What came of this answer before it stays.
    - ``stream_done``: None, once, after all answers.
    """

    request: int | None

    def __new__(cls, kind: ChunkKind, data: object, request: int | None = None) -> Self:
        pair = super().__new__(cls, (kind, data))
        pair.request = request
        return pair

    @property
    def kind(self) -> ChunkKind:
        return self[0]

    @property
    def data(self) -> Any:  # Any: as above
        return self[1]


class StreamingClient(Protocol):
    """The methods of a client that are used here. An open ``Client`` has them."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    # Any: a stream of the client, which is a layer above
    def stream(self, *, model: str = "", messages: JsonValue = (), **fields: JsonValue) -> Any: ...


async def stream_all(
    items: Iterable[Item], produce: Callable[[Item], AsyncGenerator[Out, None]], *, concurrent: int = CONCURRENT
) -> AsyncGenerator[Out, None]:
    """What ``produce`` yields for every item, as it comes, for ``concurrent`` items at a time."""
    waiting: asyncio.Queue[Out | _End] = asyncio.Queue(WAITING)

    async def pump(item: Item) -> None:
        async with aclosing(produce(item)) as outs:
            async for out in outs:
                await waiting.put(out)

    async def run() -> None:
        """Runs all items. If the reader stops early, this task is cancelled and sends no end marker."""
        end = _End()
        try:
            async for _ in run_all(items, pump, concurrent=concurrent):
                pass
        except Exception as error:
            end.error = error
        await waiting.put(end)

    task = asyncio.ensure_future(run())
    try:
        while not isinstance(out := await waiting.get(), _End):
            yield out
        if out.error is not None:
            raise out.error
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stream_in_order(
    items: Iterable[Item], produce: Callable[[Item], AsyncGenerator[Out, None]], *, concurrent: int = CONCURRENT_STREAMS
) -> AsyncGenerator[Out, None]:
    """What ``produce`` yields for every item, one item after the other. The next items, ``concurrent`` with the first, run
    meanwhile; what they yield waits in memory, because an upstream that is not read would give up."""

    async def pump(item: Item, outs: asyncio.Queue[Out | _End]) -> None:
        end = _End()
        try:
            async with aclosing(produce(item)) as produced:
                async for out in produced:
                    outs.put_nowait(out)
        except Exception as error:
            end.error = error
        outs.put_nowait(end)

    source = iter(items)
    running: deque[tuple[asyncio.Queue[Out | _End], asyncio.Task[None]]] = deque()

    def start(count: int) -> None:
        for item in islice(source, count):
            outs: asyncio.Queue[Out | _End] = asyncio.Queue()
            running.append((outs, asyncio.ensure_future(pump(item, outs))))

    try:
        start(concurrent)
        while running:
            outs, _ = running[0]
            while not isinstance(out := await outs.get(), _End):
                yield out
            if out.error is not None:
                raise out.error
            running.popleft()
            start(1)
    finally:
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)


class _End:
    """All items are done, or one of them raised."""

    error: Exception | None = None


class BatchStream:
    """Use ``async for`` with a client opened by ``async with``, and ``for`` with any other."""

    def __init__(self, client: StreamingClient, chunks: AsyncGenerator[BatchChunk, None]) -> None:
        self._client = client
        self._chunks = chunks

    def __aiter__(self) -> AsyncGenerator[BatchChunk, None]:
        return self._chunks

    def __iter__(self) -> Iterator[BatchChunk]:
        loop = self._client.loop
        if loop is None:
            raise ConfigError("this client was opened with `async with`: read its streams with `async for`")
        try:
            while True:
                chunk = asyncio.run_coroutine_threadsafe(_next(self._chunks), loop).result()
                if chunk is None:
                    return
                yield chunk
        finally:
            asyncio.run_coroutine_threadsafe(_close(self._chunks), loop).result()


async def _next(chunks: AsyncIterator[BatchChunk]) -> BatchChunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncGenerator[BatchChunk, None]) -> None:
    await chunks.aclose()


def stream_with_batching(
    api_client: StreamingClient,
    messages: Iterable[object],
    *,
    concurrent: int = CONCURRENT_STREAMS,
    ordered: bool = True,
    **fields: JsonValue,
) -> BatchStream:
    """The answers to all messages as pairs ``(kind, data)``: see ``BatchChunk``.

    A message is a string, a ``Message``, a message of the chat API or a list of these. ``fields`` (model …) apply to all. Up to
    ``concurrent`` requests run at once. The answers come one after the other, in the order of the messages; with ``ordered=False``
    their chunks come as they arrive, and ``request`` says to which one a chunk belongs.
    """

    async def produce(numbered: tuple[int, object]) -> AsyncGenerator[BatchChunk, None]:
        number, message = numbered
        try:
            payload = chat_payload(message, {})
            async with api_client.stream(messages=payload.get("prompt", payload.get("messages")), **fields) as stream:
                calls: dict[int, ToolCallStart] = {}
                arguments: dict[int, list[str]] = {}
                async for event in stream:
                    chunk = _chunk(event, number, calls, arguments)
                    if chunk is not None:
                        yield chunk
        except StreamglotError as error:
            yield BatchChunk("error", error.message, number)

    async def chunks() -> AsyncGenerator[BatchChunk, None]:
        run = stream_in_order if ordered else stream_all
        async with aclosing(run(enumerate(messages, 1), produce, concurrent=concurrent)) as answers:
            async for chunk in answers:
                yield chunk
        yield BatchChunk("stream_done", None)

    return BatchStream(api_client, chunks())


def _chunk(event: Event, number: int, calls: dict[int, ToolCallStart], arguments: dict[int, list[str]]) -> BatchChunk | None:
    """The pair of an event, if it has one. ``calls`` and ``arguments`` are the open calls by choice."""
    choice, bare = (event.index, event.event) if isinstance(event, Choice) else (0, event)
    match bare:
        case TextDelta():
            return BatchChunk("chunk", bare.text, number)
        case ReasoningDelta():
            return BatchChunk("reasoning", bare.text, number)
        case ToolCallStart():
            calls[choice], arguments[choice] = bare, []
        case ToolCallDelta():
            arguments[choice].append(bare.args)
        case ToolCallEnd() if bare.complete:
            call = calls[choice]
            function = {"name": call.name, "arguments": "".join(arguments[choice])}
            return BatchChunk("tool_call", {"id": call.call_id, "type": "function", "function": function}, number)
        case StreamError():
            return BatchChunk("error", bare.message, number)
    return None
