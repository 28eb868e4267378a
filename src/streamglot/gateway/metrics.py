"""Prometheus metrics: every name in one place."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .record import Record

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "streamglot_requests", "Requests by client dialect, upstream and ending", ["dialect", "upstream", "ending"], registry=self.registry
        )
        self._errors = Counter("streamglot_errors", "Errors by code", ["code", "upstream"], registry=self.registry)
        self._tokens = Counter("streamglot_tokens", "Tokens by direction", ["upstream", "direction"], registry=self.registry)
        self._first = Histogram(
            "streamglot_first_event_seconds", "Time to the first event", ["upstream"], buckets=SECONDS, registry=self.registry
        )
        self._gap = Histogram(
            "streamglot_longest_gap_seconds", "Longest gap between two reads of a stream", ["upstream"], buckets=SECONDS, registry=self.registry
        )
        self.open = Gauge("streamglot_streams_open", "Exchanges under way", registry=self.registry)
        self.upstream_state = Gauge(
            "streamglot_upstream_open", "1 where an upstream is left alone after failures", ["upstream"], registry=self.registry
        )

    def note(self, record: Record) -> None:
        self._requests.labels(record.dialect, record.upstream, record.ending or "error").inc()
        if record.error:
            self._errors.labels(record.error, record.upstream).inc()
        if record.first_event:
            self._first.labels(record.upstream).observe(record.first_event - record.began)
            self._gap.labels(record.upstream).observe(record.longest_gap)
        for direction in ("input", "output"):
            count = getattr(record.usage, f"{direction}_tokens", None)
            if count:
                self._tokens.labels(record.upstream, direction).inc(count)

    def page(self) -> bytes:
        page: bytes = generate_latest(self.registry)
        return page
