"""An upstream's answer as events, one list for each network read. Errors name the upstream and the next step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from msgspec import structs

from ..dialects import faults
from ..dialects.lenient import clean, loads
from ..errors import StreamglotError, UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamTruncated
from ..events import Event, Extra, KeepAlive, StreamEnd, StreamError, StreamStart, Usage
from ..upstream import Upstream, UpstreamResponse
from ..upstream.escaped_secrets import BACKSLASH, ESCAPE
from ..upstream.frame_mask import mask_for
from ..upstream.rate_limits import retry_seconds
from ..upstream.routes import Candidate
from ..upstream.secrets import LINE_END, SecretMask, hide, hide_in, shown_url
from .pipeline import Pipeline
from .trace import AttemptTrace

PRELUDE: Final = (StreamStart, KeepAlive, Usage, Extra)
"""Events without content. While only these have come, another upstream can still be tried."""
PRELUDE_EVENTS: Final = 1_000
"""Events without content that are held. After more of them the answer counts as begun, and they are sent as they come."""
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
        """Returns the events of the next network read; None when there are no more."""

    def broken(self, error: StreamglotError) -> list[Event]:
        """Ends the turn with this error. Returns the events that close what is open."""

    def stop(self) -> list[Event]:
        """Ends the turn as cancelled. Returns the events that close what is open."""

    def drain(self) -> Awaitable[None]:
        """Lets the upstream finish its response, so that the connection can be used again."""

    def close(self) -> None:
        """Releases the connection and the concurrency slot."""


class UpstreamStream:
    """The answer of one candidate. The owner must call ``close`` to release its slot."""

    def __init__(
        self,
        candidate: Candidate,
        answer: UpstreamResponse,
        pipeline: Pipeline,
        errors: ErrorContext,
        dropped: list[str],
        give_back: Callable[[], None],
        received: Callable[[bytes], None] | None = None,
        trace: AttemptTrace | None = None,
    ) -> None:
        self.upstream: Upstream | None = candidate.upstream
        self.name = candidate.upstream.name
        self.model = candidate.model
        self.dropped = dropped
        self._primed: list[Event] | None = None
        self._answer = answer
        self._pipeline = pipeline
        self._errors = errors
        self._give_back: Callable[[], None] | None = give_back
        self._received = received
        self._mask = mask_for(errors.secrets(), answer.headers) if received is not None else None
        self._live = mask_for(secrets, answer.headers) if (secrets := candidate.upstream.live_secrets()) else None
        self._trace = trace
        self._over = False

    async def read(self) -> list[Event] | None:
        if self._primed is not None:
            events, self._primed = self._primed, None
            return events
        if self._over:
            return None
        try:
            chunk = await self._answer.read()
            live = self._live
            if (
                live is not None
                and chunk
                and (live.mark in chunk or (BACKSLASH in chunk and ESCAPE in chunk) or chunk[-1] != LINE_END or live.held)
            ):
                chunk = await self._masked(live, chunk)
        except UpstreamError as error:
            return self.broken(error)
        if chunk:
            if self._received is not None:
                self._record_bytes(chunk)
            events = self._pipeline.feed(chunk)
        else:
            self._over = True
            events = self._closed()
        if events:
            last = events[-1]
            if type(last) is StreamError:
                self._over = True
                events[-1] = self._errors.event(last)
            elif type(last) is StreamEnd:
                self._note_unread()
        if self._received is not None and (self._over or (events and type(events[-1]) in ENDS)):
            self._record_bytes()
        if self._trace is not None:
            self._trace.seen(events)
        return events

    def _note_unread(self) -> None:
        """Adds what the reader skipped to the names of what is dropped, which the log and the headers have."""
        self.dropped += [name for name in self._pipeline.unread() if name not in self.dropped]

    async def _masked(self, mask: SecretMask, chunk: bytes) -> bytes:
        """Returns the chunk without the upstream's own secrets. If all of it may be the beginning of one, reads on."""
        while not (data := mask.feed(chunk)) and (chunk := await self._answer.read()):
            pass
        return data

    def _closed(self) -> list[Event]:
        """Closes the pipeline, after the bytes that were held back."""
        held = self._live.close() if self._live is not None else b""
        if not held:
            return self._pipeline.close()
        if self._received is not None:
            self._record_bytes(held)
        return [*self._pipeline.feed(held), *self._pipeline.close()]

    def _record_bytes(self, chunk: bytes = b"") -> None:
        """Passes the bytes to the recorder, without secrets. Without a chunk, passes the bytes that were held back."""
        assert self._mask is not None
        assert self._received is not None
        data = self._mask.feed(chunk) if chunk else self._mask.close()
        if data:
            self._received(data)

    def stop(self) -> list[Event]:
        self._over = True
        if self._received is not None:
            self._record_bytes()
        return [*(self._primed or ()), *self._traced(self._pipeline.stop())]

    def broken(self, error: StreamglotError) -> list[Event]:
        """Ends the turn. The reader decides what an end at this place means; if it is an error, ``error`` replaces the reader's.

        The message names the upstream if the error is the upstream's.
        """
        self._over = True
        events = self._closed()
        if self._received is not None:
            self._record_bytes()
        if events and type(events[-1]) is StreamError:
            event = error.as_event()
            events[-1] = self._errors.event(event) if error.origin == "upstream" else event
        return [*(self._primed or ()), *self._traced(events)]

    def _traced(self, events: list[Event]) -> list[Event]:
        if self._trace is not None:
            self._trace.seen(events)
        return events

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
                    self._note_unread()
                    return
            if len(primed) > PRELUDE_EVENTS:
                break
        self._primed = primed or None

    def drain(self) -> Awaitable[None]:
        return self._answer.drain()

    def close(self) -> None:
        self._answer.close()
        if self._trace is not None:
            self._trace.close()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


class ErrorContext:
    """Adds context to a failure of one candidate: the upstream, the model, the status, the next step, the request id.

    It always removes secrets from everything that the upstream sent. Nothing in the upstream's or the client's text can change
    that.
    """

    def __init__(self, candidate: Candidate, request_id: str, key: str = "") -> None:
        """``key`` is the client's own key, if it was sent to the upstream."""
        self._candidate = candidate
        self._request_id = request_id
        self._key = key

    def message(self, message: str, status: int) -> str:
        upstream, model = self._candidate.upstream, self._candidate.model
        step = NEXT_STEP.get(status, SERVER_STEP if status >= 500 else "change the request")
        cleaned = hide(message, self.secrets())
        return f"upstream {upstream.name!r}, model {model!r}, status {status}: {cleaned} ({step}; request id {self._request_id})"

    def event(self, event: StreamError) -> StreamError:
        """Returns the error with its context and without secrets."""
        return structs.replace(
            event,
            code=hide(event.code, self.secrets()),
            message=self.message(event.message, event.status),
            detail=hide_in(event.detail, self.secrets()),
        )

    def error(self, error: StreamglotError) -> StreamglotError:
        """Adds the context to an exception. An error that came out of the stream already has it."""
        if not error.has_context:
            error.code = hide(error.code, self.secrets())
            if error.origin == "upstream":
                error.message = self.message(error.message, error.status)
            else:  # the upstream was not called, so the error is not its answer
                upstream, model = self._candidate.upstream, self._candidate.model
                message = hide(error.message, self.secrets())
                error.message = f"{message} (chosen upstream {upstream.name!r}, model {model!r}; request id {self._request_id})"
            error.detail = hide_in(error.detail, self.secrets())
            error.has_context = True
        return error

    def secrets(self) -> tuple[str, ...]:
        """Returns the secrets that must be removed from what this upstream sends."""
        return (self._key, *self._candidate.upstream.secrets())


def _raised(event: StreamError) -> UpstreamError:
    """Returns the exception for this error event. Its message already has the context."""
    kind = UpstreamTruncated if event.code.startswith(("upstream_truncated", "upstream_empty")) else UpstreamRefused
    error = kind(event.message, code=event.code, status=event.status, retryable=event.retryable, detail=event.detail)
    error.origin = event.origin
    error.has_context = True
    return error


async def refused(answer: UpstreamResponse) -> UpstreamError:
    """Returns the upstream's error answer as an exception, with its status, message and Retry-After."""
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
