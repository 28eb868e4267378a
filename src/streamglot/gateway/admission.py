"""Admits requests of callers: every rule about who may ask for what is here, once, for requests, batches and forwarded requests.

    options -> model -> key -> reservation -> tools -> (slot) -> recorder -> stages -> exchange

The options are what a client says about its answer, in headers ``x-streamglot-*`` or in the object ``streamglot`` of its body.
Which of the gateway's tools a request may use depends on its body or header, its key and its route.

A ``Client`` and the batches of a program have no caller. They use the engine directly.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, get_args

from msgspec import Struct, field, structs

from ..config import ServerConfig
from ..dialects import dialect
from ..dialects.common.server_tools import Answers, ApprovalAnswer
from ..dialects.interface import FindAnswers
from ..engine.ask import AskForTurn, Passthrough, cached, resumed
from ..engine.exchange import Ending, Exchange, Upstreams
from ..engine.stats import ExchangeRecord, estimate
from ..errors import RequestError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import ReasoningField, Request, Response
from ..stages.stage import ExchangeContext, StageFactory
from ..text import matches_tool
from ..tools.hosted import EXTENSIONS, KINDS, tool_for
from ..upstream.routing.routes import MODEL_NOT_FOUND
from .approvals import resumed_answer
from .auth.access import Access
from .auth.authenticator import Caller, presented
from .auth.budget_stage import budget_stage
from .auth.budgets import Reservation, price_of
from .auth.limits import Slot
from .endpoints import Endpoint
from .observe.recording import Recording
from .retention import RetentionOptions, retention_options
from .services import GatewayServices

if TYPE_CHECKING:
    from ..engine.turn_recorder import TurnRecorder
    from .observe.tracing import RequestSpan
    from .recording import ServedTurnRecorder

FIELD: Final = "streamglot"
"""The body field for the gateway, in any dialect: ``"streamglot": {"tools": ["weather.*"]}``."""
OF_TOOLS: Final = ("tools", "activity")
"""The options in it that ``take_tool_options`` reads."""
OUTPUT_HEADER: Final = "x-streamglot-output"
REASONING_HEADER: Final = "x-streamglot-reasoning-field"
STRICT: Final = "strict"
_OUTPUTS: Final = ("rich", STRICT)
_REASONING_FIELDS: Final[tuple[str, ...]] = get_args(ReasoningField)
_HEADERS: Final = {
    "output": OUTPUT_HEADER,
    "reasoning_field": REASONING_HEADER,
    "session": "x-streamglot-session",
    "directory": "x-streamglot-directory",
}
"""Options that are headers otherwise."""
_FIELDS: Final[dict[str, type]] = {"keep": bool, "extensions": bool, "session_id": str}
"""Options that are fields of the body otherwise."""
HEADER: Final = "x-streamglot-tools"
"""The tools as a header: globs separated by commas. An empty header selects no tools."""
ACTIVITY_HEADER: Final = "x-streamglot-activity"
MAX_PATTERNS: Final = 64
"""Globs in one request. Each is compared with every tool."""
TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""The W3C trace context. The second header has no meaning without the first."""

Charge = Literal["now", "later", "paid"]
"""When the caller pays: when the request runs; ``later``, because another exchange has the answer; or it is ``paid`` for already, so
that no limit refuses it."""


class Admitted(Struct):
    """A request of a caller, with what is known about it: also when it was refused, up to the step that refused it.

    ``headers`` and ``body`` have the options where they are read. ``output`` are the writer's options that do not depend on the
    request. ``model`` is the model that is requested upstream, if the client named another one or none. ``tools`` are globs.
    ``resumed`` are suspended calls as a model's answer, and the ids of those that were approved.
    """

    endpoint: Endpoint
    record: ExchangeRecord
    headers: dict[str, str] = {}
    caller: Caller | None = None
    body: JsonObject = {}
    options: RetentionOptions = field(default_factory=RetentionOptions)
    activity: str = ""
    extensions: bool = False
    output: JsonObject = {}
    answers: list[ApprovalAnswer] = []
    request: Request = field(default_factory=Request)
    model: str = ""
    charge: Charge = "now"
    reservation: Reservation | None = None
    tools: list[str] = []
    response_id: str = ""
    recorder: TurnRecorder | None = None
    resumed: tuple[Response, frozenset[str]] | None = None


class Admission:
    """Admits requests. Everything that answers a caller goes through it."""

    def __init__(self, services: GatewayServices, access: Access, recording: Recording) -> None:
        self._services = services
        self._access = access
        self._recording = recording

    # --- the caller

    def caller(self, headers: Mapping[str, str], query_key: str = "") -> Caller | None:
        """The caller that these headers name; None if no keys are required."""
        return self._access.authenticator.admit(headers, query_key)

    async def check(self, caller: Caller | None, model: str) -> str:
        """Counts a request for this model. Returns the model that is requested; the default one if the client names none."""
        named = self._services.pool.routes.named(model)
        if caller is not None:
            await caller.check(named, self._services.clock())
        return named

    async def reserve(
        self, caller: Caller | None, model: str, input_tokens: int, output_tokens: int | None
    ) -> Reservation | None:
        """Reserves the expected usage, if the key has limits or budgets of tokens."""
        if caller is None or not caller.metered:
            return None
        candidate = self._services.pool.routes.find(model, random.random)[0]
        return await caller.reserve(input_tokens, output_tokens, price_of(candidate), self._services.clock())

    def slot(self, caller: Caller | None) -> Slot:
        """A slot within the limits of concurrent requests."""
        return self._access.slot(caller)

    @asynccontextmanager
    async def batch_slot(self, caller: Caller | None) -> AsyncIterator[None]:
        """Holds a slot for an item of a batch, within those that live requests of the key leave."""
        if caller is None:
            yield
            return
        await caller.enter_batched()
        try:
            yield
        finally:
            caller.leave_batched()

    # --- requests

    async def admit(
        self,
        admitted: Admitted,
        body: JsonObject,
        *,
        model_in_path: str = "",
        keep: str = "",
        batched: Collection[str] | None = None,
    ) -> None:
        """Decides about a request whose caller is known. Raises the reason of a refusal.

        ``keep`` is what the address says about keeping the answer. ``batched``: the request is an item of a batch, which is never
        streamed and asks no person; these fields of it are left out.
        """
        services, endpoint, record, caller = self._services, admitted.endpoint, admitted.record, admitted.caller
        pool, store, known = services.pool, self._recording.store, dialect(endpoint.dialect)
        body, headers = lift_options(endpoint, body, admitted.headers)
        if batched is not None:
            body = {name: value for name, value in body.items() if name not in batched}
        admitted.body, admitted.headers = body, headers
        admitted.options, client_body = retention_options(endpoint, body, headers, keep, store)
        options, client_body = take_tool_options(client_body, headers)
        admitted.activity = options.activity
        admitted.extensions = options.activity == EXTENSIONS or wants_extensions(body, services.server)
        admitted.output = output_options(services.server, endpoint.dialect, headers)
        if known.approval_answers is not None and batched is None:
            admitted.answers, client_body = await self._approval_answers(known.approval_answers, client_body)
        request = admitted.request = endpoint.parse(client_body, model_in_path)
        request.include_usage = request.include_usage or services.server.usage == "always"
        request.stream = request.stream and batched is None
        if self._recording.sealer is not None:
            record.unopened = self._recording.sealer.open_request(request, endpoint.dialect)
        model = record.model = pool.routes.named(request.model)
        record.stream = request.stream
        admitted.model = "" if model == request.model else model
        record.key = caller.name if caller is not None else ""
        if admitted.charge != "paid":
            await self.check(caller, model)
        self._find(endpoint, model)  # an unknown model is refused before anything is recorded
        try:
            if admitted.charge != "later":
                admitted.reservation = await self.reserve(caller, model, estimate(request), request.max_tokens)
        except RequestError:
            if admitted.charge != "paid":
                raise
        of_key = caller.tools if caller is not None else None
        admitted.tools = tools_for(options.patterns, of_key, pool.routes.tools(model))
        admitted.tools += hosted_tools(request, pool.tools.registry.config.hosted, of_key)
        admitted.response_id = f"{endpoint.id_prefix}{services.new_id()}"

    def _find(self, endpoint: Endpoint, model: str) -> None:
        """Refuses a model that no upstream serves, with the status that clients of this endpoint understand."""
        try:
            self._services.pool.routes.check(model)
        except RequestError as error:
            if error.code == MODEL_NOT_FOUND:
                error.status = endpoint.unknown_model_status
            raise

    async def _approval_answers(self, find: FindAnswers, body: JsonObject) -> Answers:
        """The client's decisions about calls of an earlier answer, and the body without them."""
        named: set[str] = set()

        def collect(id: str) -> bool:
            named.add(id)
            return False

        answers = find(body, collect)
        return find(body, (await self._recording.approvals.known(named)).__contains__) if named else answers

    async def admit_tool_call(self, admitted: Admitted) -> None:
        """Counts a call of one tool without a model."""
        if admitted.caller is not None:
            admitted.record.key = admitted.caller.name
            await admitted.caller.count(self._services.clock())

    def allow_tools(self, admitted: Admitted, patterns: list[str]) -> list[str]:
        """These globs of tools if the key may use them."""
        admitted.tools = tools_for(patterns, admitted.caller.tools if admitted.caller is not None else None, [])
        return admitted.tools

    async def record_tool_call(self, admitted: Admitted, request: Request) -> None:
        """Begins to record the turn of a call without a model, if there is a store."""
        if self._recording.recorders is not None:
            recorder = admitted.recorder = await self._recording.recorders.begin_call(request, admitted.record, admitted.headers)
            admitted.record.turn = recorder.turn_id

    async def record(self, admitted: Admitted, caller: str | None = None) -> ServedTurnRecorder | None:
        """Begins to record the turn, if there is a store. ``caller`` is the owner of a batch."""
        recorders, record, request = self._recording.recorders, admitted.record, admitted.request
        if recorders is None:
            return None
        request.stream = request.stream or (admitted.options.background and caller is None)
        headers = admitted.headers if caller is None else {}
        recorder = admitted.recorder = await recorders.begin(
            admitted.endpoint, headers, request, admitted.body, record, admitted.options, admitted.response_id, caller
        )
        record.turn = recorder.turn_id
        return recorder

    async def resume(self, admitted: Admitted) -> None:
        """Resumes the suspended calls that the request decides. This is the last step, because a call is resumed once."""
        if admitted.answers:
            admitted.resumed = await resumed_answer(self._recording.approvals, admitted.answers, admitted.record.key)

    def exchange(
        self,
        admitted: Admitted,
        request: Request,
        *,
        upstreams: Upstreams | None = None,
        ask: AskForTurn | None = None,
        stages: list[StageFactory] | None = None,
        ending: Ending | None = None,
        span: RequestSpan | None = None,
        observed: bool = True,
    ) -> Exchange:
        """The exchange of an admitted request. ``request`` is empty if there was none to send. ``upstreams`` answer it in place
        of those of the configuration, ``ask`` stands in front of them, and ``stages`` take the place of its stages. ``ending``
        ends it early. ``observed``: the observers are told of it."""
        headers, recorder, reservation = admitted.headers, admitted.recorder, admitted.reservation
        record, endpoint = admitted.record, admitted.endpoint
        context = context_of(record, headers if span is None else span.headers, admitted.tools, admitted.activity)
        context.can_ask = request.stream and dialect(endpoint.dialect).approval_answers is not None
        if admitted.resumed is not None:
            context.state["approved_calls"] = admitted.resumed[1]
        return Exchange(
            request,
            upstreams or self._services.pool,
            record=record,
            ask=self._ask(admitted) if ask is None and upstreams is None else ask,
            stages=self._stages(admitted, request) if stages is None else stages,
            observers=self._recording.observers_for(recorder, reservation, span) if observed else (),
            context=context,
            conversation=recorder,
            ending=ending,
            passthrough=Passthrough(
                self._access.authenticator.passed_key(admitted.caller, headers),
                {name: headers[name] for name in endpoint.passed if name in headers},
                context.trace,
            ),
        )

    def _ask(self, admitted: Admitted) -> AskForTurn:
        """The upstreams' own, with the cache and a call that was resumed in front of it."""
        services = self._services
        ask: AskForTurn = services.pool.ask
        if services.cache is not None:
            ask = cached(ask, services.cache, admitted.record.key or presented(admitted.headers), services.pool)
        return ask if admitted.resumed is None else resumed(ask, admitted.resumed[0])

    def _stages(self, admitted: Admitted, request: Request) -> list[StageFactory]:
        """The configured stages, preceded by the budget stage if the key has a budget."""
        stages, reservation, caller = self._services.pool.stages, admitted.reservation, admitted.caller
        if reservation is None or caller is None or not reservation.counts or admitted.charge == "paid":
            return stages
        reservation.expect(estimate(request))  # includes the history that the recorder put in front
        return [budget_stage(reservation, caller, whole=not request.stream), *stages]

    def whole_answer(self, admitted: Admitted, request: Request, collected: Response, *, own_id: bool) -> JsonObject:
        """The body of a whole answer. ``own_id``: the client can fetch the answer by its id, which is then ours."""
        endpoint, sealer = admitted.endpoint, self._recording.sealer
        collected = structs.replace(
            collected,
            id=admitted.response_id if own_id else collected.id or admitted.response_id,
            model=collected.model or request.model,
            created=collected.created or int(time.time()),
        )
        if sealer is not None:
            collected = sealer.response(collected, endpoint.dialect)
        if endpoint.build is not None:
            return endpoint.build(collected, admitted.body)
        options = {**admitted.output, **endpoint.response(request, admitted.body)}
        return dialect(endpoint.dialect).build_response(collected, **options)


def context_of(
    record: ExchangeRecord, headers: Mapping[str, str], tools: Collection[str] = (), activity: str = ""
) -> ExchangeContext:
    """What stages and observers know about a request.

    ``tools`` are globs of the gateway's tools that the request may use. ``activity`` says how the client wants to see tool runs.
    """
    known = TRACE_HEADERS[0] in headers
    trace = {name: headers[name] for name in TRACE_HEADERS if name in headers} if known else {}
    return ExchangeContext(record.request_id, record.dialect, record.key, record.model, trace, tuple(tools), activity=activity)


def lift_options(endpoint: Endpoint, body: JsonObject, headers: dict[str, str]) -> tuple[JsonObject, dict[str, str]]:
    """The body and the headers with each option of ``streamglot`` where it is read: as a header, or as a field of the body. What
    a client says in both places counts as the object says it."""
    nested = body.get(endpoint.options_in) if endpoint.options_in else None
    inner = isinstance(nested, dict) and FIELD in nested
    if not inner and FIELD not in body:
        return body, headers
    given: JsonObject = {}
    if isinstance(nested, dict) and inner:
        given |= _options(nested[FIELD], f"{endpoint.options_in}.{FIELD}")
        body = {**body, endpoint.options_in: {name: value for name, value in nested.items() if name != FIELD}}
    if FIELD in body:
        given |= _options(body[FIELD], FIELD)
    headers = {**headers, **{_HEADERS[name]: value for name, value in given.items() if name in _HEADERS}}
    fields = {name: value for name, value in given.items() if name in _FIELDS}
    of_tools = {name: value for name, value in given.items() if name in OF_TOOLS}
    return {**body, **fields, FIELD: of_tools}, headers


def _options(value: JsonValue, where: str) -> JsonObject:
    known = (*OF_TOOLS, *_HEADERS, *_FIELDS)
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise RequestError(f"{where} must be an object with {', '.join(known)}, not {excerpt(value)}", detail={"param": where})
    for name, option in value.items():
        kind = _FIELDS.get(name, str)
        if name not in OF_TOOLS and not isinstance(option, kind):
            wanted = "true or false" if kind is bool else "a text"
            raise RequestError(f"{where}.{name} must be {wanted}, not {excerpt(option)}", detail={"param": f"{where}.{name}"})
    return value


def strict_output(configured: str, headers: Mapping[str, str]) -> bool:
    """Whether an answer has only the fields of its dialect's specification. The request's header goes before the
    configuration."""
    return _chosen(OUTPUT_HEADER, headers, configured, _OUTPUTS) == STRICT


def output_options(server: ServerConfig, name: str, headers: Mapping[str, str]) -> JsonObject:
    """The options for the writer or the response builder of a dialect that depend on settings and headers."""
    options: JsonObject = {"strict": strict_output(server.output, headers)}
    field = _chosen(REASONING_HEADER, headers, server.reasoning_field, _REASONING_FIELDS)
    if dialect(name).reasoning_field:
        options["reasoning_field"] = field
    return options


def wants_extensions(body: JsonObject, server: ServerConfig) -> bool:
    """Whether a whole answer has ``extensions``. The request's field goes before the configuration."""
    return bool(body.get("extensions", server.extensions))


def _chosen(header: str, headers: Mapping[str, str], configured: str, known: Collection[str]) -> str:
    if header not in headers:
        return configured
    requested = headers[header].strip().lower()
    if requested not in known:
        raise RequestError(
            f"the header {header} must be {' or '.join(known)}, not {excerpt(requested)}", detail={"param": header}
        )
    return requested


class RequestTools(Struct):
    """The tool options of a request.

    ``patterns`` are the globs in the request; None if it has none. ``activity`` says how the client wants to see tool runs if its
    dialect has no form for them.
    """

    patterns: list[str] | None = None
    activity: str = ""


def take_tool_options(body: JsonObject, headers: Mapping[str, str]) -> tuple[RequestTools, JsonObject]:
    """The tool options of a request, and the body without them."""
    requested: JsonValue = None
    activity: JsonValue = headers.get(ACTIVITY_HEADER, "").strip().lower()
    param = ACTIVITY_HEADER if activity else f"{FIELD}.activity"
    if FIELD in body:
        options = body[FIELD]
        body = {name: value for name, value in body.items() if name != FIELD}
        unknown = set(options) - set(OF_TOOLS) if isinstance(options, dict) else set()
        if not isinstance(options, dict) or unknown:
            raise RequestError(
                f'{FIELD} must be an object with "tools" and "activity", not {excerpt(options)}', detail={"param": FIELD}
            )
        requested, activity = options.get("tools"), options.get("activity", activity)
        param = f"{FIELD}.activity" if "activity" in options else param
        if requested is not None and not (isinstance(requested, list) and all(isinstance(pattern, str) for pattern in requested)):
            raise RequestError(
                f"{FIELD}.tools must be a list of names and globs, not {excerpt(requested)}", detail={"param": FIELD}
            )
    if activity not in ("", *KINDS):
        raise RequestError(f"{param} must be {' or '.join(KINDS)}, not {excerpt(activity)}", detail={"param": param})
    if requested is None and HEADER in headers:
        requested = [pattern.strip() for pattern in headers[HEADER].split(",") if pattern.strip()]
    if requested is not None and len(requested) > MAX_PATTERNS:
        raise RequestError(
            f"a request may name at most {MAX_PATTERNS} tools and globs, not {len(requested)}", detail={"param": FIELD}
        )
    return RequestTools(requested, activity), body


def tools_for(requested: Sequence[str] | None, of_key: Sequence[str] | None, of_route: Sequence[str]) -> list[str]:
    """The globs for one exchange. A key that has a list of tools may use no others."""
    if requested is None:
        return list(of_route if of_key is None else of_key)
    if of_key is None:
        return list(requested)
    refused = [pattern for pattern in requested if not _allowed(pattern, of_key)]
    if refused:
        raise RequestError(
            f"this key may not use the tools {excerpt(refused[0])}; it may use {', '.join(of_key) or 'none'}",
            code="tool_not_allowed",
            status=403,
        )
    return list(requested)


def hosted_tools(request: Request, hosted: Mapping[str, str], of_key: Sequence[str] | None) -> list[str]:
    """The gateway's tools that replace tools hosted by a provider, as far as the key may use them."""
    found = [tool_for(tool.name, hosted) for tool in request.tools if tool.kind == "server"] if hosted else []
    return [name for name in found if name is not None and (of_key is None or _allowed(name, of_key))]


def _allowed(pattern: str, of_key: Sequence[str]) -> bool:
    """Whether a key's globs match this name or contain this very glob. Two different globs cannot be compared."""
    if any(mark in pattern for mark in "*?["):
        return pattern in of_key
    return matches_tool(pattern, of_key)
