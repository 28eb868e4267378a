"""Calls upstreams until one answers: retries with pauses, then the next candidate, all before the first event has left."""

from __future__ import annotations

import asyncio
import random
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec

from ..dialects import dialect
from ..dialects.common.lenient import loads
from ..dialects.interface import Setup
from ..errors import (
    ConfigError,
    RequestError,
    StreamglotError,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    excerpt,
)
from ..json_types import JsonObject
from ..messages import Message, Request, TextPart
from ..tasks import Deadline
from ..tools.history import with_own_calls
from ..upstream import Upstream, UpstreamResponse
from ..upstream.http import read_whole
from ..upstream.http.pool import ConnectionPool
from ..upstream.providers import abilities_of, maker_of
from ..upstream.rate_limits import limit_headers, sensible
from ..upstream.recorded import SCHEME, open_replay
from ..upstream.routing.health import UNREACHABLE, Breaker, Breakers
from ..upstream.routing.routes import Candidate
from ..upstream.routing.slots import ConcurrencyLimit
from ..upstream.secrets import HIDDEN, SecretMask, hide, shown_url
from .answer import (
    ERROR_BYTES,
    ErrorContext,
    Pipeline,
    ThoughtMemory,
    UpstreamAnswer,
    UpstreamStream,
    refused,
    with_tools_as_text,
)
from .ask import Passthrough, call_prefix
from .conversation import ConversationState, SentRequest
from .kept_conversations import KeptConversations
from .observer import AttemptTrace, EngineTracer
from .stats import ExchangeRecord, UpstreamWait

FALL_BACK_ON: Final = frozenset((401, 402, 403, 404, 408, 409, 429))
"""Statuses after which another upstream is tried, in addition to all server errors."""
LONGEST_PAUSE: Final = 8.0
"""Seconds. Pauses grow up to this. Where another candidate follows, no more than this is waited for one: it can answer at once."""
CAUSE_CHARS: Final = 300
"""Characters of the last failure in the error of an open circuit breaker: what an upstream says first."""
SHOWN_HEADERS: Final = ("accept", "content-type", "x-request-id", "-version", "-beta")
"""Suffixes of header names whose values contain no secret and are recorded. Of other headers only the names are recorded."""
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""The value of a header, as defined by RFC 9110."""


class Traffic(Protocol):
    """Decides when background calls are sent, and gets the statuses of their answers."""

    async def take(self, upstream: Upstream, limit: ConcurrencyLimit) -> None:
        """Waits for a slot of this limit, and takes it."""

    def answered(self, upstream: Upstream, status: int, headers: Mapping[str, str]) -> None:
        """Called when an upstream has answered with this status."""


class UpstreamServices(Protocol):
    """What the attempts of all requests share."""

    connections: ConnectionPool
    kept: KeptConversations
    thoughts: ThoughtMemory
    tracer: EngineTracer | None
    whole_post: WholePost | None

    def clock(self) -> float: ...
    def new_id(self) -> str: ...
    def within(self, seconds: float) -> Deadline: ...
    def limit(self, upstream: Upstream) -> ConcurrencyLimit: ...
    def breakers(self, upstream: Upstream) -> Breakers: ...


class UpstreamRequest:
    """One request to an upstream.

    ``passthrough`` is what the client sends for the upstream. ``traffic`` is given for background calls, which wait behind live
    requests.
    """

    def __init__(
        self,
        pool: UpstreamServices,
        request: Request,
        record: ExchangeRecord,
        conversation: ConversationState | None,
        passthrough: Passthrough,
        traffic: Traffic | None = None,
    ) -> None:
        self._traffic = traffic
        self._pool = pool
        self._request = with_own_calls(request)
        self._record = record
        self._conversation = conversation
        self._passthrough = passthrough
        self._found: dict[str, list[Message]] = {}
        self._made: dict[str, JsonObject] = {}

    async def open(self, candidates: list[Candidate]) -> UpstreamStream:
        """The stream of the first candidate that answers.

        Retries a failed candidate after a pause, then tries the next. If all fail, raises the error of the first that was asked.
        """
        failure: StreamglotError | None = None
        blocked: StreamglotError | None = None
        for place, candidate in enumerate(candidates, 1):
            try:
                return await self._attempts(candidate, is_last=place == len(candidates))
            except _CircuitOpen as skipped:
                blocked = blocked or skipped.error
            except StreamglotError as error:
                failure = failure or error
                if error.status not in FALL_BACK_ON and error.status < 500 and not isinstance(error, Unsupported):
                    break
        failure = failure or blocked
        assert failure is not None
        raise failure

    async def _attempts(self, candidate: Candidate, *, is_last: bool) -> UpstreamStream:
        pool, upstream, model = self._pool, candidate.upstream, candidate.model
        breakers = pool.breakers(upstream)
        blocking = breakers.blocking(model, pool.clock())
        if blocking is not None:
            raise _CircuitOpen(circuit_open(upstream, model, blocking, pool.clock()))
        attempts = max(1, upstream.attempts)
        left = upstream.retry_seconds if is_last else min(upstream.retry_seconds, LONGEST_PAUSE)
        failure: StreamglotError | None = None
        try:
            for attempt in range(1, attempts + 1):
                if failure is not None:
                    pause = _pause(attempt - 1, upstream.pause, failure)
                    if not failure.retryable or isinstance(failure, UpstreamTimeout) or pause > left:
                        break
                    left -= pause
                    await self._wait(pause, failure, attempt, attempts)
                    if breakers.is_open(model, pool.clock()):
                        break
                self._record.attempts += 1
                self._record.upstream, self._record.upstream_dialect = upstream.name, upstream.dialect
                since = pool.clock()
                try:
                    source = await self._ask(candidate)
                except StreamglotError as error:
                    failure = error
                    self._record.attempt_failed(error, model, since, pool.clock())
                else:
                    breakers.succeeded(model, pool.clock())
                    return source
        except BaseException:
            breakers.released(model)
            raise
        assert failure is not None
        if failure.origin != "upstream":
            breakers.released(model)
        elif failure.status >= 500:
            breakers.failed(model, pool.clock(), failure)
        else:
            breakers.succeeded(model, pool.clock())
        raise failure

    async def _wait(self, seconds: float, failure: StreamglotError, attempt: int, attempts: int) -> None:
        """Waits before the next attempt. The record says so meanwhile."""
        record, since = self._record, self._pool.clock()
        by_upstream = retry_after_of(failure) is not None
        record.set_wait(UpstreamWait(record.upstream, seconds, attempt, attempts, failure.status, by_upstream))
        try:
            await asyncio.sleep(seconds)
        finally:
            record.set_wait(None)
            if by_upstream:
                record.waited("upstream", record.upstream, since, self._pool.clock())

    async def _ask(self, candidate: Candidate) -> UpstreamStream:
        """Makes one attempt and waits for the first meaningful event."""
        upstream = candidate.upstream
        key = self._passthrough.key if upstream.pass_key else upstream.key
        errors = ErrorContext(candidate, self._record.request_id, key)
        limit = self._pool.limit(upstream)
        if self._traffic is not None:
            await self._traffic.take(upstream, limit)
        elif not limit.take_now():
            await limit.take()
        trace = self._start_trace(candidate)
        try:
            with self._pool.within(upstream.timeouts.first_byte):
                response, pipeline = await self._post(candidate, key, trace)
                received = self._conversation.received if self._conversation is not None else None
                answer = UpstreamAnswer(candidate, response.headers, pipeline, errors, received, trace)
                source = UpstreamStream(answer, response, limit.give_back)
                try:
                    if not 200 <= response.status < 300:
                        raise await refused(response)
                    await source.prime()
                except BaseException:
                    response.close()
                    raise
            return source
        except BaseException as error:
            limit.give_back()
            failure = error
            if isinstance(error, TimeoutError):
                seconds = f"{upstream.timeouts.first_byte:g} s (timeouts.first_byte)"
                failure = errors.error(UpstreamTimeout(f"it did not begin its answer within {seconds}"))
            elif isinstance(error, StreamglotError):
                failure = errors.error(error)
            if trace is not None:
                trace.failed(failure)
            if failure is error and not isinstance(error, StreamglotError):
                raise
            raise failure from None

    def _start_trace(self, candidate: Candidate) -> AttemptTrace | None:
        tracer = self._pool.tracer
        if tracer is None:
            return None
        return tracer.attempt(candidate, self._for(candidate), session=self._record.session)

    def _for(self, candidate: Candidate) -> Request:
        """The request in the form that this candidate gets."""
        request, upstream = self._request, candidate.upstream
        streams = request.stream if upstream.stream == "same" else upstream.stream == "always"
        return msgspec.structs.replace(request, model=candidate.model, stream=streams)

    async def _post(self, candidate: Candidate, key: str, trace: AttemptTrace | None) -> tuple[UpstreamResponse, Pipeline]:
        upstream, request = candidate.upstream, self._request
        outgoing = self._for(candidate)
        options = upstream.options
        if self._conversation is not None:
            outgoing = self._conversation.prepare(outgoing, upstream)
        pipeline = Pipeline(upstream, candidate.model, outgoing, call_prefix(self._pool.new_id()), self._pool.thoughts)
        if upstream.base_url.startswith(SCHEME) or not upstream.base_url:
            last_text = outgoing.messages[-1].text if outgoing.messages else ""
            if self._conversation is not None and self._conversation.sent is not None:
                place_of_file = upstream.base_url or f"{SCHEME}scripted"
                self._conversation.sent(sent_request(candidate, place_of_file, {}, b"null", [], (), pipeline.notation))
            return open_replay(upstream, candidate.model, last_text), pipeline
        wire = dialect(upstream.dialect)
        if wire.keeps_conversation:
            outgoing = self._continued(outgoing, upstream)
        as_text = with_tools_as_text(upstream, outgoing)
        if wire.keeps_conversation:
            options = await self._continue(candidate, as_text, key)
        try:
            built = wire.build_request(as_text, abilities=abilities_of(upstream), provider=maker_of(upstream), **options)
            body = msgspec.json.encode(built.body)
        except RecursionError:
            raise RequestError("the request is nested too deeply; send arguments and schemas with fewer levels") from None
        if built.state:
            pipeline.keep(upstream, built.state)
        place = wire.endpoint(upstream.base_url, as_text, key=key, **options)
        passed = self._passthrough.headers if upstream.dialect == request.dialect else {}
        context = self._passthrough.trace if trace is None else trace.headers
        if passed or context or self._passthrough.key:
            check_headers({**passed, **context, "authorization": self._passthrough.key})
        headers = {
            "content-type": "application/json",
            "x-request-id": self._record.request_id,
            **context,
            **passed,
            **place.headers,
            **upstream.headers,
        }
        if self._conversation is not None and self._conversation.sent is not None:
            secrets = ErrorContext(candidate, self._record.request_id, key).secrets()
            notation = pipeline.notation
            self._conversation.sent(sent_request(candidate, place.url, headers, body, built.dropped, secrets, notation))
        whole_post = self._pool.whole_post
        if whole_post is not None and not outgoing.stream and whole_post.merges(upstream):
            answer = await whole_post(upstream, place.url, headers, built.body, self._record.key or self._passthrough.key)
        else:
            answer = await self._pool.connections.post(upstream, place.url, headers, body)
        if self._traffic is not None:
            self._traffic.answered(upstream, answer.status, answer.headers)
        told = limit_headers(answer.headers)
        if told:
            secrets = ErrorContext(candidate, self._record.request_id, key).secrets()
            told = {name: hide(value, secrets) for name, value in told.items()}
        self._record.limits = told
        pipeline.dropped = built.dropped
        return answer, pipeline

    # --- upstreams that keep the conversation

    def _continued(self, request: Request, upstream: Upstream) -> Request:
        """The request with the echo of the answer that it continues, from the memory of this process if the request has none.
        Every attempt continues the same answer."""
        caller = self._record.key or self._passthrough.key
        self._record.remember = partial(self._pool.kept.remember_answer, caller)
        found = self._found.get(upstream.name)
        if found is None:
            found = self._found[upstream.name] = self._pool.kept.restore(request, caller, maker_of(upstream)).messages
        return msgspec.structs.replace(request, messages=found)

    async def _continue(self, candidate: Candidate, request: Request, key: str) -> JsonObject:
        """The options that continue the conversation. What the request needs first is made once, not for each attempt."""
        upstream = candidate.upstream
        wire = dialect(upstream.dialect)
        mine = wire.continuation(request, maker_of(upstream), uuid.uuid4().hex, int(time.time()))
        options = {**upstream.options, **mine}
        setup = wire.setup(upstream.base_url, request, key=key, **options)
        if setup is None:
            return options
        made = self._made.get(upstream.name)
        if made is None:
            made = self._made[upstream.name] = await self._set_up(upstream, setup)
        return {**options, **made}

    async def _set_up(self, upstream: Upstream, setup: Setup) -> JsonObject:
        """Asks the upstream for what the request needs, with the same headers, and returns the options that name it."""
        headers = {
            "content-type": "application/json",
            "x-request-id": self._record.request_id,
            **setup.endpoint.headers,
            **upstream.headers,
        }
        body = msgspec.json.encode(setup.body)
        answer = await self._pool.connections.post(upstream, setup.endpoint.url, headers, body)
        try:
            if not 200 <= answer.status < 300:
                raise await refused(answer)
            data = await read_whole(answer, f"the answer to the request for {setup.what}", ERROR_BYTES, "check the base_url")
            try:
                value, _ = loads(data)
            except UpstreamProtocolError:
                raise UpstreamProtocolError(f"it answered {excerpt(data)}, which is not JSON; check the base_url") from None
            made = setup.read(value)
            await answer.drain()
        except UpstreamError as error:
            error.message = f"it was asked for {setup.what} first: {error.message}"
            raise
        finally:
            answer.close()
        return made


def check_options(upstream: Upstream) -> None:
    """Raises a ConfigError if the dialect of an upstream cannot use its ``options``. Builds a small request to find out."""
    if not upstream.options or not upstream.base_url or upstream.base_url.startswith(SCHEME):
        return
    wire, request = dialect(upstream.dialect), Request(model="model", messages=[Message("user", [TextPart("Hello")])])
    try:
        wire.build_request(request, abilities=abilities_of(upstream), provider=maker_of(upstream), **upstream.options)
        wire.endpoint(upstream.base_url, request, **upstream.options)
    except TypeError as error:
        name = next((name for name in upstream.options if f"'{name}'" in str(error)), "")
        rule = f"the dialect {upstream.dialect!r} has no option {name!r}" if name else f"a value has the wrong type: {error}"
        raise ConfigError(f"upstreams.{upstream.name}.options: {rule}; remove it or correct it") from None
    except StreamglotError:
        pass  # the fault is in the small request, not in the options


class WholePost(Protocol):
    """Sends non-streamed requests, and may merge several into one. ``owner`` names the key whose requests may be merged."""

    def merges(self, upstream: Upstream) -> bool: ...
    async def __call__(
        self, upstream: Upstream, url: str, headers: Mapping[str, str], body: JsonObject, owner: str
    ) -> UpstreamResponse: ...


def sent_request(
    candidate: Candidate,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    dropped: list[str],
    secrets: Iterable[str],
    notation: str,
) -> SentRequest:
    """The request as it may be recorded: without header values that may be secret, and without known secrets."""
    upstream, mask = candidate.upstream, SecretMask(secrets)
    shown = {name: value if name.lower().endswith(SHOWN_HEADERS) else HIDDEN for name, value in headers.items()}
    return SentRequest(
        upstream=upstream.name,
        dialect=upstream.dialect,
        model=candidate.model,
        url=shown_url(url),
        headers=shown,
        body=msgspec.Raw(mask.feed(body) + mask.close()),
        inband=notation,
        dropped=dropped,
    )


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuses client headers that no header may contain: a line end there would begin another header."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()) and not _HEADER_VALUE.fullmatch(value):
            raise RequestError(
                f"the header {name} has a control character or a character beyond Latin-1, and cannot be forwarded; correct it",
                code="invalid_header",
            )


def circuit_open(upstream: Upstream, model: str, breaker: Breaker, now: float) -> StreamglotError:
    """The error for a request that this open circuit breaker blocks. It names the last failure."""
    wait, cause = breaker.wait(now), breaker.cause
    unreachable = cause is not None and cause.code == UNREACHABLE
    subject = f"upstream {upstream.name!r}" if unreachable else f"the model {model!r} of upstream {upstream.name!r}"
    last = f" The last failure: {cause.message[:CAUSE_CHARS]}" if cause is not None else ""
    return UpstreamError(
        f"{subject} failed {upstream.breaker.failures} times in a row and gets no calls for {wait:.0f} s (its circuit breaker is "
        f"open); try again then, or add another upstream as a fallback.{last}",
        code="circuit_open",
        status=503,
        detail={"retry_after": wait, **({"cause": cause.code} if cause is not None else {})},
    )


class _CircuitOpen(Exception):
    """The upstream was not called. Another candidate's failure explains the outcome better."""

    def __init__(self, error: StreamglotError) -> None:
        self.error = error


def retry_after_of(error: StreamglotError) -> float | None:
    """The time to wait, if the error gives one."""
    seconds = getattr(error, "retry_after", None)
    if seconds is None and error.detail is not None:
        seconds = error.detail.get("retry_after")
    return sensible(seconds) if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) else None


def _pause(attempt: int, first: float, failure: StreamglotError) -> float:
    """The pause before the next attempt: doubled each time, with jitter, and longer if the upstream asked for that."""
    own = min(LONGEST_PAUSE, first * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
    return max(own, retry_after_of(failure) or 0.0)
