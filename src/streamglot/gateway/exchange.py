"""One exchange: from a client's request to the last byte of its answer. This is the product, in about a page.

    face.parse -> routes.find -> open_source (retries, fallbacks) -> events -> writer.feed -> call.write

Until the first event that says something, an error is an HTTP status in the client's own error shape and another upstream
may be asked. After it, an error is the last thing in the stream.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from ..dialects import dialect
from ..errors import StreamglotError, UpstreamTimeout
from ..events import Event, KeepAlive, StreamError
from ..messages import Request
from ..stages import Collect
from ..upstream.routes import Candidate
from .call import Call, ClientGone, json_object
from .faces import Face
from .keys import Caller, presented
from .record import Record
from .source import Source, open_source

if TYPE_CHECKING:
    from .app import Gateway

FALL_BACK_ON = frozenset((401, 403, 404, 408, 409, 429))
"""Refusals that another upstream may not share; so may any server error."""
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 8.0


class Exchange:
    def __init__(self, gateway: Gateway, face: Face, call: Call, model_in_path: str) -> None:
        self.record = Record(call.headers.get("x-request-id") or uuid.uuid4().hex, face.dialect, gateway.clock())
        self._gateway = gateway
        self._face = face
        self._call = call
        self._model_in_path = model_in_path
        self._caller: Caller | None = None
        self._source: Source | None = None
        self._writer: Any = None
        self._busy = False
        self._last_write = self.record.began
        self._interruption: StreamglotError | None = None
        self._task: asyncio.Task[None] | None = None

    # --- from outside

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error: the gateway stops, or a deadline passed."""
        self._interruption = error
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._run()
        except ClientGone:
            self.record.ending = "client_gone"
        except asyncio.CancelledError:
            if self._interruption is None:
                self.record.ending = "client_gone"
                raise
            await self._fail(self._interruption.as_event(), self._interruption)
        except StreamglotError as error:
            await self._fail(error.as_event(), error)
        finally:
            if self._source is not None:
                self._source.close()
            self._gateway.finished(self.record, self._caller)

    # --- the path

    async def _run(self) -> None:
        gateway, call = self._gateway, self._call
        self._caller = gateway.doorkeeper.admit(call.headers, call.query("key"))
        body = json_object(await call.body(gateway.server.max_body_bytes, gateway.server.body_seconds))
        request = self._face.parse(body, self._model_in_path)
        self.record.model, self.record.stream = request.model, request.stream
        if self._caller is not None:
            self.record.key = self._caller.name
            self._caller.check(request.model, gateway.clock())
        candidates = gateway.routes.find(request.model, random.random)
        watcher = asyncio.ensure_future(call.disconnected())
        watcher.add_done_callback(self._client_gone)
        try:
            async with gateway.turn(self._caller):
                if request.stream:
                    self._writer = self._make_writer(request, body)
                self._source = await self._open(candidates, request)
                self.record.upstream = self._source.candidate.upstream.name
                self.record.upstream_dialect = self._source.candidate.upstream.dialect
                self.record.dropped = self._source.dropped
                self.record.first_event = gateway.clock()
                async with gateway.upstream_turn(self._source.candidate.upstream):
                    if request.stream:
                        await self._stream(self._source)
                    else:
                        await self._whole(self._source, request, body)
        finally:
            watcher.cancel()

    def _client_gone(self, watcher: asyncio.Future[None]) -> None:
        if not watcher.cancelled() and self._task is not None and not self._call.ended:
            self._task.cancel()

    async def _open(self, candidates: list[Candidate], request: Request) -> Source:
        """The first candidate that answers. A failed one is asked again after a pause, then the next is asked."""
        gateway = self._gateway
        failure: StreamglotError | None = None
        for candidate in candidates:
            breaker = gateway.breaker(candidate.upstream)
            for attempt in range(max(1, candidate.upstream.attempts)):
                if not breaker.allows(gateway.clock()):
                    failure = failure or gateway.resting(candidate.upstream)
                    break
                if attempt:
                    await asyncio.sleep(_pause(attempt, failure))
                self.record.attempts += 1
                key = presented(self._call.headers) if candidate.upstream.pass_key else ""
                try:
                    source = await open_source(gateway.client, candidate, request, key)
                except StreamglotError as error:
                    failure = error
                    breaker.failed(gateway.clock()) if error.status >= 500 else breaker.succeeded()
                    self.record.upstream = candidate.upstream.name
                    if not error.retryable:
                        break
                except BaseException:
                    breaker.released()
                    raise
                else:
                    breaker.succeeded()
                    return source
            assert failure is not None
            if failure.status not in FALL_BACK_ON and failure.status < 500:
                break
        assert failure is not None
        raise failure

    async def _stream(self, source: Source) -> None:
        writer, call, record = self._writer, self._call, self.record
        events: list[Event] | None = source.first
        clock = self._gateway.clock
        while events is not None:
            record.seen(events, clock())
            data = writer.feed(events)
            if data:
                await self._write(data)
            events = await source.read()
        self.record.usage = writer.usage
        await self._write(writer.close(), last=True)
        call.ended = True

    async def _whole(self, source: Source, request: Request, body: dict[str, Any]) -> None:
        box = Collect(extensions=bool(body.get("extensions")))
        events: list[Event] | None = source.first
        while events is not None:
            self.record.seen(events, self._gateway.clock())
            for event in events:
                box.feed(event)
            events = await source.read()
        response = box.close()[0]
        self.record.usage = response.usage
        if response.error is not None:
            await self._fail(response.error, None)
            return
        response.id = response.id or self._mint_id()
        response.model = response.model or request.model
        response.created = response.created or int(self._gateway.time())
        build = dialect(self._face.dialect).build_response
        answer = msgspec.json.encode(build(response, **self._face.response(request, body)))
        await self._call.reply(200, answer, "application/json", self._headers())

    # --- writing

    def _make_writer(self, request: Request, body: dict[str, Any]) -> Any:
        options = self._face.writer(request, body)
        return dialect(self._face.dialect).writer(
            id=self._mint_id(), model=request.model, created=int(self._gateway.time()), **options
        )

    def _mint_id(self) -> str:
        return f"{self._face.id_prefix}{uuid.uuid4().hex}"

    def _headers(self) -> dict[str, str]:
        headers = {"x-request-id": self.record.request_id}
        if self.record.upstream:
            headers["x-streamglot-upstream"] = self.record.upstream
        if self.record.dropped:
            headers["x-streamglot-dropped"] = ", ".join(self.record.dropped)
        return headers

    async def _write(self, data: bytes, last: bool = False) -> None:
        call = self._call
        self._busy = True
        try:
            if not call.started:
                stream = {"content-type": self._face.media_type, "cache-control": "no-cache", "x-accel-buffering": "no"}
                await call.start(200, {**stream, **self._writer.headers, **self._face.headers, **self._headers()})
            if last:
                await call.end(data)
            elif data:
                await call.write(data)
        finally:
            self._busy = False
            self._last_write = self._gateway.clock()

    def tick(self, now: float) -> None:
        """Called by the gateway's clock: keeps a silent stream alive and ends one that is over its time."""
        upstream = self._source.candidate.upstream if self._source is not None else None
        if upstream is not None:
            if now - self.record.last_event > upstream.timeouts.idle and not self._busy:
                self.interrupt(UpstreamTimeout(f"upstream {upstream.name!r} was silent for {upstream.timeouts.idle:g} s (timeouts.idle)"))
            elif now - self.record.began > upstream.timeouts.total:
                self.interrupt(UpstreamTimeout(f"the answer took more than {upstream.timeouts.total:g} s (timeouts.total)"))
        if self._writer is not None and not self._busy and now - self._last_write >= self._gateway.server.keep_alive_seconds:
            data = self._writer.feed([KeepAlive()])
            if data:
                self._gateway.spawn(self._write(data))

    async def _fail(self, error: StreamError, raised: StreamglotError | None) -> None:
        """Before the first byte an HTTP status, after it the dialect's own error in the stream."""
        self.record.failed(error)
        if self._call.ended:
            return
        if self._call.started:
            await self._write(self._writer.feed([error]) + self._writer.close(), last=True)
            return
        headers = {**self._headers(), "x-should-retry": "false" if self.record.attempts > 1 else "true"}
        after = getattr(raised, "retry_after", None) or (error.detail or {}).get("retry_after")
        if isinstance(after, (int, float)):
            headers["retry-after"] = str(max(1, round(after)))
        body = msgspec.json.encode(dialect(self._face.dialect).error_body(error))
        await self._call.reply(error.status, body, "application/json", headers)


def _pause(attempt: int, failure: StreamglotError | None) -> float:
    """Twice as long each time, with a part of chance; what the upstream asked for is respected."""
    asked = getattr(failure, "retry_after", None)
    grown = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
    return min(LONGEST_PAUSE, float(asked)) if asked is not None else grown * random.uniform(0.5, 1.0)
