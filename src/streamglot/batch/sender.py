"""Sends the items of a batch to the upstreams and tools of this process, or to a function that accepts a whole batch."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.pool import UpstreamPool
from ..engine.tool_call import ToolCall
from ..errors import StreamglotError, UpstreamProtocolError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import Request
from ..stages.stage import ExchangeContext
from .requests import (
    CHAT_COMPLETION,
    CHAT_DIALECT,
    TOOL_CALL,
    BatchItem,
    ExecuteTool,
    ItemResponse,
    chat_body,
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
