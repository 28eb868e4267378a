"""Sends the items of a batch to the upstreams and tools of this process, or to a function that accepts a whole batch."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.pool import UpstreamPool
from ..errors import StreamglotError, UpstreamProtocolError, excerpt
from ..json_types import JsonObject
from ..messages import Request
from ..stages.stage import ExchangeContext
from .requests import (
    CHAT_DIALECT,
    TOOL_CALL,
    BatchItem,
    ItemResponse,
    chat_body,
    chat_result,
    failed,
    payload_of,
    run_tool_call,
    succeeded,
)
from .runner import CONCURRENT, Completion, Outcome, RetryPolicy, collected, run_all, with_retries

BatchSend: TypeAlias = Callable[[JsonObject], JsonObject | Awaitable[JsonObject]]
"""Gets ``{"batch_id", "requests"}`` and returns ``{"batch_id", "responses"}``, or an awaitable of it."""


class BatchClient(Protocol):
    """The methods of a client that a batch uses: its pool, the loop that the pool belongs to, and exchanges."""

    pool: UpstreamPool

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    def exchange(self, made: Request, *, collects: bool = False) -> Exchange: ...


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

    def exchange(self, made: Request, *, collects: bool = False) -> Exchange:
        record = self.pool.record(made)
        return Exchange(
            made,
            self.pool,
            record=record,
            context=ExchangeContext(record.request_id, record.dialect, record.key, record.model, tools=self._patterns),
            stages=self.pool.stages,
            observers=self.pool.observers,
            collects=collects,
        )


class LocalSender:
    """Runs the items of a batch in this process, ``concurrent`` at a time. Each is retried separately."""

    def __init__(
        self, client: BatchClient, *, model: str = "", concurrent: int = CONCURRENT, retry: RetryPolicy | None = None
    ) -> None:
        self._client = client
        self._model = model
        self._concurrent = concurrent
        self._retry = retry or RetryPolicy()

    async def __call__(self, items: list[BatchItem]) -> AsyncIterator[tuple[int, ItemResponse]]:
        if isinstance(self._client, PoolClient):
            await self._client.open()

        async def run(numbered: tuple[int, BatchItem]) -> tuple[int, ItemResponse]:
            place, item = numbered
            return place, await self._run(item)

        async for place, response in run_all(enumerate(items), run, concurrent=self._concurrent):
            yield place, response

    async def _run(self, item: BatchItem) -> ItemResponse:
        try:
            payload = payload_of(item)
            if item.type == TOOL_CALL:
                return succeeded(item, await run_tool_call(self._client.pool.tools, payload))
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
    """Passes a batch as a whole to a function, for example one that posts it to a gateway's ``/v1/batch``."""

    def __init__(self, send: BatchSend, new_id: Callable[[], str]) -> None:
        self._send = send
        self._new_id = new_id

    async def __call__(self, items: list[BatchItem]) -> AsyncIterator[tuple[int, ItemResponse]]:
        requests = [{"id": item.id, "type": item.type, "payload": item.payload} for item in items]
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
