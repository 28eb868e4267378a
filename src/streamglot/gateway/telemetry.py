"""OpenTelemetry, by the conventions for generative AI: one span a request and two histograms. All names stand here.

It is off unless ``server.telemetry`` is set and the package ``opentelemetry`` is there; where the spans go is said by the
usual variables of its SDK (``OTEL_EXPORTER_OTLP_ENDPOINT`` …).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError
from .record import Record

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


class Telemetry:
    """Notes a request when it is over: its span gets the times that the record has."""

    def __init__(self) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ImportError:
            raise ConfigError("server.telemetry needs opentelemetry: pip install 'streamglot[otel]'") from None
        self._trace = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer(SCOPE)
        meter = metrics.get_meter(SCOPE)
        self._duration = meter.create_histogram(DURATION_METRIC, "s", "How long an exchange took")
        self._first = meter.create_histogram(FIRST_METRIC, "s", "Time to the first event")
        self._tokens = meter.create_histogram(TOKEN_METRIC, "{token}", "Tokens of a request")

    def note(self, record: Record, headers: Mapping[str, str], now: float, time: float) -> None:
        """``now`` is of the clock of the record, ``time`` the same moment as the world says it."""
        common: dict[str, Any] = {OPERATION: CHAT, PROVIDER: record.upstream_dialect or "unknown", REQUEST_MODEL: record.model}
        if record.error:
            common[ERROR_TYPE] = record.error
        usage = record.usage
        counts = {"input": getattr(usage, "input_tokens", None), "output": getattr(usage, "output_tokens", None)}
        span = self._tracer.start_span(
            f"{CHAT} {record.model}",
            context=self._extract(dict(headers)),
            kind=self._trace.SpanKind.SERVER,
            start_time=int((time - (now - record.began)) * NANOSECONDS),
            attributes={
                **common,
                CLIENT_DIALECT: record.dialect,
                UPSTREAM: record.upstream,
                REQUEST_ID: record.request_id,
                FINISH_REASONS: [record.ending or "error"],
                **({INPUT_TOKENS: counts["input"]} if counts["input"] is not None else {}),
                **({OUTPUT_TOKENS: counts["output"]} if counts["output"] is not None else {}),
                **({CACHED_TOKENS: usage.cached_tokens} if getattr(usage, "cached_tokens", None) is not None else {}),
            },
        )
        if record.error:
            span.set_status(self._trace.StatusCode.ERROR, record.message[:500])
        span.end(end_time=int(time * NANOSECONDS))
        self._duration.record(now - record.began, common)
        if record.first_event:
            self._first.record(record.first_event - record.began, common)
        for kind, count in counts.items():
            if count is not None:
                self._tokens.record(count, {**common, TOKEN_TYPE: kind})
