"""An exchange whose first model turn is already known: a suspended call about which the user has decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..json_types import JsonValue
from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from .cache import CachedAnswer
from .conversation import ConversationState
from .exchange import Passthrough, Upstreams
from .record import ExchangeRecord

if TYPE_CHECKING:
    from .upstream_stream import EventSource

NAME = "approvals"
"""The upstream's name in the record of such a turn, because no upstream was called."""


class ResumedPool:
    """The pool for such an exchange. The first model turn is the known one; later turns of the tool loop go to upstreams."""

    def __init__(self, pool: Upstreams, response: Response) -> None:
        self._pool = pool
        self._response: Response | None = response
        self.clock = pool.clock

    def services(self, context: ExchangeContext) -> Any:  # Any: as ``Upstreams`` has it
        return self._pool.services(context)

    def log(self, line: Mapping[str, JsonValue]) -> None:
        self._pool.log(line)

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough
    ) -> EventSource:
        response, self._response = self._response, None
        if response is None:
            return await self._pool.ask(request, record, conversation, passthrough)
        response.model = request.model
        return CachedAnswer(response, NAME)
