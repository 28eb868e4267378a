"""An upstream's answer as events, one list for each network read. Errors name the upstream and the next step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import structs

from ..errors import StreamglotError, UpstreamError, UpstreamRefused, UpstreamTruncated
from ..events import Event, Extra, KeepAlive, StreamEnd, StreamError, StreamStart, Usage
from ..upstream import Answer, Upstream
from ..upstream.routes import Candidate
from ..upstream.secrets import hide, hide_in
from .pipeline import Pipeline

PRELUDE: Final = (StreamStart, KeepAlive, Usage, Extra)
"""Events that say nothing yet: while only these have come, another upstream can still be asked."""
ENDS: Final = (StreamEnd, StreamError)
NEXT_STEP: Final = {
    400: "change the request",
    401: "check the key of this upstream",
    403: "check what the key of this upstream may do",
    404: "check the model's name and the upstream's base_url",
    408: "try again",
    413: "send less",
    422: "change the request",
    429: "wait, or add another upstream as a fallback",
    504: "try again, or give the upstream more time in its timeouts",
}
SERVER_STEP: Final = "try again, or add another upstream as a fallback"


class Events(Protocol):
    """What an exchange reads from: an upstream, or an answer that was kept. ``first`` holds what came up to the first event
    that says something; ``upstream`` is who said it."""

    name: str
    model: str
    upstream: Upstream | None
    first: list[Event]
    dropped: list[str]

    async def read(self) -> list[Event] | None: ...
    def interrupt(self, error: StreamglotError) -> None: ...
    def stop(self) -> list[Event]: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Source:
    """The answer of one candidate. Who holds it gives its place back by ``close``."""

    def __init__(
        self,
        candidate: Candidate,
        answer: Answer,
        pipeline: Pipeline,
        told: Told,
        dropped: list[str],
        give_back: Callable[[], None],
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        self.upstream: Upstream | None = candidate.upstream
        self.name = candidate.upstream.name
        self.model = candidate.model
        self.dropped = dropped
        self.first: list[Event] = []
        self._answer = answer
        self._pipeline = pipeline
        self._told = told
        self._give_back: Callable[[], None] | None = give_back
        self._heard = heard
        self._interruption: StreamglotError | None = None
        self._over = False

    async def read(self) -> list[Event] | None:
        """The events of the next read, None when there are no more."""
        if self._over:
            return None
        try:
            chunk = await self._answer.read()
        except UpstreamError as error:
            return self._broken(error)
        except asyncio.CancelledError:
            if self._interruption is None:
                raise
            _uncancel()
            return self._broken(self._interruption)
        if chunk:
            if self._heard is not None:
                self._heard(chunk)
            events = self._pipeline.feed(chunk)
        else:
            self._over = True
            events = self._pipeline.close()
        if events and type(events[-1]) is StreamError:
            self._over = True
            events[-1] = self._told.event(events[-1])
        return events

    def interrupt(self, error: StreamglotError) -> None:
        """What a cancelled read means: the reader is asked what it makes of an end here, and else it is this error."""
        self._interruption = error

    def stop(self) -> list[Event]:
        """The end of it as somebody wished: what is open is closed."""
        self._over = True
        return self._pipeline.stop()

    def _broken(self, error: StreamglotError) -> list[Event]:
        """No more will come: what the reader makes of the end, in words that say what happened."""
        self._over = True
        events = self._pipeline.close()
        if events and type(events[-1]) is StreamError:
            events[-1] = self._told.event(error.as_event())
        return events

    async def prime(self) -> None:
        """Reads up to the first event that says something. An error there is raised: nothing has left yet."""
        while (events := await self.read()) is not None:
            self.first += events
            for event in events:
                if isinstance(event, StreamError):
                    raise _raised(event)
                if not isinstance(event, PRELUDE):
                    return

    async def drain(self) -> None:
        await self._answer.drain()

    def close(self) -> None:
        self._answer.close()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


class Told:
    """How a fault of one candidate is told: who, which model, which status, what next, which request. Never a secret."""

    def __init__(self, candidate: Candidate, request_id: str, key: str = "") -> None:
        """``key`` is the client's own, where it was sent."""
        self._candidate = candidate
        self._request_id = request_id
        self._key = key

    def message(self, message: str, status: int) -> str:
        upstream, model = self._candidate.upstream, self._candidate.model
        step = NEXT_STEP.get(status, SERVER_STEP if status >= 500 else "change the request")
        said = hide(message, self._secrets())
        return f"upstream {upstream.name!r}, model {model!r}, status {status}: {said} ({step}; request id {self._request_id})"

    def event(self, event: Any) -> StreamError:
        told: StreamError = structs.replace(
            event, message=self.message(event.message, event.status), detail=hide_in(event.detail, self._secrets())
        )
        return told

    def error(self, error: StreamglotError) -> StreamglotError:
        """An error that the upstream did not cause is not told as its answer: nobody asked it."""
        if error.origin == "upstream":
            error.message = self.message(error.message, error.status)
        else:
            upstream, model = self._candidate.upstream, self._candidate.model
            said = hide(error.message, self._secrets())
            error.message = f"{said} (chosen upstream {upstream.name!r}, model {model!r}; request id {self._request_id})"
        error.detail = hide_in(error.detail, self._secrets())
        return error

    def _secrets(self) -> tuple[str, ...]:
        return (self._key, *self._candidate.upstream.secrets())


def _raised(event: StreamError) -> UpstreamError:
    """The event as the error that it was, its words told already."""
    kind = UpstreamTruncated if event.code.startswith(("upstream_truncated", "upstream_empty")) else UpstreamRefused
    error = kind(event.message, code=event.code, status=event.status, retryable=event.retryable, detail=event.detail)
    error.origin = event.origin
    return error


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
