"""The services that a stage's question may use: a model, the clock, the store, people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..errors import StreamglotError, UpstreamError
from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from ..upstream.prices import price
from .exchange import Exchange, Upstreams
from .observer import EngineTracer
from .stats import ExchangeRecord

if TYPE_CHECKING:
    from ..policies import Approvals

MODEL_CALLS = "model_calls"
"""The subject of annotations under which model calls of stages are stored with the turn."""


class ServedUpstreams(Upstreams, Protocol):
    """What questions need of the upstream pool."""

    tracer: EngineTracer | None

    @property
    def approvals(self) -> Approvals: ...

    def record(self, request: Request, request_id: str = "", /) -> ExchangeRecord: ...


class Services:
    """The services of one exchange."""

    def __init__(self, pool: ServedUpstreams, context: ExchangeContext) -> None:
        self._pool = pool
        self._context = context
        self.clock = pool.clock
        self.log = pool.log
        self.tracer = pool.tracer

    @property
    def approvals(self) -> Approvals:
        """The open approval requests."""
        return self._pool.approvals

    async def complete(self, request: Request) -> Response:
        """Calls a model, without stages. The call and its cost are stored with the turn."""
        record = self._pool.record(request, self._context.request_id)
        exchange = Exchange(request, self._pool, record=record)
        try:
            await exchange.start()
            response = await exchange.collect()
        finally:
            exchange.close()
        model = exchange.turn.model if exchange.turn is not None else request.model
        usage = response.usage
        self._context.annotate(
            MODEL_CALLS,
            {
                "model": model,
                "upstream": record.upstream,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cost": price(usage, model, record.upstream),
            },
        )
        if response.error is not None:
            raise _failed(response)
        return response


def _failed(response: Response) -> StreamglotError:
    assert response.error is not None
    return UpstreamError(response.error.message, code=response.error.code, status=response.error.status)
