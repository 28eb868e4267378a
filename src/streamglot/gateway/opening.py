"""Asking upstreams until one answers: attempts with pauses, then the next candidate; all before the first event has left."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

import msgspec

from ..dialects import dialect, faults
from ..dialects.lenient import loads
from ..errors import StreamglotError, Unsupported, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from ..messages import Request
from ..upstream import Answer, Upstream
from ..upstream.breaker import Breaker
from ..upstream.client import Client
from ..upstream.providers import abilities_of
from ..upstream.replay import SCHEME, open_replay
from ..upstream.routes import Candidate
from .admission import Turns
from .deadlines import Deadline
from .pipeline import Pipeline, in_words
from .record import Record
from .source import Source, Told

FALL_BACK_ON: Final = frozenset((401, 402, 403, 404, 408, 409, 429))
"""Refusals that another upstream may not share; so may any server error."""
LONGEST_PAUSE: Final = 8.0
"""A client that waits for longer than this between two attempts is better told to come again."""
ERROR_BYTES: Final = 2**18
"""The most of an error's body that is read."""


class Switchboard(Protocol):
    """Who asks upstreams, here a gateway and there a client: its connections, its clock, and what it knows of each upstream."""

    client: Client

    def clock(self) -> float: ...
    def within(self, seconds: float) -> Deadline: ...
    def upstream_turns(self, upstream: Upstream) -> Turns: ...
    def breaker(self, upstream: Upstream) -> Breaker: ...
    def resting(self, upstream: Upstream) -> StreamglotError: ...


class Past(Protocol):
    """What came before: an upstream's own state, which clients drop and it wants back. ``heard`` gets the bytes that it sends."""

    @property
    def heard(self) -> Callable[[bytes], None] | None: ...
    def asked(self, request: Request, upstream: Upstream) -> Request: ...
    def state(self, upstream: Upstream) -> Mapping[str, Any]: ...


class Opening:
    """One request on its way to an upstream. ``key`` is the client's own, for an upstream that wants it; ``passed`` are
    headers of the client for an upstream of its own dialect."""

    def __init__(
        self,
        gateway: Switchboard,
        request: Request,
        record: Record,
        key: str,
        passed: Mapping[str, str],
        past: Past | None = None,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._record = record
        self._key = key
        self._passed = passed
        self._past = past

    async def first_of(self, candidates: list[Candidate]) -> Source:
        """The first candidate that answers. A failed one is asked again after a pause, then the next is asked."""
        failure: StreamglotError | None = None
        for candidate in candidates:
            try:
                return await self._attempts(candidate)
            except _Resting as resting:
                failure = failure or resting.error
            except StreamglotError as error:
                failure = error
                if error.status not in FALL_BACK_ON and error.status < 500 and not isinstance(error, Unsupported):
                    break
        assert failure is not None
        raise failure

    async def _attempts(self, candidate: Candidate) -> Source:
        gateway, upstream = self._gateway, candidate.upstream
        breaker = gateway.breaker(upstream)
        failure: StreamglotError | None = None
        for attempt in range(max(1, upstream.attempts)):
            if failure is not None:
                pause = _pause(attempt, upstream.pause, failure)
                if not failure.retryable or isinstance(failure, UpstreamTimeout) or pause > LONGEST_PAUSE:
                    break
                await asyncio.sleep(pause)
            if not breaker.allows(gateway.clock()):
                if failure is None:
                    raise _Resting(gateway.resting(upstream))
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
                    breaker.failed(gateway.clock())
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

    async def _ask(self, candidate: Candidate) -> Source:
        """Asks once, and waits for the first event that says something."""
        upstream = candidate.upstream
        key = self._key if upstream.pass_key else upstream.key
        told = Told(candidate, self._record.request_id, key)
        turns = self._gateway.upstream_turns(upstream)
        await turns.take()
        try:
            with self._gateway.within(upstream.timeouts.first_byte):
                answer, pipeline, dropped = await self._post(candidate, key)
                heard = self._past.heard if self._past is not None else None
                source = Source(candidate, answer, pipeline, told, dropped, turns.give_back, heard)
                try:
                    if not 200 <= answer.status < 300:
                        raise await refused(answer)
                    await source.prime()
                except BaseException:
                    answer.close()
                    raise
            return source
        except TimeoutError:
            turns.give_back()
            seconds = f"{upstream.timeouts.first_byte:g} s (timeouts.first_byte)"
            raise told.error(UpstreamTimeout(f"it did not begin its answer within {seconds}")) from None
        except StreamglotError as error:
            turns.give_back()
            raise (told.error(error) if self._record.request_id not in error.message else error) from None
        except BaseException:
            turns.give_back()
            raise

    async def _post(self, candidate: Candidate, key: str) -> tuple[Answer, Pipeline, list[str]]:
        upstream, request = candidate.upstream, self._request
        streams = request.stream if upstream.stream == "same" else upstream.stream == "always"
        asked = msgspec.structs.replace(request, model=candidate.model, stream=streams)
        options = upstream.options
        if self._past is not None:
            asked = self._past.asked(asked, upstream)
        pipeline = Pipeline(upstream, candidate.model, asked)
        if upstream.base_url.startswith(SCHEME) or not upstream.base_url:
            said = asked.messages[-1].text if asked.messages else ""
            return open_replay(upstream, candidate.model, said), pipeline, []
        wire = dialect(upstream.dialect)
        worded = in_words(upstream, asked)
        if wire.continued is not None:
            state = self._past.state(upstream) if self._past is not None else {}
            options = {**options, **wire.continued(state, uuid.uuid4().hex, int(time.time()))}
        built = wire.build_request(worded, abilities=abilities_of(upstream), provider=upstream.name, **options)
        place = wire.endpoint(upstream.base_url, worded, key=key, **options)
        headers = {
            "content-type": "application/json",
            "x-request-id": self._record.request_id,
            **(self._passed if upstream.dialect == request.dialect else {}),
            **place.headers,
            **upstream.headers,
        }
        answer = await self._gateway.client.post(upstream, place.url, headers, msgspec.json.encode(built.body))
        return answer, pipeline, built.dropped


class _Resting(Exception):
    """The upstream is left alone; what it did to earlier requests is a worse reason than what another one did to this."""

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
