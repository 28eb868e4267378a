"""An exchange whose first model turn is known already: a call that was suspended, and that its user has decided about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from .cache import CachedAnswer
from .conversation import ConversationState
from .exchange import Passthrough, Upstreams
from .record import ExchangeRecord

if TYPE_CHECKING:
    from .upstream_stream import EventSource

NAME = "approvals"
"""What the record calls the upstream of such a turn: no upstream was asked."""


class ResumedPool:
    """The pool as such an exchange sees it. Model turns behind the first one, as the tool loop wants them, ask upstreams."""

    def __init__(self, pool: Upstreams, response: Response) -> None:
        self._pool = pool
        self._response: Response | None = response
        self.clock = pool.clock

    def services(self, context: ExchangeContext) -> Any:  # as ``Upstreams`` has it
        return self._pool.services(context)

    def log(self, line: Mapping[str, Any]) -> None:
        self._pool.log(line)

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough
    ) -> EventSource:
        response, self._response = self._response, None
        if response is None:
            return await self._pool.ask(request, record, conversation, passthrough)
        response.model = request.model
        return CachedAnswer(response, NAME)
