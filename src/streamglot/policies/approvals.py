"""Decisions of people: who asks waits, who decides finds what is open.

``Approvals`` is the registry of one process. The API, the command line and the page list what is open and decide it by its id; the
policy that asked is resumed. Nothing here knows how people are reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ..errors import LimitExceeded, RequestError, excerpt
from .pieces import Kind

MAX_OPEN: Final = 10_000
"""Questions to people that may be open in one process: more than people can answer, and a bound on what waiting exchanges hold."""


class ApprovalRequest(Struct, frozen=True, omit_defaults=True):
    """What a person is asked. ``id`` is given by the registry. ``seconds`` is the time until the piece is refused."""

    request_id: str
    policy: str
    message: str
    kind: Kind
    tool: str = ""
    call_id: str = ""
    text: str = ""
    model: str = ""
    key: str = ""
    seconds: float = 0.0
    id: str = ""


class Decision(Struct, frozen=True, omit_defaults=True):
    """What a person decided. ``text`` are changed arguments, for an approval. ``message`` is said to the client, for a refusal."""

    approved: bool
    message: str = ""
    text: str | None = None
    by: str = ""


class Approvals:
    """``new_id`` makes the ids of questions. ``asked`` is called with each new question, for those who notify people."""

    def __init__(self, new_id: Callable[[], str], asked: Callable[[ApprovalRequest], None] | None = None) -> None:
        self._new_id = new_id
        self._asked = asked
        self._open: dict[str, tuple[ApprovalRequest, asyncio.Future[Decision]]] = {}

    def open(self) -> list[ApprovalRequest]:
        """What waits for a decision, the oldest first."""
        return [request for request, _ in self._open.values()]

    async def ask(self, request: ApprovalRequest) -> Decision:
        """Waits for a decision. The caller sets the deadline and cancels when it passes."""
        if len(self._open) >= MAX_OPEN:
            raise LimitExceeded(f"{MAX_OPEN} approvals are open already; decide some of them", code="limit_open_approvals")
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        request = ApprovalRequest(**{**fields, "id": self._new_id()})
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._open[request.id] = request, decided
        try:
            if self._asked is not None:
                self._asked(request)
            return await decided
        finally:
            del self._open[request.id]

    def decide(self, id: str, decision: Decision) -> None:
        """Resumes who asked. Must be called in the event loop of ``ask``."""
        entry = self._open.get(id)
        if entry is None or entry[1].done():
            raise RequestError(
                f"there is no open approval {excerpt(id)}: it was decided, or its time has passed", code="not_found", status=404
            )
        entry[1].set_result(decision)
