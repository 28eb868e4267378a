"""One exchange: from a client's request to the last byte of its answer. This is the product, in about a page.

    face.parse -> routes.find -> opening (retries, fallbacks) -> events -> writer.feed -> call.write

Until the first event that says something, an error is an HTTP status in the client's own error shape and another upstream
may be asked. After it, an error is the last thing in the stream.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..dialects import dialect
from ..errors import StreamglotError, UpstreamTimeout
from ..events import Event, StreamEnd, StreamError, StreamStart
from ..messages import Request, Response
from ..stages import Collect
from ..upstream import Upstream
from ..upstream.secrets import hide
from .cache import key_of
from .call import Call, ClientGone, json_object
from .content import ContentLog
from .faces import Face
from .keys import Caller, presented
from .opening import Opening, retry_after_of
from .outlet import Outlet
from .record import ID_CHARS as ID_CHARS
from .record import Record, clean_id
from .source import ENDS, Events
from .tokens import estimated_usage
from .wish import Wish, wish

if TYPE_CHECKING:
    from .app import Gateway

MANY: Final = 10
"""Events of one read that are collected at once."""
TOGETHER: Final = 100
"""Of fewer, so many may wait: together they cost less than one by one."""


class Exchange:
    def __init__(self, gateway: Gateway, face: Face, call: Call, model_in_path: str) -> None:
        given = call.headers.get("x-request-id")
        self.record = Record((clean_id(given) if given else "") or gateway.new_id(), face.dialect, gateway.clock())
        self._gateway = gateway
        self._face = face
        self._outlet = Outlet(gateway, face, call, self.record, self.stop)
        self._model_in_path = model_in_path
        self._caller: Caller | None = None
        self._request = Request()
        self._body: dict[str, Any] = {}
        self._source: Events | None = None
        self._tap: Collect | None = None
        self._tapped: list[Event] | None = None
        self._cache_key = b""
        self._cache_seconds = 0.0
        self._gone = self._stopped = False
        self._wish = Wish()
        self._learns = False
        self._response: Response | None = None
        self._error: StreamError | None = None
        self._interruption: StreamglotError | None = None
        self._task: asyncio.Task[None] | None = None

    # --- from outside

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error: the gateway stops, or a deadline passed."""
        if self._interruption is not None or self._outlet.call.ended:
            return
        self._interruption = error
        if self._source is not None and not self._outlet.busy:
            self._source.interrupt(error)
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Ends the stream properly, as cancelled: somebody asked for it."""
        if self._task is not None and not self._stopped and not self._outlet.call.ended:
            self._stopped = True
            self._task.cancel()

    def _client_gone(self) -> None:
        if self._wish.keep:
            self._outlet.leave()
        elif self._task is not None and not self._outlet.call.ended and not self._gone:
            self._gone = True
            self._task.cancel()

    async def run(self) -> None:
        self._task = self._outlet.call.task()
        try:
            await self._answered()
        except Exception as error:  # of ours, and be it in telling of another: the client is answered all the same
            self._gateway.say_fault(self.record.request_id, error)
            await self._fail_at_last()
        finally:
            attempt = self._gateway.tasks.attempt  # none of this may keep the rest from being done
            self._outlet.call.unwatch()
            attempt("turn", self._keep)
            if self._source is not None:
                self._source.close()
            attempt("record", self._gateway.finished, self.record, self._caller, self._outlet.call.headers)

    async def _answered(self) -> None:
        """The path; what was refused is told."""
        try:
            await self._guarded()
        except ClientGone:
            self._outlet.end_unheard()
            self.record.ending = "client_gone"
        except StreamglotError as error:
            await self._fail(error.as_event(), retry_after_of(error), error.has_context)

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
        gateway, outlet, call = self._gateway, self._outlet, self._outlet.call
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
            minted = f"{self._face.id_prefix}{gateway.new_id()}"
            if gateway.keeper is not None:
                request.stream = request.stream or self._wish.background
                outlet.keeping = await gateway.keeper.begin(self._face, call, request, body, self.record, self._wish, minted)
            if request.stream:
                outlet.begin(request, body, minted)
            if self._wish.background and not body.get("stream"):
                await outlet.answer_later()
            self._cache_seconds = candidates[0].cache_seconds
            if self._cache_seconds:
                self._cache_key = key_of(request, self.record.key or presented(call.headers))
                self._source = gateway.cache.get(self._cache_key, gateway.clock())
                self.record.cached = self._source is not None
                outlet.cache = "hit" if self.record.cached else "miss"
            if self._source is None:
                key = "" if gateway.doorkeeper.admitted_by(call.headers) else presented(call.headers)
                passed = {name: call.headers[name] for name in self._face.passed if name in call.headers}
                self._source = await Opening(gateway, request, self.record, key, passed, outlet.keeping).first_of(candidates)
                self._learns = outlet.keeping is not None and _learns(self._source.upstream)
            source = self._source
            kept = outlet.keeping is not None and outlet.keeping.content
            if request.stream and (kept or gateway.content_log is not None or (self._cache_key and not self.record.cached)):
                self._tap, self._tapped = Collect(), []
            if outlet.keeping is not None and self._face.asked_again:
                source.first = [_called(event, minted) if type(event) is StreamStart else event for event in source.first]
            self.record.upstream, self.record.dropped = source.name, source.dropped
            self.record.first_event = gateway.clock()
            await (self._stream(source) if request.stream else self._whole(source, minted))
            self._keep()
            await source.drain()

    async def _stream(self, source: Events) -> None:
        outlet, writer = self._outlet, self._outlet.writer
        events: list[Event] | None = source.first
        while events is not None:
            data = self._written(events)
            if events and type(events[-1]) in ENDS:
                self.record.usage = writer.usage
                await outlet.write(data + writer.close(), last=True)
                return
            if data:
                await outlet.write(data)
            events = await source.read()
        self.record.usage = writer.usage
        await outlet.write(writer.close(), last=True)

    def _written(self, events: list[Event]) -> bytes:
        """The events of one read as the client's bytes, seen by all who want to."""
        self.record.seen(events, self._gateway.clock())
        tapped = self._tapped
        if tapped is not None:
            tapped += events
            if len(events) > MANY:
                self._collect()
        if self._learns:
            self._learn(events)
        data: bytes = self._outlet.writer.feed(events)
        return data

    def _collect(self) -> None:
        if self._tap is not None and self._tapped:
            self._tap.feed_all(self._tapped)
            self._tapped.clear()

    def _learn(self, events: list[Event]) -> None:
        keeping = self._outlet.keeping
        if keeping is not None and self._source is not None and self._source.upstream is not None:
            keeping.learn(self._source.upstream, events)

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
            await self._fail(response.error, None, has_context=True)
            return
        response = msgspec.structs.replace(
            response,
            id=response.id or minted,
            model=response.model or self._request.model,
            created=response.created or int(self._gateway.time()),
        )
        build = dialect(self._face.dialect).build_response
        answer = msgspec.json.encode(build(response, **self._face.response(self._request, self._body)))
        await self._outlet.reply(200, answer)

    def _note(self) -> None:
        """What a store, a cache or a log of contents wants of an answer: all but the cache also of one that broke off."""
        if self._tap is None or self._source is None:
            return
        self._collect()
        response = self._response = self._tap.close()[0]
        self._tap = self._tapped = None
        gateway = self._gateway
        whole = response.error is None and response.choices and all(choice.stop_reason for choice in response.choices)
        if self._cache_key and whole and not self._gone:
            gateway.cache.put(self._cache_key, response, self._source.name, gateway.clock() + self._cache_seconds)
        if gateway.content_log is not None:
            gateway.tasks.attempt("content log", self._log_content, gateway.content_log, response)

    def _log_content(self, log: ContentLog, response: Response) -> None:
        self._gateway.say(log.line(self.record.request_id, self._request, response))

    def _keep(self) -> None:
        """In the same step as the last byte: a client may ask for the answer again as soon as it has it, and an upstream may
        take its time to hang up."""
        self._note()
        self._estimate()
        if self._outlet.keeping is not None:
            model = self._source.model if self._source is not None else ""
            self._outlet.keeping.finish(self.record, self._response, self._error, model, self._gateway.clock())

    def _estimate(self) -> None:
        """Most upstreams say at the end what was used, and some never: who hangs up before it has used it all the same."""
        record, outlet = self.record, self._outlet
        usage = record.usage
        if usage is not None and not record.error and None not in (usage.input_tokens, usage.output_tokens):
            return  # as nearly all say it
        asked = self._source is not None or (self._gone and record.attempts > 0)
        if record.estimated is None and asked and not record.cached and (self._caller or outlet.keeping) is not None:
            told = record.usage or (self._response.usage if self._response is not None else getattr(outlet.writer, "usage", None))
            whole = record.usage is not None and not record.error
            record.estimated = estimated_usage(self._request, self._response, record.events, told, whole=whole)

    # --- other ends

    async def _end_stopped(self) -> None:
        """Somebody asked for the stream to stop."""
        nothing: list[Event] = [StreamStart(), StreamEnd("cancelled")]
        await self._outlet.end(self._written(nothing if self._source is None else self._source.stop()))

    async def _fail(self, error: StreamError, retry_after: float | None, has_context: bool = False) -> None:
        if not has_context:
            message = hide(error.message, self._gateway.secrets())
            error = msgspec.structs.replace(error, message=f"{message} (request id {self.record.request_id})")
        self.record.failed(error)
        self._error = error
        await self._outlet.fail(error, retry_after)

    async def _fail_at_last(self) -> None:
        """The answer where a fault of ours is the reason. If even that cannot be said, the client is hung up on."""
        try:
            await self._fail(StreamglotError("a fault of the gateway itself; its log has more").as_event(), None)
        except Exception as error:
            self._gateway.say_fault(self.record.request_id, error)
            self._outlet.call.cut()

    def tick(self, now: float) -> None:
        """Called by the gateway's clock: keeps a silent stream alive and ends one that is over its time."""
        if not self._outlet.call.ended and self._interruption is None:
            self._check_times(now)
        self._outlet.tick()
        if self._tapped and len(self._tapped) > TOGETHER:
            self._collect()

    def _check_times(self, now: float) -> None:
        outlet = self._outlet
        server = self._gateway.server
        upstream = self._source.upstream if self._source is not None else None
        if upstream is not None:
            limits = upstream.timeouts
            if not outlet.busy and now - max(self.record.last_event, outlet.last_write) > limits.idle:
                self.interrupt(UpstreamTimeout(f"it was silent for {limits.idle:g} s (timeouts.idle)"))
            elif now - self.record.began > limits.total:
                self.interrupt(UpstreamTimeout(f"the answer took more than {limits.total:g} s (timeouts.total)"))
        stalled = now - server.stall_seconds
        if outlet.busy and outlet.last_write < stalled and self.record.last_event < stalled:
            call = outlet.call
            self._client_gone()
            call.cut()
        elif outlet.silent(now, server.keep_alive_seconds):
            self._gateway.spawn("keep-alive", outlet.keep_alive())


def _learns(upstream: Upstream | None) -> bool:
    """Does this upstream keep conversations itself, and tell how to go on with them?"""
    return upstream is not None and dialect(upstream.dialect).continued is not None


def _called(start: StreamStart, id: str) -> StreamStart:
    """By our own id: it is the one that the answer can be asked for by, whoever gave it."""
    return msgspec.structs.replace(start, id=id)
