"""An upstream's answer as events, one list for each network read: what waits for the bytes that ``UpstreamAnswer`` reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ..dialects import faults
from ..dialects.lenient import clean, loads
from ..errors import StreamglotError, UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamTruncated
from ..events import Event, Extra, KeepAlive, StreamError, StreamStart, Usage
from ..upstream import Upstream, UpstreamResponse
from ..upstream.rate_limits import retry_seconds
from ..upstream.secrets import shown_url
from .answer import UpstreamAnswer

PRELUDE: Final = (StreamStart, KeepAlive, Usage, Extra)
"""Events without content. While only these have come, another upstream can still be tried."""
PRELUDE_EVENTS: Final = 1_000
"""Events without content that are held. After more of them the answer counts as begun, and they are sent as they come."""
ERROR_BYTES: Final = 2**18
"""Bytes of an error's body that are read."""
LOCATION_CHARS: Final = 200
"""Characters of a redirect's target that an error shows."""


class EventSource(Protocol):
    """One model turn as events: an upstream's answer, or one from the cache. ``upstream`` is None for the latter."""

    name: str
    model: str
    upstream: Upstream | None
    dropped: list[str]

    async def read(self) -> list[Event] | None:
        """The events of the next network read; None when there are no more."""

    def broken(self, error: StreamglotError) -> list[Event]:
        """Ends the turn with this error. Returns the events that close what is open."""

    def stop(self) -> list[Event]:
        """Ends the turn as cancelled. Returns the events that close what is open."""

    def drain(self) -> Awaitable[None]:
        """Lets the upstream finish its response, so that the connection can be used again."""

    def close(self) -> None:
        """Releases the connection and the concurrency slot."""


class UpstreamStream:
    """The answer of one candidate, read from its connection: ``answer`` makes the events. The owner must call ``close`` to release
    its slot."""

    def __init__(self, answer: UpstreamAnswer, response: UpstreamResponse, give_back: Callable[[], None]) -> None:
        self.upstream: Upstream | None = answer.candidate.upstream
        self.name = answer.candidate.upstream.name
        self.model = answer.candidate.model
        self.dropped = answer.dropped
        self._primed: list[Event] | None = None
        self._answer = answer
        self._response = response
        self._give_back: Callable[[], None] | None = give_back

    async def read(self) -> list[Event] | None:
        if self._primed is not None:
            events, self._primed = self._primed, None
            return events
        answer = self._answer
        if answer.over:
            return None
        try:
            chunk = await self._response.read()
        except UpstreamError as error:
            return answer.broken(error)
        return answer.feed(chunk) if chunk else answer.close()

    def stop(self) -> list[Event]:
        return [*(self._primed or ()), *self._answer.stop()]

    def broken(self, error: StreamglotError) -> list[Event]:
        return [*(self._primed or ()), *self._answer.broken(error)]

    async def prime(self) -> None:
        """Reads up to the first meaningful event. Raises an error that comes before it, because nothing has left yet."""
        primed: list[Event] = []
        while (events := await self.read()) is not None:
            primed += [event for event in events if type(event) is not KeepAlive]  # no client waits for these yet
            for event in events:
                if isinstance(event, StreamError):
                    raise _raised(event)
                if not isinstance(event, PRELUDE):
                    self._primed = primed
                    self._answer.note_unread()
                    return
            if len(primed) > PRELUDE_EVENTS:
                break
        self._primed = primed or None

    def drain(self) -> Awaitable[None]:
        return self._response.drain()

    def close(self) -> None:
        self._response.close()
        self._answer.release()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


def _raised(event: StreamError) -> UpstreamError:
    """The exception for this error event. Its message already has the context."""
    kind = UpstreamTruncated if event.code.startswith(("upstream_truncated", "upstream_empty")) else UpstreamRefused
    error = kind(event.message, code=event.code, status=event.status, retryable=event.retryable, detail=event.detail)
    error.origin = event.origin
    error.has_context = True
    return error


async def refused(answer: UpstreamResponse) -> UpstreamError:
    """The upstream's error answer as an exception, with its status, message and Retry-After."""
    if answer.status < 400:
        place = shown_url(answer.headers.get("location", "nowhere"))[:LOCATION_CHARS]
        return UpstreamProtocolError(f"it answers {answer.status} and redirects to {place}; correct its base_url")
    pieces, size = [], 0
    while size < ERROR_BYTES and (piece := await answer.read()):
        pieces.append(piece)
        size += len(piece)
    body = b"".join(pieces)
    try:
        value, lone_surrogates = loads(body)
        explanation: object = clean(value) if lone_surrogates else value
    except UpstreamProtocolError:
        explanation = body.decode("utf-8", "replace").strip()[:300]
    status = answer.status if answer.status < 600 else 502  # clients and servers do not handle larger statuses
    error = faults.refusal(explanation or f"status {answer.status} and no explanation", status)
    error.retry_after = retry_seconds(answer.headers)
    return error
