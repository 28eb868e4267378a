"""One model turn: an upstream's bytes to events, one list for each network read.

bytes -> secrets out -> reader, in-band parser, call ids -> context of errors -> events

``UpstreamAnswer`` does that and never waits. ``UpstreamStream`` is what waits for the bytes. ``Pipeline`` is the reader with the
in-band parser and the custom tools that the request needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import structs

from ..dialects import dialect
from ..dialects.common import upstream_errors as faults
from ..dialects.common.custom_tools import CustomCalls, as_function, with_functions_only
from ..dialects.common.lenient import clean, loads
from ..dialects.common.state import is_native
from ..errors import StreamglotError, Unsupported, UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamTruncated
from ..events import Event, Extra, KeepAlive, StreamEnd, StreamError, StreamStart, TextDelta, Usage
from ..inband import FORMATS, Format, InBand, OwnMarkers, as_prompt, find_format, format_for_model, with_markers
from ..inband.box import Begins
from ..inband.leaks import Leaks
from ..json_types import JsonObject, JsonValue
from ..messages import Request
from ..stages import PerChoice, UniqueCallIds
from ..upstream import Upstream, UpstreamResponse
from ..upstream.providers import abilities_of, is_at_provider, maker_of
from ..upstream.rate_limits import retry_seconds
from ..upstream.routing.routes import Candidate
from ..upstream.secrets import BACKSLASH, ESCAPE, LINE_END, hide, hide_in, mask_for, shown_url
from .kept_conversations import KeptState
from .observer import AttemptTrace

MODELS = 1024
"""Models whose format is cached, because finding it compares the name with every pattern."""

NO_MARKERS = OwnMarkers()
TAGS_ALONE = "think_generic"
"""The notation for an unknown model whose client enables thinking: reasoning between tags, and no calls."""
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


@lru_cache(MODELS)
def format_of(name: str, model: str, own: OwnMarkers = NO_MARKERS, tools: bool = False) -> Format | None:
    """The notation to look for in a model's text; None if there is none. For an unknown model that has ``tools`` these are the
    common ones."""
    found = find_format(name, model)
    if tools and name == "auto" and format_for_model(model) is None:
        found = FORMATS["any"]
    return with_markers(None if found is FORMATS["none"] else found, own)


def notation_of(upstream: Upstream, model: str, tools: bool = False) -> Format | None:
    """The notation to look for in the text of an upstream's model: the configured one, else that of its dialect, else that of the
    model."""
    own = dialect(upstream.dialect).calls_in_text if upstream.inband == "auto" else ""
    return format_of(own or upstream.inband, model, upstream.markers, tools)


def gets_tools_as_text(upstream: Upstream) -> bool:
    """Whether tools are described in the prompt for this upstream."""
    return upstream.tools == "prompt" or bool(dialect(upstream.dialect).calls_in_text)


def thinking_of(request: Request, dialect: str) -> bool | None:
    """The value of the template's thinking switch, if the request sets it and it reaches the upstream, or False if the request
    wants no thinking.

    A request for thinking alone returns None: a model that cannot think gets the same request, and its whole answer would be read
    as thinking.
    """
    template = request.extra.get("chat_template_kwargs") if request.dialect == dialect else None
    for word in ("enable_thinking", "thinking"):
        if isinstance(template, dict) and isinstance(template.get(word), bool):
            return bool(template[word])
    if _thinking_flag(request, dialect) is True:
        return True
    reasoning = request.reasoning
    off = reasoning is not None and (reasoning.enabled is False or reasoning.effort == "none" or reasoning.budget_tokens == 0)
    return False if off else None


def _thinking_flag(request: Request, dialect: str) -> JsonValue:
    """The client's ``thinking`` if the upstream gets it unchanged, else None."""
    own = request.reasoning.native if request.reasoning is not None else None
    return own.data.get("thinking") if own is not None and is_native(own, dialect) else None


def _enables_thinking(flag: JsonValue) -> bool:
    """Whether the client sends ``thinking: true``, or the object that says the same."""
    return flag is True or (isinstance(flag, dict) and flag.get("type") == "enabled")


class ThoughtMemory:
    """For each upstream and model, whether its last answer closed a thought that it had not opened.

    A notation may say that answers begin inside the reasoning, and the configuration may name it for a server that separates
    reasoning itself, or for a model that does not think. The last answer shows it.
    """

    def __init__(self) -> None:
        self._closed: dict[tuple[str, str], bool] = {}

    def begins(self, upstream: str, model: str) -> Begins:
        """How the next answer begins."""
        closed = self._closed.get((upstream, model))
        return "unknown" if closed is None else "reasoning" if closed else "text"

    def ended(self, upstream: str, model: str, closed: bool) -> None:
        self._closed.pop((upstream, model), None)
        self._closed[upstream, model] = closed
        if len(self._closed) > MODELS:
            del self._closed[next(iter(self._closed))]


class Pipeline:
    """The reader, the in-band parser, and unique call ids. ``call_prefix`` is unique to this exchange.

    ``notation`` is the name of the notation that is looked for in the text. ``thoughts`` is what earlier answers have shown; a
    whole answer needs none. ``dropped`` gets what is removed from the answer.

    With ``inband = "auto"`` a server that reports that it has parsed its text is trusted: reasoning then starts only at its
    opening tag, and calls are looked for only if tools were declared. A format that the configuration names is always applied.
    """

    def __init__(
        self, upstream: Upstream, model: str, request: Request, call_prefix: str = "call", thoughts: ThoughtMemory | None = None
    ) -> None:
        self.dropped: list[str] = []
        wire = dialect(upstream.dialect)
        self._reader = wire.reader(provider=maker_of(upstream), call_prefix=call_prefix)
        self._reader.comments = False  # no policy sees a comment, and an upstream may repeat its key in one
        self._boxes: list[PerChoice] = []
        self._leaks: Leaks | None = None
        """The only box, if it is one that hardly ever changes anything."""
        emulated = emulated_tools(upstream, request)
        unparsed = bool(request.tools) and not is_at_provider(upstream.base_url)
        found, guessed = notation_of(upstream, model, unparsed), upstream.inband == "auto"
        if found is None and guessed and _enables_thinking(_thinking_flag(request, upstream.dialect)):
            found = format_of(TAGS_ALONE, "")
        self.notation = found.name if found is not None else ""
        calls = bool(request.tools) or not guessed
        ids = UniqueCallIds(call_prefix)
        ids.request(request)
        # Any: a stage may put questions among its events, but this one asks none.
        self._stages: list[Callable[[list[Event]], list[Any]]] = [ids.feed] if calls or ids.taken else []
        tokens, tags = found is None and guessed, wire.plain_reasoning and not is_at_provider(upstream.base_url)
        if tokens or tags:
            leaks = Leaks(tokens, tags)
            self._boxes.append(PerChoice(lambda: Leaks(tokens, tags), first=leaks))
            if found is None and not emulated:
                self._leaks = leaks
        if found is not None:
            tools = [as_function(tool) if tool.name in emulated else tool for tool in request.tools]
            thinking = thinking_of(request, upstream.dialect)
            begins: Begins = "unknown"
            if thinking:
                begins = "reasoning"
            elif thoughts is not None and request.stream:
                begins = thoughts.begins(upstream.name, model)

            def ended(closed: bool, late: int) -> None:
                self.dropped += ["late end of the reasoning"] * late
                if thoughts is not None and thinking is None:
                    thoughts.ended(upstream.name, model, closed)

            self._boxes.append(
                PerChoice(
                    lambda: InBand(
                        found,
                        tools=tools or None,
                        starts_in_reasoning=False if guessed else None,
                        thinking=thinking,
                        calls=calls,
                        bad_call=upstream.bad_call or wire.bad_call,
                        call_prefix=call_prefix,
                        leave_out=True,
                        begins=begins,
                        ended=ended,
                    )
                )
            )
        if emulated:
            self._boxes.append(PerChoice(lambda: CustomCalls(emulated)))

    def keep(self, upstream: Upstream, state: JsonObject) -> None:
        """Adds what the request says of a conversation that the upstream keeps to what the answer says of it."""
        self._stages.append(KeptState(upstream.dialect, maker_of(upstream), state).feed)

    def feed(self, chunk: bytes) -> list[Event]:
        events = self._reader.feed(chunk)
        leaks = self._leaks
        if leaks is not None and len(events) == 1:  # nearly all reads
            event = events[0]
            if type(event) is TextDelta and "<" not in event.text and not leaks.held:
                return self._staged(events) if self._stages else events
        for box in self._boxes:
            events = box.feed(events)
        return self._staged(events) if self._stages else events

    def close(self) -> list[Event]:
        return self._ended(self._reader.close())

    def stop(self) -> list[Event]:
        return self._ended(self._reader.stop())

    def _ended(self, events: list[Event]) -> list[Event]:
        for box in self._boxes:
            events = [*box.feed(events), *box.close()]
        return self._staged(events)

    def unread(self) -> list[str]:
        """The names of fields with text that the reader does not know."""
        return [*(self._reader.unread or ())]

    def _staged(self, events: list[Event]) -> list[Event]:
        for feed in self._stages:
            if events:
                events = feed(events)
        return events


def emulated_tools(upstream: Upstream, request: Request) -> frozenset[str]:
    """The custom tools that this upstream gets as functions. An upstream that gets tools as text has no others."""
    if not request.tools or not any(tool.kind == "custom" for tool in request.tools):
        return frozenset()
    abilities = abilities_of(upstream)
    if gets_tools_as_text(upstream):
        abilities = structs.replace(abilities, custom_tools=False)
    return dialect(upstream.dialect).emulated_tools(request, abilities)


def with_tools_as_text(upstream: Upstream, request: Request) -> Request:
    """The request for an upstream whose model has no native tools: they become text, if a notation is known."""
    if not gets_tools_as_text(upstream) or not (request.tools or any(message.role == "tool" for message in request.messages)):
        return request
    found = notation_of(upstream, request.model)
    if found is None:
        raise Unsupported(
            f"upstream {upstream.name!r} gets tools as text, and no notation is known for the model {request.model!r}: "
            "name one as `inband` of this upstream (`streamglot formats` lists them)"
        )
    return as_prompt(with_functions_only(request), found)
