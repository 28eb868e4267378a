"""What an upstream has to be told of earlier answers of the same conversation, although the client dropped it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..messages import Request
from ..upstream import Upstream


class ConversationState(Protocol):
    """``received`` gets the bytes that an upstream sends, where they are recorded."""

    @property
    def received(self) -> Callable[[bytes], None] | None: ...

    def prepare(self, request: Request, upstream: Upstream) -> Request:
        """The request for this upstream, with the provider's own state (signatures, encrypted reasoning) put back."""

    def state(self, upstream: Upstream) -> Mapping[str, Any]:
        """What this upstream told about the conversation that it keeps itself."""
