"""OpenTelemetry by the semantic conventions for generative AI: one span per request and three histograms. All names are here.

It is off unless ``server.telemetry`` is set. A program that embeds the gateway and has set its own providers keeps them.
Otherwise spans and metrics go over OTLP to the endpoint in the usual variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` …).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from ...engine.record import ExchangeRecord
from ...errors import ConfigError

SCOPE: Final = "streamglot"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"
DURATION_METRIC: Final = "gen_ai.client.operation.duration"
TOKEN_METRIC: Final = "gen_ai.client.token.usage"
FIRST_METRIC: Final = "gen_ai.server.time_to_first_token"
CLIENT_DIALECT: Final = "streamglot.client.dialect"
UPSTREAM: Final = "streamglot.upstream"
REQUEST_ID: Final = "streamglot.request.id"
NANOSECONDS: Final = 1_000_000_000
CHAT: Final = "chat"
MODELS: Final = 500
"""Model names that metrics distinguish. Clients choose the names, and each would become another time series."""
OTHER_MODELS: Final = "other"


class Tracing:
    """Reports a request when it is over. Its span gets the times in the record."""

    def __init__(self) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ImportError:
            raise ConfigError("server.telemetry needs opentelemetry: pip install 'streamglot[otel]'") from None
        self._models: set[str] = set()
        self._providers: list[Any] = []
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._providers = _exported(trace, metrics)
        self._trace = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer(SCOPE)
        meter = metrics.get_meter(SCOPE)
        self._duration = meter.create_histogram(DURATION_METRIC, "s", "How long an exchange took")
        self._first = meter.create_histogram(FIRST_METRIC, "s", "Time to the first event")
        self._tokens = meter.create_histogram(TOKEN_METRIC, "{token}", "Tokens of a request")

    def close(self) -> None:
        """Sends what has not been sent."""
        for provider in self._providers:
            provider.force_flush()

    def note(self, record: ExchangeRecord, headers: Mapping[str, str], now: float, time: float) -> None:
        """Reports a request. ``now`` is from the record's clock, ``time`` is the same moment in seconds since 1970."""
        common: dict[str, Any] = {OPERATION: CHAT, PROVIDER: record.upstream_dialect or "unknown"}
        if record.error:
            common[ERROR_TYPE] = record.error_kind
        usage = record.usage
        counts = {"input": getattr(usage, "input_tokens", None), "output": getattr(usage, "output_tokens", None)}
        span = self._tracer.start_span(
            f"{CHAT} {record.model}",
            context=self._extract(dict(headers)),
            kind=self._trace.SpanKind.SERVER,
            start_time=int((time - (now - record.began)) * NANOSECONDS),
            attributes={
                **common,
                REQUEST_MODEL: record.model,
                CLIENT_DIALECT: record.dialect,
                UPSTREAM: record.upstream,
                REQUEST_ID: record.request_id,
                FINISH_REASONS: [record.ending or "error"],
                **({INPUT_TOKENS: counts["input"]} if counts["input"] is not None else {}),
                **({OUTPUT_TOKENS: counts["output"]} if counts["output"] is not None else {}),
                **({CACHED_TOKENS: usage.cached_tokens} if usage is not None and usage.cached_tokens is not None else {}),
            },
        )
        if record.error:
            span.set_status(self._trace.StatusCode.ERROR, record.message[:500])
        span.end(end_time=int(time * NANOSECONDS))
        common[REQUEST_MODEL] = self._known_model(record.model)
        self._duration.record(now - record.began, common)
        if record.first_event:
            self._first.record(record.first_event - record.began, common)
        for kind, count in counts.items():
            if count is not None:
                self._tokens.record(count, {**common, TOKEN_TYPE: kind})

    def _known_model(self, model: str) -> str:
        if len(self._models) < MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER_MODELS


def _exported(trace: Any, metrics: Any) -> list[Any]:
    """Returns providers that export over OTLP, set for the whole process."""
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
    resource = sdk_resources.Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SCOPE)})
    tracers = sdk_trace.TracerProvider(resource=resource)
    tracers.add_span_processor(sdk_trace_export.BatchSpanProcessor(span_exporter.OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    reader = sdk_metrics_export.PeriodicExportingMetricReader(metric_exporter.OTLPMetricExporter())
    meters = sdk_metrics.MeterProvider([reader], resource=resource)
    metrics.set_meter_provider(meters)
    return [tracers, meters]
