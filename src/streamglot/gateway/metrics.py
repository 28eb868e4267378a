"""Prometheus metrics: every name in one place."""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from ..engine.record import ExchangeRecord

if TYPE_CHECKING:
    from ..store import Report

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"


def share(folder: str) -> None:
    """From now on the numbers of all processes are kept in this folder, so that any of them can tell the sum."""
    os.environ[FOLDER] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def forget(process: int) -> None:
    """A process is gone, and what it had open with it."""
    mark_process_dead(process)  # type: ignore[no-untyped-call]


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._noted: dict[str, _Noted] = {}
        self._requests = Counter(
            "streamglot_requests",
            "Requests by client dialect, upstream and ending",
            ["dialect", "upstream", "ending"],
            registry=self.registry,
        )
        self._errors = Counter("streamglot_errors", "Errors by code", ["code", "upstream"], registry=self.registry)
        self._tokens = Counter("streamglot_tokens", "Tokens by direction", ["upstream", "direction"], registry=self.registry)
        self._cached = Counter("streamglot_cache_hits", "Answers that came from the cache", registry=self.registry)
        self._first = self._seconds("streamglot_first_event_seconds", "Time to the first event")
        self._gap = self._seconds("streamglot_gap_seconds", "Mean gap between two reads of a stream")
        self._longest = self._seconds("streamglot_longest_gap_seconds", "Longest gap between two reads of a stream")
        self._open = Gauge("streamglot_streams_open", "Exchanges under way", registry=self.registry, multiprocess_mode="livesum")
        self.upstream_state = Gauge(
            "streamglot_upstream_open",
            "1 where an upstream is left alone after failures",
            ["upstream"],
            registry=self.registry,
            multiprocess_mode="max",
        )

        self._store = StoreMetrics(self.registry)

    def note_store(self, report: Report) -> None:
        self._store.note(report)

    def _seconds(self, name: str, what: str) -> Histogram:
        return Histogram(name, what, ["upstream"], buckets=SECONDS, registry=self.registry)

    def note(self, record: ExchangeRecord) -> None:
        noted = self._noted.get(record.upstream)
        if noted is None:
            noted = self._noted[record.upstream] = _Noted()
        kind = (record.dialect, record.ending or "error")
        noted.requests[kind] = noted.requests.get(kind, 0) + 1
        if record.error:
            noted.errors[record.error] = noted.errors.get(record.error, 0) + 1
        noted.cached += record.cached
        if record.first_event:
            noted.first.add(record.first_event - record.began)
            noted.gap.add(record.mean_gap)
            noted.longest.add(record.longest_gap)
        if record.usage is not None:
            noted.input += record.usage.input_tokens or 0
            noted.output += record.usage.output_tokens or 0

    def publish(self, live: int) -> None:
        """Gives what was noted since the last time to the library, whose counting is slow. Called by the gateway's clock."""
        self._open.set(live)
        noted, self._noted = self._noted, {}
        for upstream, new in noted.items():
            for (dialect, ending), count in new.requests.items():
                self._requests.labels(dialect, upstream, ending).inc(count)
            for code, count in new.errors.items():
                self._errors.labels(code, upstream).inc(count)
            self._cached.inc(new.cached)
            for direction, tokens in (("input", new.input), ("output", new.output)):
                if tokens:
                    self._tokens.labels(upstream, direction).inc(tokens)
            for metric, spread in ((self._first, new.first), (self._gap, new.gap), (self._longest, new.longest)):
                if spread:
                    spread.into(metric.labels(upstream))

    def page(self) -> bytes:
        registry = self.registry
        if os.environ.get(FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        page: bytes = generate_latest(registry)
        return page


class StoreMetrics:
    """How the store's writer is doing, of all processes together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str, mode: Any) -> Gauge:
            return Gauge(f"streamglot_store_{name}", what, registry=registry, multiprocess_mode=mode)

        self._queued = gauge("queued", "Entries that wait to be written", "livesum")
        self._bytes = gauge("queued_bytes", "About how many bytes they hold", "livesum")
        self._behind = gauge("behind_seconds", "The age of what waits longest", "livemax")
        self._failing = gauge("failing", "1 where the database, or Valkey, does not take what is written", "livemax")
        self._counts = {
            name: Counter(f"streamglot_store_{name}", what, labels, registry=registry)
            for name, what, labels in (
                ("written", "Entries written, by kind", ["kind"]),
                ("dropped", "Entries that did not fit into the queue, by kind", ["kind"]),
                ("unfit", "Entries that no database would take, by kind", ["kind"]),
                ("commits", "Batches written", []),
                ("failures", "Attempts to write that failed", []),
                ("missed", "Looks into the past that had no answer; the request went on without", []),
            )
        }
        self._before: dict[tuple[str, str], int] = {}

    def note(self, report: Report) -> None:
        self._queued.set(report.queued)
        self._bytes.set(report.queued_bytes)
        self._behind.set(report.behind)
        self._failing.set(report.failing)
        for name in ("written", "dropped", "unfit"):
            for kind, count in getattr(report, name).items():
                self._count(self._counts[name].labels(kind), (name, kind), count)
        for name in ("commits", "failures", "missed"):
            self._count(self._counts[name], (name, ""), getattr(report, name))

    def _count(self, counter: Counter, place: tuple[str, str], count: int) -> None:
        """A counter only goes up: by what was added since."""
        counter.inc(max(0, count - self._before.get(place, 0)))
        self._before[place] = count


class _Spread:
    """How many of some times fell into each bucket, and their sum."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def __bool__(self) -> bool:
        return any(self._counts)

    def into(self, histogram: Any) -> None:
        """By the values that the histogram is made of: it takes no sums itself."""
        histogram._sum.inc(self._sum)
        for value, count in zip(histogram._buckets, self._counts, strict=True):
            if count:
                value.inc(count)


class _Noted:
    """What came to an end at one upstream since it was published."""

    __slots__ = ("cached", "errors", "first", "gap", "input", "longest", "output", "requests")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.errors: dict[str, int] = {}
        self.cached = self.input = self.output = 0
        self.first, self.gap, self.longest = _Spread(), _Spread(), _Spread()
