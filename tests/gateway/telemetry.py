"""OpenTelemetry providers that keep everything in memory. A process has one set of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamglot.gateway.observe.semconv import SCOPE


class Telemetry:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([self._reader]))
        assert trace.get_tracer_provider() is tracers, "another test has set providers"

    def spans(self) -> list[ReadableSpan]:
        """The finished spans of the gateway, in the order of their ends."""
        found = self.exporter.get_finished_spans()
        return [span for span in found if (scope := span.instrumentation_scope) is not None and scope.name == SCOPE]

    def points(self, metric: str) -> list[Any]:
        """All points of a metric, of all gateways of this process."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else [])
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@cache
def telemetry() -> Telemetry:
    return Telemetry()
