"""One exchange: from a client's request to the last byte of its answer. This is the product, in about a page.

    face.parse -> routes.find -> opening (retries, fallbacks) -> events -> writer.feed -> call.write

Until the first event that says something, an error is an HTTP status in the client's own error shape and another upstream
may be asked. After it, an error is the last thing in the stream.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..dialects import dialect
from ..errors import StreamglotError, UpstreamTimeout
from ..events import Event, KeepAlive, StreamEnd, StreamError, StreamStart
from ..messages import Request, Response
from ..stages import Collect
from .cache import key_of
from .call import Call, ClientGone, json_object
from .faces import Face
from .keeping import RESPONSES, Keeping, Wish, learns, wish
from .keys import Caller, presented
from .opening import Opening, retry_after_of
from .record import Record
from .source import ENDS, Events

if TYPE_CHECKING:
    from .app import Gateway

LAST_WORD_SECONDS: Final = 2.0
"""How long the last words to a client may take that has stopped reading."""
_NOT_IN_AN_ID: Final = re.compile(r"[^!-~]")
ID_CHARS: Final = 128


class Exchange:
    def __init__(self, gateway: Gateway, face: Face, call: Call, model_in_path: str) -> None:
        given = call.headers.get("x-request-id")
        known = _NOT_IN_AN_ID.sub("", given)[:ID_CHARS] if given else ""
        self.record = Record(known or gateway.new_id(), face.dialect, gateway.clock())
        self._gateway = gateway
        self._face = face
        self._call = call
        self._model_in_path = model_in_path
        self._caller: Caller | None = None
        self._request = Request()
        self._body: dict[str, Any] = {}
        self._source: Events | None = None
        self._writer: Any = None
        self._tap: Collect | None = None
        self._cache_key = b""
        self._cache_seconds = 0.0
        self._busy = 0
        self._gone = self._stopped = self._left = False
        self._wish = Wish()
        self._keeping: Keeping | None = None
        self._learns = False
        self._response: Response | None = None
        self._error: StreamError | None = None
        self._last_write = self._last_keep_alive = self.record.began
        self._interruption: StreamglotError | None = None
        self._task: asyncio.Task[None] | None = None

    # --- from outside

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error: the gateway stops, or a deadline passed."""
        if self._interruption is not None or self._call.ended:
            return
        self._interruption = error
        if self._source is not None and not self._busy:
            self._source.interrupt(error)
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Ends the stream properly, as cancelled: somebody asked for it."""
        if self._task is not None and not self._stopped and not self._call.ended:
            self._stopped = True
            self._task.cancel()

    def _client_gone(self) -> None:
        if self._wish.keep and self._writer is not None:
            self._leave()
        elif self._task is not None and not self._call.ended and not self._gone:
            self._gone = True
            self._task.cancel()

    async def run(self) -> None:
        self._task = self._call.task()
        try:
            await self._guarded()
        except ClientGone:
            self._end_unheard()
            self.record.ending = "client_gone"
        except StreamglotError as error:
            await self._fail(error.as_event(), retry_after_of(error))
        except Exception as error:
            self._gateway.say_fault(self.record.request_id, error)
            await self._fail(StreamglotError("a fault of the gateway itself; its log has more").as_event(), None)
        finally:
            self._call.unwatch()
            self._note()
            if self._source is not None:
                self._source.close()
            if self._keeping is not None:
                model = self._source.model if self._source is not None else ""
                self._keeping.finish(self.record, self._response, self._error, model, self._gateway.clock())
            self._gateway.finished(self.record, self._caller, self._call.headers)

    async def _guarded(self) -> None:
        """The path; a cancellation of ours becomes what it meant."""
        try:
            await self._path()
        except asyncio.CancelledError:
            if self._task is not None and (self._gone or self._stopped or self._interruption is not None):
                self._task.uncancel()
            if self._gone:
                raise ClientGone from None
            if self._stopped:
                await self._end_stopped()
                return
            if self._interruption is not None:
                raise self._interruption from None
            raise

    # --- the path

    async def _path(self) -> None:
        gateway, call = self._gateway, self._call
        caller = self._caller = gateway.doorkeeper.admit(call.headers, call.query("key"))
        body = self._body = json_object(
            await call.body(gateway.server.max_body_bytes, gateway.within(gateway.server.body_seconds))
        )
        self._wish, asked = wish(self._face, call, body, gateway.store)
        request = self._request = self._face.parse(asked, self._model_in_path)
        model = self.record.model = gateway.routes.named(request.model)
        self.record.stream = request.stream
        if caller is not None:
            self.record.key = caller.name
            caller.check(model, gateway.clock())
        candidates = gateway.routes.find(model, random.random)
        call.watch(self._client_gone)
        async with gateway.turn(caller):
            minted = self._mint_id()
            if gateway.store is not None:
                request.stream = request.stream or self._wish.background
                self._keeping = await Keeping.begin(
                    gateway.store, self._face, call, request, body, self.record, self._wish, minted
                )
            if request.stream:
                self._writer = self._make_writer(minted)
            if self._wish.background and not body.get("stream"):
                await self._answer_later()
            self._cache_seconds = candidates[0].cache_seconds
            if self._cache_seconds:
                self._cache_key = key_of(request, self.record.key or presented(call.headers))
                self._source = gateway.cache.get(self._cache_key, gateway.clock())
                self.record.cached = self._source is not None
            if self._source is None:
                key = "" if gateway.doorkeeper.admitted_by(call.headers) else presented(call.headers)
                passed = {name: call.headers[name] for name in self._face.passed if name in call.headers}
                self._source = await Opening(gateway, request, self.record, key, passed, self._keeping).first_of(candidates)
                self._learns = self._keeping is not None and learns(self._source.upstream)
            source = self._source
            kept = self._keeping is not None and self._keeping.content
            if request.stream and (kept or gateway.content_log is not None or (self._cache_key and not self.record.cached)):
                self._tap = Collect()
            if self._keeping is not None and self._face.dialect == RESPONSES:
                source.first = [_called(event, minted) if type(event) is StreamStart else event for event in source.first]
            self.record.upstream, self.record.dropped = source.name, source.dropped
            self.record.first_event = gateway.clock()
            await (self._stream(source) if request.stream else self._whole(source, minted))
            self._note()
            await source.drain()

    async def _stream(self, source: Events) -> None:
        writer = self._writer
        events: list[Event] | None = source.first
        while events is not None:
            data = self._written(events)
            if events and type(events[-1]) in ENDS:
                self.record.usage = writer.usage
                await self._write(data + writer.close(), last=True)
                return
            if data:
                await self._write(data)
            events = await source.read()
        self.record.usage = writer.usage
        await self._write(writer.close(), last=True)

    def _written(self, events: list[Event]) -> bytes:
        """The events of one read as the client's bytes, seen by all who want to."""
        self.record.seen(events, self._gateway.clock())
        if self._tap is not None:
            self._tap.feed_all(events)
        if self._learns:
            self._learn(events)
        data: bytes = self._writer.feed(events)
        return data

    def _learn(self, events: list[Event]) -> None:
        if self._keeping is not None and self._source is not None and self._source.upstream is not None:
            self._keeping.learn(self._source.upstream, events)

    async def _whole(self, source: Events, minted: str) -> None:
        """The same path, collected."""
        box = self._tap = Collect(extensions=bool(self._body.get("extensions")))
        events: list[Event] | None = source.first
        while events is not None:
            self.record.seen(events, self._gateway.clock())
            box.feed_all(events)
            if self._learns:
                self._learn(events)
            events = None if events and type(events[-1]) in ENDS else await source.read()
        self._note()
        response = self._response
        assert response is not None
        self.record.usage = response.usage
        if response.error is not None:
            await self._fail(response.error, None)
            return
        response = msgspec.structs.replace(
            response,
            id=response.id or minted,
            model=response.model or self._request.model,
            created=response.created or int(self._gateway.time()),
        )
        build = dialect(self._face.dialect).build_response
        answer = msgspec.json.encode(build(response, **self._face.response(self._request, self._body)))
        await self._reply(200, answer, self._headers())

    def _note(self) -> None:
        """What a store, a cache or a log of contents wants of an answer: all but the cache also of one that broke off."""
        if self._tap is None or self._source is None:
            return
        response = self._response = self._tap.close()[0]
        self._tap = None
        gateway = self._gateway
        whole = response.error is None and response.choices and all(choice.stop_reason for choice in response.choices)
        if self._cache_key and whole and not self._gone:
            gateway.cache.put(self._cache_key, response, self._source.name, gateway.clock() + self._cache_seconds)
        if gateway.content_log is not None:
            gateway.say(gateway.content_log.line(self.record.request_id, self._request, response))

    # --- writing

    def _make_writer(self, minted: str) -> Any:
        options = self._face.writer(self._request, self._body)
        return dialect(self._face.dialect).writer(
            id=minted, model=self._request.model, created=int(self._gateway.time()), **options
        )

    def _mint_id(self) -> str:
        return f"{self._face.id_prefix}{self._gateway.new_id()}"

    def _headers(self) -> dict[str, str]:
        headers = {"x-request-id": self.record.request_id}
        if self.record.upstream:
            headers["x-streamglot-upstream"] = self.record.upstream
        if self.record.dropped:
            headers["x-streamglot-dropped"] = ", ".join(self.record.dropped)
        if self._cache_key:
            headers["x-streamglot-cache"] = "hit" if self.record.cached else "miss"
        if self._keeping is not None:
            headers.update(self._keeping.headers)
        return headers

    async def _write(self, data: bytes, last: bool = False) -> None:
        call = self._call
        self._busy += 1
        try:
            if not call.started:
                stream = self._stream_headers()
                if self._keeping is not None:
                    self._keeping.open(self.stop, stream)
                await call.start(200, {**stream, **self._headers()})
            if self._keeping is not None and data:
                data = self._keeping.wrote(data)
            if last:
                await call.end(data)
            elif data:
                await call.write(data)
        finally:
            self._busy -= 1
            self._last_write = self._gateway.clock()

    def _stream_headers(self) -> dict[str, str]:
        kind = {"content-type": self._face.media_type, "cache-control": "no-cache", "x-accel-buffering": "no"}
        return {**kind, **self._writer.headers, **self._face.headers}

    def _leave(self) -> None:
        """The client is gone or has its answer; the stream goes on for whoever comes back for it."""
        self._left = True
        self._call = self._call.left(self._call.started and not self._call.ended)

    async def _answer_later(self) -> None:
        """What a client is told that asked for an answer in the background: its id, by which it asks again."""
        if self._keeping is not None:
            self._keeping.open(self.stop, self._stream_headers())
        told = msgspec.json.encode(self._writer.queued())
        await self._reply(200, told, self._headers())
        self._leave()

    async def _end_stopped(self) -> None:
        """Somebody asked for the stream to stop."""
        nothing: list[Event] = [StreamStart(), StreamEnd("cancelled")]
        data = self._written(nothing if self._source is None else self._source.stop())
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._write(data + self._writer.close(), last=True)
        except TimeoutError:
            self._call.cut()

    def _end_unheard(self) -> None:
        """The client hung up, and the upstream with it: who comes back for the stream is told so."""
        if self._keeping is not None and self._writer is not None and self._call.started:
            error = StreamError("client_gone", "the client hung up; send the request again", "client", True, 499)
            self._keeping.wrote(self._writer.feed([error]) + self._writer.close())

    async def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._busy += 1
        try:
            await self._call.reply(status, body, "application/json", headers)
        finally:
            self._busy -= 1

    def tick(self, now: float) -> None:
        """Called by the gateway's clock: keeps a silent stream alive and ends one that is over its time."""
        if self._call.ended or self._interruption is not None:
            return
        server = self._gateway.server
        upstream = self._source.upstream if self._source is not None else None
        if upstream is not None:
            limits = upstream.timeouts
            if not self._busy and now - max(self.record.last_event, self._last_write) > limits.idle:
                self.interrupt(UpstreamTimeout(f"it was silent for {limits.idle:g} s (timeouts.idle)"))
            elif now - self.record.began > limits.total:
                self.interrupt(UpstreamTimeout(f"the answer took more than {limits.total:g} s (timeouts.total)"))
        if self._busy:
            if now - self._last_write > server.stall_seconds and self.record.last_event < now - server.stall_seconds:
                self._client_gone()
                self._call.cut()
        elif (
            self._writer is not None
            and not self._left
            and now - max(self._last_write, self._last_keep_alive) >= server.keep_alive_seconds
        ):
            self._gateway.spawn(self._keep_alive())

    async def _keep_alive(self) -> None:
        """Written in one step with what the writer makes of it, so that nothing can come between."""
        if self._call.ended or self._busy or self._interruption is not None:
            return
        data = self._writer.feed([KeepAlive()])
        if data:
            said = self._last_write
            await self._write(data)
            self._last_keep_alive, self._last_write = self._last_write, max(said, self.record.last_event)

    async def _fail(self, error: StreamError, retry_after: float | None) -> None:
        """Before the first byte an HTTP status, after it the dialect's own error in the stream."""
        if self.record.request_id not in error.message:
            error = msgspec.structs.replace(error, message=f"{error.message} (request id {self.record.request_id})")
        self.record.failed(error)
        self._error = error
        if self._call.ended:
            return
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                if self._call.started or self._left:
                    await self._write(self._writer.feed([error]) + self._writer.close(), last=True)
                else:
                    await self._refuse(error, retry_after)
        except (TimeoutError, asyncio.CancelledError):
            self._call.cut()

    async def _refuse(self, error: StreamError, retry_after: float | None) -> None:
        headers = self._headers()
        if retry_after is not None:
            headers["retry-after"] = str(max(1, round(retry_after)))
        if self.record.attempts > 1 or not error.retryable:
            headers["x-should-retry"] = "false"  # we tried for the client, or it is of no use
        if error.status == 408:
            headers["connection"] = "close"
        await self._reply(error.status, msgspec.json.encode(dialect(self._face.dialect).error_body(error)), headers)


def _called(start: StreamStart, id: str) -> StreamStart:
    """By our own id: it is the one that the answer can be asked for by, whoever gave it."""
    return msgspec.structs.replace(start, id=id)
