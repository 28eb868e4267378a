"""An upstream asked and answering: events, one list for each network read. Errors name the upstream and the next step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from ..dialects import dialect, faults
from ..dialects.echo import claimed
from ..dialects.lenient import loads
from ..errors import StreamglotError, UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamTimeout
from ..events import Event, Extra, KeepAlive, StreamError, StreamStart, Usage
from ..messages import Request
from ..upstream import Answer, Upstream
from ..upstream.http import HttpClient
from ..upstream.replay import SCHEME, open_replay
from ..upstream.routes import Candidate
from .pipeline import Pipeline

PRELUDE: Final = (StreamStart, KeepAlive, Usage, Extra)
"""Events that say nothing yet: while only these have come, another upstream can still be asked."""
ERROR_BYTES: Final = 2**18
"""The most of an error's body that is read."""
NEXT_STEP: Final = {
    400: "change the request",
    401: "check the key of this upstream",
    403: "check what the key of this upstream may do",
    404: "check the model's name and the upstream's base_url",
    429: "wait, or add another upstream as a fallback",
}


class Source:
    """The answer of one candidate. ``first`` holds what came up to the first event that says something."""

    def __init__(self, candidate: Candidate, answer: Answer, pipeline: Pipeline, dropped: list[str]) -> None:
        self.candidate = candidate
        self.dropped = dropped
        self.first: list[Event] = []
        self._answer = answer
        self._pipeline = pipeline
        self._over = False

    async def read(self) -> list[Event] | None:
        """The events of the next read, None when there are no more."""
        if self._over:
            return None
        try:
            chunk = await self._answer.read()
        except UpstreamError as error:
            self._over = True
            return self._broken(error)
        if chunk:
            return self._pipeline.feed(chunk)
        self._over = True
        return self._pipeline.close()

    def _broken(self, error: UpstreamError) -> list[Event]:
        """The connection broke: what the reader makes of the end, in words that say what happened."""
        events = self._pipeline.close()
        if events and isinstance(events[-1], StreamError):
            events[-1] = error.as_event()
        return events

    async def prime(self) -> None:
        """Reads up to the first event that says something. An error there is raised: nothing has left yet."""
        while True:
            events = await self.read()
            if events is None:
                return
            self.first += events
            for event in events:
                if isinstance(event, StreamError):
                    raise _raised(event, self.candidate)
                if not isinstance(event, PRELUDE):
                    return

    def close(self) -> None:
        self._answer.close()


async def open_source(client: HttpClient, candidate: Candidate, request: Request, key: str) -> Source:
    """Asks the candidate and waits for the first event that says something."""
    upstream = candidate.upstream
    asked = msgspec.structs.replace(request, model=candidate.model, stream=_streams(upstream, request))
    wire = dialect(upstream.dialect)
    pipeline = Pipeline(upstream, candidate.model, asked)
    if upstream.base_url.startswith(SCHEME) or not upstream.base_url:
        said = asked.messages[-1].text if asked.messages else ""
        answer: Answer = open_replay(upstream, candidate.model, said)
        dropped: list[str] = []
    else:
        built = wire.build_request(claimed(asked, upstream.dialect, upstream.name), provider=upstream.name, **_for_builder(upstream.options))
        dropped = built.dropped
        place = wire.endpoint(upstream.base_url, asked, key=key or upstream.key, **upstream.options)
        headers = {"content-type": "application/json", **place.headers, **upstream.headers}
        answer = await _within(
            upstream.timeouts.first_byte, client.post(upstream, place.url, headers, msgspec.json.encode(built.body)), upstream
        )
    source = Source(candidate, answer, pipeline, dropped)
    try:
        if answer.status >= 400:
            raise await _refused(answer, candidate)
        await _within(upstream.timeouts.first_byte, source.prime(), upstream)
    except BaseException:
        source.close()
        raise
    return source


def _for_builder(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("speed",)}


def _streams(upstream: Upstream, request: Request) -> bool:
    return request.stream if upstream.stream == "same" else upstream.stream == "always"


async def _within(seconds: float, waiting: Any, upstream: Upstream) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        raise UpstreamTimeout(
            f"upstream {upstream.name!r} did not begin its answer within {seconds:g} s (timeouts.first_byte)"
        ) from None


async def _refused(answer: Answer, candidate: Candidate) -> StreamglotError:
    """The upstream's error answer as ours: its status, its words, its Retry-After."""
    pieces, size = [], 0
    while size < ERROR_BYTES and (piece := await answer.read()):
        pieces.append(piece)
        size += len(piece)
    body = b"".join(pieces)
    try:
        told: Any = loads(body)[0]
    except UpstreamProtocolError:
        told = body.decode("utf-8", "replace").strip()[:300] or f"status {answer.status} and no explanation"
    error = faults.refusal(told, answer.status)
    error.retry_after = _seconds(answer.headers.get("retry-after"))
    error.message = _named(error.message, answer.status, candidate)
    return error


def _raised(event: StreamError, candidate: Candidate) -> UpstreamRefused:
    error = UpstreamRefused(
        _named(event.message, event.status, candidate),
        code=event.code,
        status=event.status,
        retryable=event.retryable,
        detail=event.detail,
    )
    error.origin = event.origin
    return error


def _named(message: str, status: int, candidate: Candidate) -> str:
    step = NEXT_STEP.get(status)
    told = f"upstream {candidate.upstream.name!r}, model {candidate.model!r}, status {status}: {message}"
    return f"{told} ({step})" if step else told


def _seconds(text: str | None) -> float | None:
    """A Retry-After, which is a number of seconds or a date."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    from datetime import datetime

    return max(0.0, (when - datetime.now(when.tzinfo)).total_seconds())
