"""One model turn: an upstream's bytes to events. Nothing here waits; who reads the bytes passes them on.

bytes -> secrets out -> reader, in-band parser, call ids -> context of errors -> events
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from ..errors import StreamglotError
from ..events import Event, StreamEnd, StreamError
from ..upstream.escaped_secrets import BACKSLASH, ESCAPE
from ..upstream.frame_mask import mask_for
from ..upstream.routes import Candidate
from ..upstream.secrets import LINE_END, hide, hide_in
from .pipeline import Pipeline
from .trace import AttemptTrace

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


class UpstreamAnswer:
    """The answer of one candidate. ``headers`` are those of its response. ``received`` gets its bytes, without secrets, if they are
    recorded."""

    def __init__(
        self,
        candidate: Candidate,
        headers: Mapping[str, str],
        pipeline: Pipeline,
        errors: ErrorContext,
        received: Callable[[bytes], None] | None = None,
        trace: AttemptTrace | None = None,
    ) -> None:
        self.candidate = candidate
        self.dropped = pipeline.dropped
        self.over = False
        self._pipeline = pipeline
        self._errors = errors
        self._received = received
        self._mask = mask_for(errors.secrets(), headers) if received is not None else None
        self._live = mask_for(secrets, headers) if (secrets := candidate.upstream.live_secrets()) else None
        self._trace = trace

    def feed(self, chunk: bytes) -> list[Event]:
        """The events of one network read."""
        live = self._live
        if live is not None and (
            live.mark in chunk or (BACKSLASH in chunk and ESCAPE in chunk) or chunk[-1] != LINE_END or live.held
        ):
            chunk = live.feed(chunk)
            if not chunk:  # all of it may be the beginning of a secret
                return []
        if self._received is not None:
            self._record_bytes(chunk)
        events = self._pipeline.feed(chunk)
        if events and type(events[-1]) in ENDS:
            self._ended(events)
        if self._trace is not None:
            self._trace.seen(events)
        return events

    def close(self) -> list[Event]:
        """The last events, at the end of the bytes."""
        self.over = True
        events = self._closed()
        self._ended(events)
        return self._traced(events)

    def stop(self) -> list[Event]:
        """Ends the turn as cancelled. Returns the events that close what is open."""
        self.over = True
        if self._received is not None:
            self._record_bytes()
        return self._traced(self._pipeline.stop())

    def broken(self, error: StreamglotError) -> list[Event]:
        """Ends the turn. The reader decides what an end at this place means; if it is an error, ``error`` replaces the reader's.

        The message names the upstream if the error is the upstream's.
        """
        self.over = True
        events = self._closed()
        if self._received is not None:
            self._record_bytes()
        if events and type(events[-1]) is StreamError:
            event = error.as_event()
            events[-1] = self._errors.event(event) if error.origin == "upstream" else event
        return self._traced(events)

    def release(self) -> None:
        """Ends the trace: no more is read."""
        if self._trace is not None:
            self._trace.close()

    def note_unread(self) -> None:
        """Adds what the reader skipped to the names of what is dropped, which the log and the headers have."""
        self.dropped += [name for name in self._pipeline.unread() if name not in self.dropped]

    def _ended(self, events: list[Event]) -> None:
        """Completes an error, and the recorded bytes."""
        last = events[-1] if events else None
        if type(last) is StreamError:
            self.over = True
            events[-1] = self._errors.event(last)
        elif type(last) is StreamEnd:
            self.note_unread()
        if self._received is not None:
            self._record_bytes()

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

    def _traced(self, events: list[Event]) -> list[Event]:
        if self._trace is not None:
            self._trace.seen(events)
        return events


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
        """The error with its context and without secrets."""
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
        """The secrets that must be removed from what this upstream sends."""
        return (self._key, *self._candidate.upstream.secrets())
