"""The interface between the engine and tracing: a trace of each attempt at an upstream and of each tool call.

The engine works without it. Where a pool has a tracer, every attempt carries the trace context that the tracer gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from ..events import Event
from ..messages import Request
from ..upstream.routes import Candidate

if TYPE_CHECKING:
    from ..tools.questions import RunTool


class AttemptTrace(Protocol):
    """One attempt. ``headers`` are the trace context that the request to the upstream carries."""

    headers: Mapping[str, str]

    def seen(self, events: list[Event]) -> None:
        """The events of one read of the upstream. An end among them ends the attempt."""

    def failed(self, error: BaseException) -> None:
        """The attempt ended before its first event."""

    def close(self) -> None:
        """The engine reads no more. An attempt that has not ended counts as abandoned."""


class EngineTracer(Protocol):
    """Traces what the engine does, as a part of the request that the current task serves. No method raises."""

    def attempt(self, candidate: Candidate, request: Request, *, session: str = "") -> AttemptTrace:
        """An upstream is about to be asked. ``session`` is the id of the stored conversation, if there is one."""

    def tool(self, question: RunTool) -> AbstractContextManager[Mapping[str, str]]:
        """Runs one tool call inside. Yields the trace context for the server that is asked."""
