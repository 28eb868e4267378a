"""The state of a conversation that an upstream needs back, although the client dropped it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from ..messages import Request
from ..upstream import Upstream


class SentRequest(Struct):
    """One request as an upstream gets it, for the recording, without secrets.

    ``inband`` is the notation that is looked for in the answer's text.
    """

    upstream: str
    dialect: str
    model: str
    url: str
    headers: dict[str, str]
    body: msgspec.Raw
    inband: str = ""
    dropped: list[str] = []


class ConversationState(Protocol):
    """``sent`` gets the requests to upstreams and ``received`` the bytes of their answers, if these are recorded."""

    @property
    def sent(self) -> Callable[[SentRequest], None] | None: ...

    @property
    def received(self) -> Callable[[bytes], None] | None: ...

    def prepare(self, request: Request, upstream: Upstream) -> Request:
        """The request for this upstream, with the provider's own state (signatures, encrypted reasoning) restored."""
