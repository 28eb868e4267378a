"""OpenTelemetry, by the conventions for generative AI, whose names are in ``semconv``.

It is off unless ``server.telemetry`` is set. A program that embeds the gateway and has set providers of its own keeps them;
otherwise spans and metrics go by OTLP to where the usual variables say (``OTEL_EXPORTER_OTLP_ENDPOINT`` …).

A request has these spans: SERVER for the client's request, CLIENT for each attempt at an upstream, INTERNAL for each tool call.
Only the CLIENT spans have token counts: backends add up the counts of all spans. A request to an upstream carries the trace
context of its own CLIENT span. Baggage is not passed on: it belongs to the client, and upstreams are other people's servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from ...engine.observer import ExchangeResult, Observer
from ...engine.stats import error_kind
from ...errors import ConfigError, StreamglotError
from ...events import Event, StreamEnd, StreamError, StreamStart, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import Request
from ...tasks import WriteLine
from ...tools.mcp.source import McpTool
from ...upstream import Upstream
from ...upstream.providers import convention_name, operation_name
from ...upstream.routing.routes import Candidate
from . import semconv
from .semconv import Instruments

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from ...tools.questions import RunTool

Attributes = JsonObject

MESSAGE_CHARS: Final = 500
"""Characters of an error's message that a span keeps."""
CANCELLED: Final = "cancelled"
_NOTED: Final = frozenset((StreamStart, Usage, StreamEnd, StreamError))
_FINISH_REASONS: Final = {"end": "stop", "stop_sequence": "stop", "tool_calls": "tool_call"}
"""Our stop reasons that the conventions spell otherwise."""
_PORTS: Final = {"http": 80, "https": 443}


class _Provider(Protocol):
    """A provider of the SDK."""

    def force_flush(self) -> object: ...


class Tracing:
    """Starts the spans. The span of the request is current in its task, so attempts and tool calls find their parent."""

    clock = staticmethod(time.monotonic)

    def __init__(self, environment: Mapping[str, str] | None = None, log: WriteLine | None = None) -> None:
        try:
            from opentelemetry import context, metrics, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigError("server.telemetry needs opentelemetry: pip install 'streamglot[otel]'") from None
        self._providers: list[_Provider] = []
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._providers = _exported()
        self.names = semconv.names_for(os.environ if environment is None else environment)
        self.instruments = Instruments(metrics.get_meter(semconv.SCOPE), self.names)
        self._trace = trace
        self._context = context
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer(semconv.SCOPE)
        self._log = log
        self._provider_of: dict[str, str] = {}

    def close(self) -> None:
        """Sends what has not been sent."""
        for provider in self._providers:
            provider.force_flush()

    # --- spans

    def request(self, method: str, route: str, headers: Mapping[str, str], operation: str = semconv.CHAT) -> RequestSpan:
        """The span of a client's request, which continues the client's own trace."""
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._propagator.extract(dict(headers)),
            kind=self._trace.SpanKind.SERVER,
            attributes={semconv.HTTP_METHOD: method, semconv.HTTP_ROUTE: route},
        )
        return RequestSpan(self, span, operation)

    def attempt(
        self,
        candidate: Candidate,
        request: Request,
        operation: str = "",
        parent: RequestSpan | None = None,
        *,
        session: str = "",
    ) -> AttemptSpan:
        """The span of one attempt. Its parent is the current span, unless ``parent`` is given."""
        upstream = candidate.upstream
        operation = operation or operation_of(upstream)
        common = start_attributes(upstream, candidate.model, operation)
        self._provider_of[upstream.name] = common[semconv.PROVIDER]
        attributes = {**common, **request_attributes(candidate, request, self.names)}
        if session:
            attributes[semconv.CONVERSATION_ID] = session
        kind = "CLIENT" if semconv.SERVER_ADDRESS in common else "INTERNAL"  # an upstream in this process
        span = self.start_span(f"{operation} {candidate.model}", kind, attributes, None if parent is None else parent.context)
        return AttemptSpan(self, span, common, operation, request.stream)

    def tool(self, question: RunTool) -> AbstractContextManager[Mapping[str, str]]:
        return tool_span(self, question)

    def start_span(self, name: str, kind: str, attributes: Mapping[str, JsonValue], context: Context | None = None) -> Span:
        """``context`` has the parent; without it that is the current span."""
        return self._tracer.start_span(name, context, self._trace.SpanKind[kind], dict(attributes))

    # --- what spans use

    def context_of(self, span: Span) -> Context:
        """The context in which this span is the current one."""
        return self._trace.set_span_in_context(span)

    def headers_of(self, span: Span) -> dict[str, str]:
        """The trace context of a span, as a request carries it."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self.context_of(span))
        return headers

    def attach(self, span: Span) -> Token[Context]:
        """Makes a span the current one. Returns what ``detach`` needs."""
        return self._context.attach(self.context_of(span))

    def detach(self, token: Token[Context]) -> None:
        self._context.detach(token)

    def mark_failed(self, span: Span, error_type: str, message: str) -> None:
        span.set_attribute(semconv.ERROR_TYPE, error_type or semconv.OTHER_ERROR)
        span.set_status(self._trace.StatusCode.ERROR, message[:MESSAGE_CHARS])

    def provider_of(self, upstream: str) -> str:
        """The provider behind an upstream that was asked; our own name for an answer that no upstream gave."""
        return self._provider_of.get(upstream, semconv.SCOPE)

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs code in which a foreign span processor may fail. The failure is logged, and the stream continues."""
        try:
            work()
        except Exception as error:
            if self._log is not None:
                self._log({"event": "tracing_failed", "message": f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]})


def _exported() -> list[_Provider]:
    """Providers that export over OTLP, set for the whole process."""
    from opentelemetry import metrics, trace

    try:
        metric_exporter = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        span_exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        sdk_metrics = import_module("opentelemetry.sdk.metrics")
        sdk_metrics_export = import_module("opentelemetry.sdk.metrics.export")
        sdk_resources = import_module("opentelemetry.sdk.resources")
        sdk_trace = import_module("opentelemetry.sdk.trace")
        sdk_trace_export = import_module("opentelemetry.sdk.trace.export")
    except ImportError as error:
        raise ConfigError(
            f"server.telemetry needs {error.name}: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from None
    resource = sdk_resources.Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", semconv.SCOPE)})
    tracers = sdk_trace.TracerProvider(resource=resource)
    tracers.add_span_processor(sdk_trace_export.BatchSpanProcessor(span_exporter.OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    reader = sdk_metrics_export.PeriodicExportingMetricReader(metric_exporter.OTLPMetricExporter())
    meters = sdk_metrics.MeterProvider([reader], resource=resource)
    metrics.set_meter_provider(meters)
    return [tracers, meters]


class AttemptSpan:
    """The CLIENT span of one attempt. ``headers`` are its trace context. For a chunk it does no more than read the clock, count,
    and look for the few events that it needs."""

    def __init__(self, tracing: Tracing, span: Span, attributes: Attributes, operation: str, streams: bool) -> None:
        self.headers: Mapping[str, str] = tracing.headers_of(span)
        self._tracing = tracing
        self._span = span
        self._metric_attributes = attributes
        self._inference = operation != semconv.EMBEDDINGS
        self._streams = streams
        self._clock: Callable[[], float] = tracing.clock
        self._began = self._clock()
        self._first = self._last = 0.0
        self._chunks = 0
        self._usage: Usage | None = None
        self._ended = False

    def seen(self, events: list[Event]) -> None:
        if not events or self._ended:
            return
        now = self._last = self._clock()
        if not self._chunks:
            self._first = now
        self._chunks += 1
        if not _NOTED.isdisjoint(map(type, events)):
            self._note(events)

    def _note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Usage):
                self._usage = event
            elif isinstance(event, StreamStart):
                self._identify(event)
            elif isinstance(event, StreamEnd):
                self._end(_FINISH_REASONS.get(event.reason, event.reason))
            elif isinstance(event, StreamError):
                self._end("error", error_kind(event), event.message)

    def _identify(self, start: StreamStart) -> None:
        if start.id:
            self._span.set_attribute(semconv.RESPONSE_ID, start.id)
        if start.model:
            self._span.set_attribute(semconv.RESPONSE_MODEL, start.model)
            self._metric_attributes[semconv.RESPONSE_MODEL] = start.model

    def failed(self, error: BaseException) -> None:
        if isinstance(error, StreamglotError):
            event = error.as_event()
            self._end("", error_kind(event), event.message)
        else:
            self._end("", CANCELLED if not isinstance(error, Exception) else type(error).__name__)

    def close(self) -> None:
        self._end("", CANCELLED)

    def used(self, usage: Usage) -> None:
        """Ends the attempt of a request that is answered whole and has no events."""
        self._usage = usage
        self._end("")

    def _end(self, finish_reason: str, error_type: str = "", message: str = "") -> None:
        if not self._ended:
            self._ended = True
            self._tracing.guarded(lambda: self._finish(finish_reason, error_type, message))

    def _finish(self, finish_reason: str, error_type: str, message: str) -> None:
        span, names = self._span, self._tracing.names
        seconds = self._clock() - self._began
        if finish_reason:
            span.set_attribute(semconv.FINISH_REASONS, [finish_reason])
        usage = _usage_attributes(self._usage, names.cache_write_tokens)
        span.set_attributes(usage)
        first = self._first - self._began if self._chunks and self._streams else None
        if first is not None:
            span.set_attribute(semconv.TIME_TO_FIRST_CHUNK, first)
        if error_type:
            self._metric_attributes[semconv.ERROR_TYPE] = error_type
            self._tracing.mark_failed(span, error_type, message)
        span.end()
        gaps = self._chunks - 1
        per_chunk = (self._last - self._first) / gaps if first is not None and gaps > 0 else None
        self._tracing.instruments.attempt(self._metric_attributes, usage, seconds, first, per_chunk, self._inference)


class RequestSpan(Observer):
    """The SERVER span of one request. The request's task makes it the current span with ``attach``, and restores the previous
    one with ``detach``."""

    def __init__(self, tracing: Tracing, span: Span, operation: str) -> None:
        self.headers: Mapping[str, str] = tracing.headers_of(span)
        self._tracing = tracing
        self._span = span
        self.context = tracing.context_of(span)
        self._operation = operation
        self._token: Token[Context] | None = None

    def attach(self) -> None:
        self._token = self._tracing.attach(self._span)

    def detach(self) -> None:
        if self._token is not None:
            self._tracing.detach(self._token)
            self._token = None

    def finished(self, result: ExchangeResult) -> None:
        record, span = result.record, self._span
        provider = self._tracing.provider_of(record.upstream)
        common: Attributes = {
            semconv.OPERATION: self._operation,
            semconv.PROVIDER: provider,
            semconv.REQUEST_MODEL: record.model,
        }
        span.set_attributes(
            {
                **common,
                semconv.REQUEST_STREAM: record.stream,
                semconv.CLIENT_DIALECT: record.dialect,
                semconv.UPSTREAM: record.upstream,
                semconv.REQUEST_ID: record.request_id,
                semconv.ATTEMPTS: record.attempts,
                semconv.CACHED: record.cached,
                semconv.ENDING: record.ending or "error",
                semconv.HTTP_STATUS: 200 if record.stream and record.first_event else record.status,
            }
        )
        if record.session:
            span.set_attribute(semconv.CONVERSATION_ID, record.session)
        first = record.first_event - record.began if record.first_event else None
        if first is not None and record.stream:
            span.set_attribute(semconv.TIME_TO_FIRST_CHUNK, first)
        if record.error:
            common[semconv.ERROR_TYPE] = record.error_kind
            self._tracing.mark_failed(span, record.error_kind, record.message)
        span.end()
        tokens = record.usage.output_tokens if record.usage is not None else None
        per_token = None
        if tokens is not None and tokens > 1 and record.reads > 1 and not record.error:
            per_token = (record.last_event - record.first_event) / (tokens - 1)
        self._tracing.instruments.request(common, result.seconds, first, per_token)


@contextmanager
def tool_span(tracing: Tracing, question: RunTool) -> Iterator[Mapping[str, str]]:
    """Runs a tool call in a span of its own and yields its trace context."""
    tool, call = question.tool, question.call
    span = tracing.start_span(
        f"{semconv.EXECUTE_TOOL} {tool.name}",
        "INTERNAL",
        {
            semconv.OPERATION: semconv.EXECUTE_TOOL,
            semconv.TOOL_NAME: tool.name,
            semconv.TOOL_TYPE: semconv.FUNCTION,
            **({semconv.MCP_METHOD: semconv.TOOLS_CALL} if isinstance(tool, McpTool) else {}),
            **({semconv.TOOL_CALL_ID: call.call_id} if call.call_id else {}),
            **({semconv.TOOL_DESCRIPTION: tool.description} if tool.description else {}),
        },
    )
    metric_attributes: Attributes = {semconv.TOOL_NAME: tool.name}
    token, began = tracing.attach(span), tracing.clock()
    try:
        yield tracing.headers_of(span)
    except BaseException as error:
        kind = type(error).__name__ if isinstance(error, Exception) else CANCELLED
        metric_attributes[semconv.ERROR_TYPE] = kind
        tracing.mark_failed(span, kind, str(error))
        raise
    finally:
        tracing.detach(token)
        span.end()
        tracing.instruments.tool(metric_attributes, tracing.clock() - began)


def start_attributes(upstream: Upstream, model: str, operation: str) -> Attributes:
    """The attributes that a CLIENT span needs at its start, because samplers use them. Metrics have them too."""
    place = urlsplit(upstream.base_url)
    attributes: Attributes = {
        semconv.OPERATION: operation,
        semconv.PROVIDER: convention_name(upstream),
        semconv.REQUEST_MODEL: model,
    }
    if place.hostname:
        attributes[semconv.SERVER_ADDRESS] = place.hostname
        attributes[semconv.SERVER_PORT] = place.port or _PORTS.get(place.scheme, 443)
    return attributes


def request_attributes(candidate: Candidate, request: Request, names: semconv.Names) -> Attributes:
    """The parameters that the client set."""
    count = float if names is semconv.RELEASED else int
    given: Attributes = {
        semconv.UPSTREAM: candidate.upstream.name,
        semconv.REQUEST_STREAM: request.stream,
        semconv.MAX_TOKENS: request.max_tokens,
        semconv.TEMPERATURE: request.temperature,
        semconv.TOP_P: request.top_p,
        semconv.TOP_K: None if request.top_k is None else count(request.top_k),
        semconv.SEED: request.seed,
        semconv.FREQUENCY_PENALTY: request.frequency_penalty,
        semconv.PRESENCE_PENALTY: request.presence_penalty,
        semconv.STOP_SEQUENCES: request.stop or None,
        semconv.CHOICE_COUNT: request.n if request.n not in (None, 1) else None,
        semconv.OUTPUT_TYPE: _output_type(request),
    }
    return {name: value for name, value in given.items() if value is not None}


def _output_type(request: Request) -> str | None:
    if request.output is None:
        return None
    return "text" if request.output.kind == "text" else "json"


def _usage_attributes(usage: Usage | None, cache_write: str) -> dict[str, int]:
    """The counts that are known."""
    if usage is None:
        return {}
    counts = {
        semconv.INPUT_TOKENS: usage.input_tokens,
        semconv.OUTPUT_TOKENS: usage.output_tokens,
        semconv.CACHE_READ_TOKENS: usage.cached_tokens,
        cache_write: usage.cache_write_tokens,
        semconv.REASONING_TOKENS: usage.reasoning_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def operation_of(upstream: Upstream) -> str:
    return operation_name(upstream.dialect)
