"""Asking upstreams until one answers: attempts with pauses, then the next candidate; all before the first event has left."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..dialects import dialect, faults
from ..dialects.lenient import loads
from ..errors import StreamglotError, Unsupported, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from ..messages import Request
from ..tools.own_calls import with_own_calls
from ..upstream import Answer
from ..upstream.replay import SCHEME, open_replay
from ..upstream.routes import Candidate
from .conversation import ConversationState
from .exchange import Passthrough
from .pipeline import Pipeline, in_words
from .record import ExchangeRecord
from .upstream_stream import ErrorContext, UpstreamStream

if TYPE_CHECKING:
    from .pool import UpstreamPool

FALL_BACK_ON: Final = frozenset((401, 402, 403, 404, 408, 409, 429))
"""Refusals that another upstream may not share; so may any server error."""
LONGEST_PAUSE: Final = 8.0
"""A client that waits for longer than this between two attempts is better told to come again."""
CALL_PREFIX_CHARS: Final = 24
"""Characters of a random id that begin the ids of calls: 96 bits never repeat, and some providers take ids of 40 characters."""
ERROR_BYTES: Final = 2**18
"""The most of an error's body that is read."""


class UpstreamRequest:
    """One request on its way to an upstream. ``passthrough`` is what the client sends for its upstream."""

    def __init__(
        self,
        pool: UpstreamPool,
        request: Request,
        record: ExchangeRecord,
        conversation: ConversationState | None,
        passthrough: Passthrough,
    ) -> None:
        self._pool = pool
        self._request = with_own_calls(request)
        self._record = record
        self._conversation = conversation
        self._passthrough = passthrough

    async def open(self, candidates: list[Candidate]) -> UpstreamStream:
        """The first candidate that answers. A failed one is asked again after a pause, then the next is asked."""
        failure: StreamglotError | None = None
        for candidate in candidates:
            try:
                return await self._attempts(candidate)
            except _CircuitOpen as skipped:
                failure = failure or skipped.error
            except StreamglotError as error:
                failure = error
                if error.status not in FALL_BACK_ON and error.status < 500 and not isinstance(error, Unsupported):
                    break
        assert failure is not None
        raise failure

    async def _attempts(self, candidate: Candidate) -> UpstreamStream:
        pool, upstream = self._pool, candidate.upstream
        breaker = pool.breaker(upstream)
        failure: StreamglotError | None = None
        for attempt in range(max(1, upstream.attempts)):
            if failure is not None:
                pause = _pause(attempt, upstream.pause, failure)
                if not failure.retryable or isinstance(failure, UpstreamTimeout) or pause > LONGEST_PAUSE:
                    break
                await asyncio.sleep(pause)
            if not breaker.allows(pool.clock()):
                if failure is None:
                    raise _CircuitOpen(pool.circuit_open(upstream))
                break
            self._record.attempts += 1
            self._record.upstream, self._record.upstream_dialect = upstream.name, upstream.dialect
            try:
                source = await self._ask(candidate)
            except StreamglotError as error:
                failure = error
                if error.origin != "upstream":
                    breaker.released()
                elif error.status >= 500:
                    breaker.failed(pool.clock())
                else:
                    breaker.succeeded()
            except BaseException:
                breaker.released()
                raise
            else:
                breaker.succeeded()
                return source
        assert failure is not None
        raise failure

    async def _ask(self, candidate: Candidate) -> UpstreamStream:
        """Asks once, and waits for the first event that says something."""
        upstream = candidate.upstream
        key = self._passthrough.key if upstream.pass_key else upstream.key
        told = ErrorContext(candidate, self._record.request_id, key)
        limit = self._pool.limit(upstream)
        await limit.take()
        try:
            with self._pool.within(upstream.timeouts.first_byte):
                answer, pipeline, dropped = await self._post(candidate, key)
                heard = self._conversation.received if self._conversation is not None else None
                source = UpstreamStream(candidate, answer, pipeline, told, dropped, limit.give_back, heard)
                try:
                    if not 200 <= answer.status < 300:
                        raise await refused(answer)
                    await source.prime()
                except BaseException:
                    answer.close()
                    raise
            return source
        except TimeoutError:
            limit.give_back()
            seconds = f"{upstream.timeouts.first_byte:g} s (timeouts.first_byte)"
            raise told.error(UpstreamTimeout(f"it did not begin its answer within {seconds}")) from None
        except StreamglotError as error:
            limit.give_back()
            raise (told.error(error) if self._record.request_id not in error.message else error) from None
        except BaseException:
            limit.give_back()
            raise

    async def _post(self, candidate: Candidate, key: str) -> tuple[Answer, Pipeline, list[str]]:
        upstream, request = candidate.upstream, self._request
        streams = request.stream if upstream.stream == "same" else upstream.stream == "always"
        asked = msgspec.structs.replace(request, model=candidate.model, stream=streams)
        options = upstream.options
        if self._conversation is not None:
            asked = self._conversation.prepare(asked, upstream)
        prefix = f"call_{self._pool.new_id()[:CALL_PREFIX_CHARS]}"
        pipeline = Pipeline(upstream, candidate.model, asked, prefix)
        if upstream.base_url.startswith(SCHEME) or not upstream.base_url:
            said = asked.messages[-1].text if asked.messages else ""
            return open_replay(upstream, candidate.model, said), pipeline, []
        wire = dialect(upstream.dialect)
        worded = in_words(upstream, asked)
        if wire.continued is not None:
            state = self._conversation.state(upstream) if self._conversation is not None else {}
            options = {**options, **wire.continued(state, uuid.uuid4().hex, int(time.time()))}
        try:
            built = wire.build_request(worded, provider=upstream.name, **options)
        except Unsupported:
            lighter = _without_hosted_tools(worded, upstream.dialect)
            if lighter is None:
                raise
            built = wire.build_request(lighter, provider=upstream.name, **options)
            kept = {tool.name for tool in lighter.tools}
            built.dropped += [f"tools.{tool.name}" for tool in worded.tools if tool.name not in kept]
        place = wire.endpoint(upstream.base_url, worded, key=key, **options)
        headers = {
            "content-type": "application/json",
            "x-request-id": self._record.request_id,
            **(self._passthrough.headers if upstream.dialect == request.dialect else {}),
            **place.headers,
            **upstream.headers,
        }
        answer = await self._pool.connections.post(upstream, place.url, headers, msgspec.json.encode(built.body))
        return answer, pipeline, built.dropped


def _without_hosted_tools(request: Request, dialect: str) -> Request | None:
    """The request without the tools that only providers of another dialect host; None where there are none, or where the
    client forces one of them: without it, the answer would be another one."""
    hosted = {
        tool.name for tool in request.tools if tool.kind == "server" and (tool.native is None or tool.native.provider != dialect)
    }
    choice = request.tool_choice
    forced = choice is not None and choice.mode == "required" and (not choice.tools or not hosted.isdisjoint(choice.tools))
    if not hosted or forced:
        return None
    return msgspec.structs.replace(request, tools=[tool for tool in request.tools if tool.name not in hosted])


class _CircuitOpen(Exception):
    """The upstream was not asked. The failure of another candidate explains the outcome better."""

    def __init__(self, error: StreamglotError) -> None:
        self.error = error


async def refused(answer: Answer) -> UpstreamError:
    """The upstream's error answer as ours: its status, its words, its Retry-After."""
    if answer.status < 400:
        place = answer.headers.get("location", "nowhere").split("?", 1)[0]
        return UpstreamProtocolError(f"it answers {answer.status} and points to {place}; correct its base_url")
    pieces, size = [], 0
    while size < ERROR_BYTES and (piece := await answer.read()):
        pieces.append(piece)
        size += len(piece)
    body = b"".join(pieces)
    try:
        told: Any = loads(body)[0]
    except UpstreamProtocolError:
        told = body.decode("utf-8", "replace").strip()[:300]
    error = faults.refusal(told or f"status {answer.status} and no explanation", answer.status)
    error.retry_after = retry_seconds(answer.headers)
    return error


def retry_seconds(headers: Mapping[str, str]) -> float | None:
    """A Retry-After, which is a number of milliseconds, of seconds, or a date."""
    text = headers.get("retry-after-ms")
    try:
        if text:
            return max(0.0, float(text) / 1000)
        text = headers.get("retry-after")
        return max(0.0, float(text)) if text else None
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    from datetime import datetime

    return max(0.0, (when - datetime.now(when.tzinfo)).total_seconds())


def retry_after_of(error: StreamglotError) -> float | None:
    """How long to wait, where the error says it."""
    asked = getattr(error, "retry_after", None)
    if asked is None:
        asked = (error.detail or {}).get("retry_after")
    return float(asked) if isinstance(asked, (int, float)) else None


def _pause(attempt: int, first: float, failure: StreamglotError) -> float:
    """Twice as long each time, with a part of chance; what the upstream asked for is respected."""
    asked = retry_after_of(failure)
    if asked is not None:
        return asked
    return min(LONGEST_PAUSE, first * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
