"""Handles one request of a client: parse, exchange, write.

    endpoint.parse -> Exchange (engine) -> writer.feed -> call.write

Until the first event, an error is an HTTP status in the error shape of the client's dialect. After it, it is the last event.
"""

from __future__ import annotations

import asyncio

import msgspec

from ..engine.answer import ENDS
from ..engine.attempts import retry_after_of
from ..engine.exchange import Ending, Exchange
from ..engine.stats import ExchangeRecord, clean_id, estimated_usage
from ..errors import FOREIGN_ERRORS, StreamglotError, ToolCallParseError
from ..events import Event, StreamEnd, StreamError, StreamStart, Usage
from ..json_types import JsonObject
from ..messages import ReasoningPart, Request, Response, TextPart
from ..upstream.secrets import hide
from .admission import Admission, Admitted
from .endpoints import Endpoint
from .http.call import Call, ClientDisconnected, json_object
from .observe.recording import Recording
from .response_writer import ResponseWriter
from .services import GatewayServices


class RequestHandler:
    """Handles one request. ``stop`` and ``interrupt`` end the exchange from outside. The gateway's clock calls ``tick``."""

    _exchange: Exchange | None = None
    _error: StreamError | None = None

    def __init__(
        self,
        services: GatewayServices,
        admission: Admission,
        recording: Recording,
        endpoint: Endpoint,
        call: Call,
        model_in_path: str,
    ) -> None:
        given = call.headers.get("x-request-id")
        self.record = ExchangeRecord((clean_id(given) if given else "") or services.new_id(), endpoint.dialect, services.clock())
        self._services = services
        self._admission = admission
        self._recording = recording
        self._admitted = Admitted(endpoint, self.record, call.headers)
        self.record.on_wait = lambda _: recording.live.changed()
        self._response = ResponseWriter(services, self._admitted, call, self.stop)
        self._ending = Ending()
        self._model_in_path = model_in_path
        tracing = recording.tracing
        self._span = None if tracing is None else tracing.request(call.method, self._route(call.path), call.headers)

    # --- called from outside

    @property
    def error(self) -> StreamError | None:
        """The error that the client received in place of an answer."""
        return self._error

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error, for example because the gateway stops or a budget is used up."""
        if not self._response.call.ended:
            self._ending.interrupt(error)

    def stop(self) -> None:
        """Ends the answer as cancelled, with a complete final event."""
        if not self._response.call.ended:
            self._ending.stop()

    def _client_gone(self) -> None:
        if self._admitted.options.keep:
            self._response.leave()
        elif not self._response.call.ended:
            self._ending.leave()

    async def run(self) -> None:
        self._ending.own(self._response.call.task())
        if self._span is not None:
            self._span.attach()
        try:
            await self._answer()
        except FOREIGN_ERRORS as error:  # an internal error, possibly while reporting another: the client still gets an answer
            self._services.log_fault(self.record.request_id, error)
            await self._report_fault()
        finally:
            attempt = self._services.tasks.attempt  # a step that fails does not prevent the next one
            self._response.call.unwatch()
            if self._exchange is None or not self._exchange.finished:
                attempt("finish", self._finish)
            if self._exchange is not None:
                attempt("close", self._exchange.close)
            self._response.release()
            if self._span is not None:
                self._span.detach()

    def _route(self, path: str) -> str:
        """The path without the model that a client chose: a route is one of a few."""
        return path.replace(self._model_in_path, "{model}") if self._model_in_path else path

    async def _answer(self) -> None:
        """Runs the request and reports a refusal to the client."""
        try:
            try:
                await self._path()
            except asyncio.CancelledError:
                if not self._ending.caught():
                    raise
                await self._end_early()
        except ClientDisconnected:
            self._response.end_unsent()
            self.record.ending = "client_gone"
        except StreamglotError as error:
            await self._fail(error.as_event(), retry_after_of(error), error.has_context)

    async def _report_fault(self) -> None:
        """Answers after an internal error. If that fails too, cuts the connection."""
        try:
            await self._fail(StreamglotError("internal error of the gateway; its log has the details").as_event(), None)
        except FOREIGN_ERRORS as error:
            self._services.log_fault(self.record.request_id, error)
            self._response.call.cut()

    # --- request to answer

    async def _path(self) -> None:
        services, admission, admitted = self._services, self._admission, self._admitted
        response, call = self._response, self._response.call
        admitted.caller = admission.caller(call.headers, call.query("key"))
        body = json_object(await call.body(services.server.max_body_bytes, services.within(services.server.body_seconds)))
        await admission.admit(admitted, body, model_in_path=self._model_in_path, keep=call.query("keep"))
        call.watch(self._client_gone)
        async with admission.slot(admitted.caller):
            response.recorder = await admission.record(admitted)
            await admission.resume(admitted)
            request = admitted.request
            if request.stream:
                response.begin()
            if admitted.options.background and not admitted.body.get("stream"):
                await response.answer_later()
            exchange = self._exchange = admission.exchange(admitted, request, ending=self._ending, span=self._span)
            response.context = exchange.context
            await exchange.start()
            await (self._stream(exchange) if request.stream else self._whole(exchange))
            self._finish()
            await exchange.drain()

    @property
    def _gives_id(self) -> bool:
        """Whether the client can fetch the response by its id. The id must then be one that the gateway made."""
        response = self._response
        return self._admitted.endpoint.retrievable and (response.recorder is not None or response.call.remembers)

    async def _stream(self, exchange: Exchange) -> None:
        response, writer, sealer = self._response, self._response.writer, self._recording.sealer
        response_id = self._admitted.response_id
        encode = writer.feed if sealer is None and not self._always_usage else self._encode
        events = await exchange.read()
        if events is not None and self._gives_id:
            events = [msgspec.structs.replace(event, id=response_id) if type(event) is StreamStart else event for event in events]
        while events is not None:
            data = encode(events)
            if events and type(events[-1]) in ENDS:
                broken = type(events[-1]) is StreamError
                if self._ending.decided:  # the client may have stopped reading
                    await response.end(data, broken)
                else:
                    await response.write(data + writer.close(), last=True, broken=broken)
                return
            if data:
                await response.write(data)
            events = await exchange.read()
        await response.write(writer.close(), last=True, broken=True)

    def _encode(self, events: list[Event]) -> bytes:
        """The events in the client's dialect, with what the configuration adds to them."""
        if self._always_usage and self._exchange is not None and events and type(events[-1]) is StreamEnd:
            events = self._with_usage(self._exchange, events)
        if self._recording.sealer is not None:
            events = self._recording.sealer.events(events, self._admitted.endpoint.dialect)
        return self._response.writer.feed(events)

    @property
    def _always_usage(self) -> bool:
        return self._services.server.usage == "always"

    def _with_usage(self, exchange: Exchange, events: list[Event]) -> list[Event]:
        """The last events of a stream, with an estimate of the usage before the end if no upstream reported it."""
        counts = estimated_usage(exchange.request, None, self.record.events, self.record.usage, whole=True)
        if counts is None:
            return events
        usage = Usage(*(getattr(counts, name) for name in Usage.__struct_fields__))
        return [*events[:-1], usage, events[-1]]

    async def _whole(self, exchange: Exchange) -> None:
        """Answers with one body instead of a stream."""
        collected = await exchange.collect(extensions=self._admitted.extensions)
        if self._ending.stopped:
            raise _stopped()
        error = collected.error
        if error is not None and error.code != ToolCallParseError.code:
            await self._fail(error, None, has_context=True)
            return
        if error is not None:
            collected = _without_calls(collected)
        built = self._admission.whole_answer(self._admitted, exchange.request, collected, own_id=self._gives_id)
        if error is not None:
            # The text before a call that cannot be parsed is not lost.
            await self._fail(error, None, has_context=True, partial=built)
            return
        answer = msgspec.json.encode(built)
        await self._response.reply(200, answer)

    # --- ends

    def _finish(self) -> None:
        """Notifies the observers in the same step in which the client gets its last byte.

        The client may fetch its answer as soon as it has it, and the upstream may be slow to close its connection.
        """
        self._any_exchange().finish(self._error)

    def _any_exchange(self) -> Exchange:
        """The exchange; an empty one if the request ended before its own began."""
        if self._exchange is None:
            self._exchange = self._admission.exchange(self._admitted, Request(), ending=self._ending, span=self._span)
        return self._exchange

    async def _end_early(self) -> None:
        """Ends the answer where no read of the exchange could do it: before the exchange, or while the client is written to."""
        ending, response = self._ending, self._response
        if ending.gone:
            raise ClientDisconnected from None
        if response.call.ended:  # it came too late: the client has the whole answer
            return
        if ending.error is not None:
            raise ending.error from None
        if response.writer is None:
            raise _stopped() from None
        events = await self._any_exchange().read()
        await response.end(self._encode(events or []))

    async def _fail(
        self, error: StreamError, retry_after: float | None, has_context: bool = False, partial: JsonObject | None = None
    ) -> None:
        """Reports an error.

        ``partial`` is the answer before the error, for a body that has both. ``has_context``: the message already names the upstream
        and the request id and contains no secrets.
        """
        if not has_context:
            message = hide(error.message, self._services.pool.secrets())
            error = msgspec.structs.replace(error, message=f"{message} (request id {self.record.request_id})")
        self.record.failed(error)
        self._error = error
        await self._response.fail(error, retry_after, partial)

    def _budget_exceeded(self) -> bool:
        """Ends the exchange if other requests of its key have used up the budget. Returns whether it did."""
        caller, reservation, exchange = self._admitted.caller, self._admitted.reservation, self._exchange
        if caller is None or reservation is None or exchange is None or exchange.turn is None or not reservation.used_up():
            return False
        self.interrupt(caller.budget_exceeded())
        return True

    def tick(self, now: float) -> None:
        """Keeps a silent stream alive and ends one that is over its time."""
        response = self._response
        response.tick()
        if response.call.ended or self._ending.error is not None:
            return
        if self._budget_exceeded():
            return
        overdue = self._exchange.overdue(now) if self._exchange is not None else None
        if overdue is not None:
            self.interrupt(overdue)
        server = self._services.server
        stalled = now - server.stall_seconds
        if response.busy and response.last_write < stalled and self.record.last_event < stalled:
            call = response.call
            self._client_gone()
            call.cut()
        elif response.silent(now, server.keep_alive_seconds):
            self._services.tasks.spawn("keep-alive", response.keep_alive())


def _stopped() -> StreamglotError:
    """The error of a request without a stream that was stopped: its answer must not look complete."""
    return StreamglotError("the request was stopped before its answer was complete", code="cancelled", status=499)


def _without_calls(response: Response) -> Response:
    """The answer without calls: one that cannot be parsed makes it an error, and no client may run the others."""
    choices = [
        msgspec.structs.replace(
            choice, parts=[part for part in choice.parts if isinstance(part, (TextPart, ReasoningPart))], steps=[]
        )
        for choice in response.choices
    ]
    return msgspec.structs.replace(response, choices=choices)
