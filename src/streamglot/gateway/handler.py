"""Handles one request of a client: parse, exchange, write.

    endpoint.parse -> Exchange (engine) -> writer.feed -> call.write

Until the first event, an error is an HTTP status in the error shape of the client's dialect. After it, it is the last event.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ..dialects import dialect
from ..dialects.approval import Answers, ApprovalAnswer
from ..dialects.interface import FindAnswers
from ..engine.cache import CachingPool
from ..engine.exchange import Exchange, Passthrough, Upstreams
from ..engine.record import ExchangeRecord, clean_id
from ..engine.resumed import ResumedPool
from ..engine.tokens import estimate, estimated_usage
from ..engine.upstream_request import retry_after_of
from ..engine.upstream_stream import ENDS
from ..errors import FOREIGN_ERRORS, RequestError, StreamglotError, ToolCallParseError
from ..events import Event, StreamEnd, StreamError, StreamStart, Usage
from ..json_types import JsonObject
from ..messages import ReasoningPart, Request, Response, TextPart
from ..stages.stage import ExchangeContext, StageFactory
from ..tools.activity import EXTENSIONS
from ..upstream.routes import MODEL_NOT_FOUND, Candidate
from ..upstream.secrets import hide
from .auth.access import Access
from .auth.authenticator import Caller, presented
from .auth.budget_stage import budget_stage
from .auth.budgets import Reservation, price_of
from .endpoints import Endpoint
from .http.call import Call, ClientDisconnected, json_object
from .observe.recording import Recording
from .request_options import lift_options, output_options, wants_extensions
from .response_writer import ResponseWriter
from .retention import RetentionOptions, retention_options
from .services import GatewayServices
from .suspended_calls import resumed_answer
from .tool_options import hosted_tools, take_tool_options, tools_for

if TYPE_CHECKING:
    from .recording import TurnRecorders

TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""The W3C trace context. The second header has no meaning without the first."""


class RequestHandler:
    """Handles one request. ``stop`` and ``interrupt`` end the exchange from outside. The gateway's clock calls ``tick``."""

    _caller: Caller | None = None
    _exchange: Exchange | None = None
    _reservation: Reservation | None = None
    _activity = ""
    _error: StreamError | None = None
    _resumed: tuple[Response, frozenset[str]] | None = None
    _gone = False
    _stopped = False
    _interruption: StreamglotError | None = None
    _task: asyncio.Task[object] | None = None

    def __init__(
        self,
        services: GatewayServices,
        access: Access,
        recording: Recording,
        endpoint: Endpoint,
        call: Call,
        model_in_path: str,
    ) -> None:
        given = call.headers.get("x-request-id")
        self.record = ExchangeRecord((clean_id(given) if given else "") or services.new_id(), endpoint.dialect, services.clock())
        self._services = services
        self._access = access
        self._recording = recording
        self._endpoint = endpoint
        self._dialect = dialect(endpoint.dialect)
        self.record.on_wait = lambda _: recording.live.changed()
        self._response = ResponseWriter(services, endpoint, call, self.record, self.stop)
        self._model_in_path = model_in_path
        self._body: JsonObject = {}
        self._options = RetentionOptions()
        self._tools: list[str] = []
        tracing = recording.tracing
        self._span = None if tracing is None else tracing.request(call.method, self._route(call.path), call.headers)

    # --- called from outside

    @property
    def error(self) -> StreamError | None:
        """The error that the client received in place of an answer."""
        return self._error

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error, for example because the gateway stops or a budget is used up."""
        if self._interruption is not None or self._response.call.ended:
            return
        self._interruption = error
        if self._exchange is not None and self._exchange.reading:
            self._exchange.interrupt(error)
        elif self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Ends the stream as cancelled, with a complete final event."""
        if self._task is not None and not self._stopped and not self._response.call.ended:
            self._stopped = True
            self._task.cancel()

    def _client_gone(self) -> None:
        if self._options.keep:
            self._response.leave()
        elif self._task is not None and not self._response.call.ended and not self._gone:
            self._gone = True
            self._task.cancel()

    async def run(self) -> None:
        self._task = self._response.call.task()
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
                if not self._cancelled_by_us():
                    raise
                if self._stopped:
                    await self._end_stopped()
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

    def _cancelled_by_us(self) -> bool:
        """Returns whether the gateway cancelled the request. If so, undoes the cancellation and raises the error that caused
        it, if there is one."""
        if not (self._gone or self._stopped or self._interruption is not None):
            return False
        if self._task is not None:
            self._task.uncancel()
        if self._gone:
            raise ClientDisconnected from None
        if self._interruption is not None and not self._stopped and not self._response.call.ended:
            raise self._interruption from None
        return True  # also if the cancellation came too late, and the client has the whole answer

    # --- request to answer

    async def _path(self) -> None:
        services, access, recording = self._services, self._access, self._recording
        response, call = self._response, self._response.call
        caller = self._caller = response.caller = access.authenticator.admit(call.headers, call.query("key"))
        body = json_object(await call.body(services.server.max_body_bytes, services.within(services.server.body_seconds)))
        body, call.headers = lift_options(self._endpoint, body, call.headers)
        self._body = body
        self._options, asked = retention_options(self._endpoint, call, body, recording.store)
        options, asked = take_tool_options(asked, call.headers)
        self._activity = options.activity
        response.options = output_options(services.server, self._endpoint.dialect, call.headers)
        answers: list[ApprovalAnswer] = []
        find_answers = self._dialect.approval_answers
        if find_answers is not None:
            answers, asked = await self._approval_answers(find_answers, asked)
        request = self._endpoint.parse(asked, self._model_in_path)
        request.include_usage = request.include_usage or self._always_usage
        if recording.sealer is not None:
            self.record.unopened = recording.sealer.open_request(request, self._endpoint.dialect)
        model = self.record.model = services.pool.routes.named(request.model)
        self.record.stream = request.stream
        if model != request.model:
            response.model = model
        if caller is not None:
            self.record.key = caller.name
            caller.check(model, services.clock())
        candidates = self._candidates(model)  # an unknown model is refused before anything is recorded
        if caller is not None and caller.metered:
            self._reservation = caller.reserve(estimate(request), request.max_tokens, price_of(candidates[0]), services.clock())
        of_key = caller.tools if caller is not None else None
        self._tools = tools_for(options.patterns, of_key, services.pool.routes.tools(model))
        self._tools += hosted_tools(request, services.pool.tools.registry.config.hosted, of_key)
        call.watch(self._client_gone)
        async with access.slot(caller):
            response_id = f"{self._endpoint.id_prefix}{services.new_id()}"
            if recording.recorders is not None:
                await self._record_turn(recording.recorders, request, body, response_id)
            if answers:  # last, because a call is resumed once
                self._resumed = await resumed_answer(recording.approvals, answers, self.record.key)
            if self._reservation is not None:
                self._reservation.expect(estimate(request))  # includes the history that the recorder put in front
            if request.stream:
                response.begin(request, body, response_id)
            if self._options.background and not body.get("stream"):
                await response.answer_later()
            exchange = self._exchange = self._make_exchange(request)
            response.context = exchange.context
            await exchange.start()
            await (self._stream(exchange, response_id) if request.stream else self._whole(exchange, response_id))
            self._finish()
            await exchange.drain()

    def _candidates(self, model: str) -> list[Candidate]:
        try:
            return self._services.pool.routes.find(model, random.random)
        except RequestError as error:
            if error.code == MODEL_NOT_FOUND:
                error.status = self._endpoint.unknown_model_status
            raise

    async def _record_turn(self, recorders: TurnRecorders, request: Request, body: JsonObject, response_id: str) -> None:
        """Begins to record the turn."""
        request.stream = request.stream or self._options.background
        recorder = self._response.recorder = await recorders.begin(
            self._endpoint, self._response.call, request, body, self.record, self._options, response_id
        )
        self.record.turn = recorder.turn_id

    async def _approval_answers(self, find: FindAnswers, body: JsonObject) -> Answers:
        """Returns the client's decisions about calls of an earlier answer, and the body without them."""
        named: set[str] = set()

        def collect(id: str) -> bool:
            named.add(id)
            return False

        answers = find(body, collect)
        return find(body, (await self._recording.approvals.known(named)).__contains__) if named else answers

    def _make_exchange(self, request: Request) -> Exchange:
        services, headers, recorder = self._services, self._response.call.headers, self._response.recorder
        context = context_of(self.record, headers if self._span is None else self._span.headers, self._tools, self._activity)
        context.can_ask = request.stream and self._dialect.approval_answers is not None
        pool: Upstreams = services.pool
        if services.cache is not None:
            pool = CachingPool(services.pool, services.cache, self.record.key or presented(headers))
        if self._resumed is not None:
            response, context.state["approved_calls"] = self._resumed
            pool = ResumedPool(pool, response)
        return Exchange(
            request,
            pool,
            record=self.record,
            stages=self._stages(request),
            observers=self._recording.observers_for(recorder, self._reservation, self._span),
            context=context,
            conversation=recorder,
            passthrough=Passthrough(
                self._access.authenticator.passed_key(self._caller, headers),
                {name: headers[name] for name in self._endpoint.passed if name in headers},
                context.trace,
            ),
        )

    def _stages(self, request: Request) -> list[StageFactory]:
        """Returns the configured stages, preceded by the budget stage if the key has a budget."""
        stages, reservation, caller = self._services.pool.stages, self._reservation, self._caller
        if reservation is None or caller is None or not reservation.counts:
            return stages
        return [budget_stage(reservation, caller, whole=not request.stream), *stages]

    @property
    def _gives_id(self) -> bool:
        """Returns whether the client can fetch the response by its id. The id must then be one that the gateway made."""
        response = self._response
        return self._endpoint.retrievable and (response.recorder is not None or response.call.remembers)

    async def _stream(self, exchange: Exchange, response_id: str) -> None:
        response, writer, sealer = self._response, self._response.writer, self._recording.sealer
        always_usage = self._always_usage
        events = await exchange.read()
        if events is not None and self._gives_id:
            events = [msgspec.structs.replace(event, id=response_id) if type(event) is StreamStart else event for event in events]
        while events is not None:
            if always_usage and events and type(events[-1]) is StreamEnd:
                events = self._with_usage(exchange, events)
            if sealer is not None:
                events = sealer.events(events, self._endpoint.dialect)
            data = writer.feed(events)
            if events and type(events[-1]) in ENDS:
                await response.write(data + writer.close(), last=True, broken=type(events[-1]) is StreamError)
                return
            if data:
                await response.write(data)
            events = await exchange.read()
        await response.write(writer.close(), last=True, broken=True)

    @property
    def _always_usage(self) -> bool:
        return self._services.server.usage == "always"

    def _with_usage(self, exchange: Exchange, events: list[Event]) -> list[Event]:
        """Returns the last events of a stream, with an estimate of the usage before the end if no upstream reported it."""
        counts = estimated_usage(exchange.request, None, self.record.events, self.record.usage, whole=True)
        if counts is None:
            return events
        usage = Usage(*(getattr(counts, name) for name in Usage.__struct_fields__))
        return [*events[:-1], usage, events[-1]]

    async def _whole(self, exchange: Exchange, response_id: str) -> None:
        """Answers with one body instead of a stream."""
        collected = await exchange.collect(
            extensions=self._activity == EXTENSIONS or wants_extensions(self._body, self._services.server)
        )
        error = collected.error
        if error is not None and error.code != ToolCallParseError.code:
            await self._fail(error, None, has_context=True)
            return
        if error is not None:
            collected = _without_calls(collected)
        collected = msgspec.structs.replace(
            collected,
            id=response_id if self._gives_id else collected.id or response_id,
            model=collected.model or exchange.request.model,
            created=collected.created or int(time.time()),
        )
        endpoint, sealer = self._endpoint, self._recording.sealer
        if sealer is not None:
            collected = sealer.response(collected, endpoint.dialect)
        if endpoint.build is not None:
            built = endpoint.build(collected, self._body)
        else:
            options = {**self._response.options, **endpoint.response(exchange.request, self._body)}
            built = self._dialect.build_response(collected, **options)
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
        if self._exchange is None:
            self._exchange = self._make_exchange(Request())
        if self._error is not None:
            self._exchange.fail(self._error)
        self._exchange.finish()

    async def _end_stopped(self) -> None:
        """Ends the answer after ``stop``."""
        nothing: list[Event] = [StreamStart(), StreamEnd("cancelled")]
        events = nothing if self._exchange is None else self._exchange.end_now()
        await self._response.end(self._response.writer.feed(events))

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
        caller, reservation, exchange = self._caller, self._reservation, self._exchange
        if caller is None or reservation is None or exchange is None or exchange.turn is None or not reservation.used_up():
            return False
        self.interrupt(caller.budget_exceeded())
        return True

    def tick(self, now: float) -> None:
        """Keeps a silent stream alive and ends one that is over its time."""
        response = self._response
        response.tick()
        if response.call.ended or self._interruption is not None:
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


def context_of(
    record: ExchangeRecord, headers: Mapping[str, str], tools: Sequence[str] = (), activity: str = ""
) -> ExchangeContext:
    """Returns what stages and observers know about a request.

    ``tools`` are globs of the gateway's tools that the request may use. ``activity`` says how the client wants to see tool runs.
    """
    known = TRACE_HEADERS[0] in headers
    trace = {name: headers[name] for name in TRACE_HEADERS if name in headers} if known else {}
    return ExchangeContext(record.request_id, record.dialect, record.key, record.model, trace, tools, activity=activity)


def _without_calls(response: Response) -> Response:
    """The answer without calls: one that cannot be parsed makes it an error, and no client may run the others."""
    choices = [
        msgspec.structs.replace(
            choice, parts=[part for part in choice.parts if isinstance(part, (TextPart, ReasoningPart))], steps=[]
        )
        for choice in response.choices
    ]
    return msgspec.structs.replace(response, choices=choices)
