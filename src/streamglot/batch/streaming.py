"""Streams many answers as one sequence of chunks, each tagged with the number of its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ..errors import ConfigError, StreamglotError
from ..events import Choice, Event, StreamError, TextDelta
from ..json_types import JsonValue
from .request_batch import chat_payload
from .runner import CONCURRENT, run_all

Item = TypeVar("Item")
Out = TypeVar("Out")

WAITING: Final = 64
"""Chunks that wait for the reader. A slow reader slows the upstreams down instead of filling the memory."""

Chunk: TypeAlias = tuple[str, Any, int | None]  # Any: a text; None for ``stream_done``
"""``("chunk", text, request)``, ``("error", message, request)``, and ``("stream_done", None, None)`` at the end. Requests are
numbered from 1."""


class StreamingClient(Protocol):
    """The methods of a client that are used here. An open ``Client`` has them."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    # Any: a stream of the client, which is a layer above
    def stream(self, *, model: str = "", messages: JsonValue = (), **fields: JsonValue) -> Any: ...


async def stream_all(
    items: Iterable[Item], produce: Callable[[Item], AsyncGenerator[Out, None]], *, concurrent: int = CONCURRENT
) -> AsyncGenerator[Out, None]:
    """Yields what ``produce`` yields for every item, as it comes, for ``concurrent`` items at a time."""
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


class _End:
    """All items are done, or one of them raised."""

    error: Exception | None = None


class BatchStream:
    """Use ``async for`` with a client opened by ``async with``, and ``for`` with any other."""

    def __init__(self, client: StreamingClient, chunks: AsyncGenerator[Chunk, None]) -> None:
        self._client = client
        self._chunks = chunks

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        return self._chunks

    def __iter__(self) -> Iterator[Chunk]:
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


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncGenerator[Chunk, None]) -> None:
    await chunks.aclose()


def stream_with_batching(
    api_client: StreamingClient, messages: Iterable[object], *, concurrent: int = 5, **fields: JsonValue
) -> BatchStream:
    """Yields the chunks of the answers to all messages, as they come.

    A message is a string, a message of the chat API or a list of them. ``fields`` (model …) apply to all.
    """

    async def produce(numbered: tuple[int, object]) -> AsyncGenerator[Chunk, None]:
        number, message = numbered
        try:
            payload = chat_payload(message, {})
            async with api_client.stream(messages=payload.get("prompt", payload.get("messages")), **fields) as stream:
                async for event in stream:
                    chunk = _chunk(event, number)
                    if chunk is not None:
                        yield chunk
        except StreamglotError as error:
            yield "error", error.message, number

    async def chunks() -> AsyncGenerator[Chunk, None]:
        async with aclosing(stream_all(enumerate(messages, 1), produce, concurrent=concurrent)) as tagged:
            async for chunk in tagged:
                yield chunk
        yield "stream_done", None, None

    return BatchStream(api_client, chunks())


def _chunk(event: Event, number: int) -> Chunk | None:
    bare = event.event if isinstance(event, Choice) else event
    if isinstance(bare, TextDelta):
        return "chunk", bare.text, number
    if isinstance(bare, StreamError):
        return "error", bare.message, number
    return None
