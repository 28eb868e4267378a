"""OpenTelemetry, by the conventions for generative AI. ``semconv.py`` has the names, ``spans.py`` the spans.

It is off unless ``server.telemetry`` is set. A program that embeds the gateway and has set providers of its own keeps them;
otherwise spans and metrics go by OTLP to where the usual variables say (``OTEL_EXPORTER_OTLP_ENDPOINT`` …).

A request to an upstream carries the trace context of its own CLIENT span. Baggage is not passed on: it belongs to the client, and
upstreams are other people's servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ...errors import ConfigError
from ...json_types import JsonValue
from ...messages import Request
from ...tasks import WriteLine
from ...upstream.routes import Candidate
from . import semconv
from .instruments import Instruments
from .spans import MESSAGE_CHARS, AttemptSpan, RequestSpan, operation_of, request_attributes, start_attributes, tool_span

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from ...tools.questions import RunTool


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
