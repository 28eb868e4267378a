"""Runs many requests concurrently: ``async for result in client.batch(requests)``, or ``for`` with a plain client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct, structs

from ..batch.items import CHAT_DIALECT, chat_body, chat_payload
from ..batch.runner import Completion, Outcome, RetryPolicy, collected, numbered, run_all, with_retries
from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.upstreams import UpstreamPool
from ..errors import ConfigError, RequestError, StreamglotError, excerpt
from ..events import StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TextPart
from ..upstream.prices import price
from .stream import Run

if TYPE_CHECKING:
    from ..engine.turn_recorder import TurnRecorder

Given: TypeAlias = str | Request | Message | list[Message | JsonObject] | JsonObject | StreamglotError
"""One request, or the error of a request that could not be built. Either way it gets a result."""
Requests: TypeAlias = Iterable[Given] | AsyncIterable[Given]


class BatchSettings(Struct):
    model: str
    system: str
    concurrent: int
    ordered: bool
    retry: RetryPolicy
    recorder: Callable[[Request], TurnRecorder] | None


class BatchResult(Struct):
    """The answer to one request.

    ``index`` is its position among the requests, from 0. ``id`` is the request's id, or its index. With an ``error``,
    ``response`` has what came before it. ``seconds`` is the duration of the last of the ``attempts``.
    """

    index: int
    id: JsonValue
    response: Response
    error: StreamError | None = None
    attempts: int = 0
    upstream: str = ""
    model: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.response.choices[0].text if self.response.choices else ""

    @property
    def cost(self) -> float | None:
        """The price in US dollars; None if the model's price is not known."""
        return price(self.response.usage, self.model, self.upstream) if self.upstream else None


class Asking(Protocol):
    """The methods of a client that a batch uses."""

    pool: UpstreamPool

    def exchange(self, made: Request, *, recorder: TurnRecorder | None = None, collects: bool = False) -> Exchange: ...


class Batch:
    """The results of a batch. It begins with the first iteration. Leaving the loop cancels what still runs."""

    def __init__(self, client: Asking, requests: Requests, options: BatchSettings, run: Run | None) -> None:
        self._client = client
        self._options = options
        self._run = run
        self._results = run_all(numbered(requests), self._one, concurrent=options.concurrent, ordered=options.ordered)

    def __aiter__(self) -> AsyncGenerator[BatchResult, None]:
        return self._results

    def __iter__(self) -> Iterator[BatchResult]:
        if self._run is None:
            raise ConfigError("this client was opened with `async with`: read its batches with `async for`")
        try:
            while (result := self._run(self._next())) is not None:
                yield result
        finally:
            self._run(self.aclose())

    async def _next(self) -> BatchResult | None:
        return await anext(self._results, None)

    async def aclose(self) -> None:
        with suppress(RuntimeError):  # another task waits for its next result, which will be the last
            await self._results.aclose()

    async def _one(self, item: tuple[int, Given]) -> BatchResult:
        index, given = item
        id = given.get("id", index) if isinstance(given, dict) else index
        try:
            request = self._request(given)
        except StreamglotError as error:
            return BatchResult(index, id, Response(), error.as_event())

        async def attempt() -> Outcome[Completion]:
            recorder = self._options.recorder(request) if self._options.recorder is not None else None
            exchange = self._client.exchange(structs.replace(request), recorder=recorder, collects=True)
            return await collected(self._client.pool, exchange)

        outcome = await with_retries(attempt, self._options.retry)
        done = outcome.value
        assert done is not None
        return BatchResult(index, id, done.response, outcome.error, outcome.attempts, done.upstream, done.model, done.seconds)

    def _request(self, given: object) -> Request:
        options = self._options
        if isinstance(given, StreamglotError):
            raise given
        if isinstance(given, Request):
            made = structs.replace(given, model=given.model or options.model)
        elif isinstance(given, str):
            made = Request(model=options.model, messages=[Message("user", [TextPart(given)])])
        elif isinstance(given, (Message, list)):
            body = chat_payload(given, {"model": options.model})
            made = dialect(CHAT_DIALECT).parse_request(body)
        elif isinstance(given, dict):
            body, _ = chat_body({name: value for name, value in given.items() if name != "id"})
            made = dialect(CHAT_DIALECT).parse_request({"model": options.model, **body})
        else:
            raise RequestError(
                "a request of a batch must be a string, a Request, a Message, a list of messages or a dict of the chat API, "
                f"not {excerpt(given)}"
            )
        if options.system and not any(message.role in ("system", "developer") for message in made.messages):
            made.messages = [Message("system", [TextPart(options.system)]), *made.messages]
        return made
