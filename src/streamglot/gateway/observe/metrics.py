"""Prometheus metrics: every name in one place.

A process counts in plain numbers, because that is cheap. They become metrics only when the page is requested. With several
workers, each writes its numbers into a shared folder (``counters/metrics_files.py``), and any of them serves the sum.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

from ...counters.workers import metrics_files
from ...engine.stats import ExchangeRecord
from ...json_types import JsonObject

if TYPE_CHECKING:
    from ...store import Report

Key = TypeVar("Key")
SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Upper bounds of the histogram buckets, in seconds: from a fast local model to the longest usual timeout."""
_BUCKETS: Final = (*map(str, map(float, SECONDS)), "+Inf")
OPENMETRICS: Final = "application/openmetrics-text"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_STORE_COUNTERS: Final = (
    ("commits", "Batches written"),
    ("failures", "Attempts to write that failed"),
    ("missed", "Lookups of history that failed; the request continued without it"),
)
_STORE_COUNTERS_BY_KIND: Final = (
    ("written", "Entries written, by kind"),
    ("dropped", "Entries that did not fit into the queue, by kind"),
    ("unfit", "Entries that the database rejected, by kind"),
)


def forget(process: int) -> None:
    """Removes the live numbers of a process that ended. Its counts stay."""
    files = metrics_files()
    if files is not None:
        files.retire(process, Numbers, lambda numbers: sum_of(numbers, Numbers()))


def trace_id_of(trace: Mapping[str, str]) -> str:
    """The trace id of a W3C trace context; nothing where there is none."""
    found = _TRACEPARENT.fullmatch(trace["traceparent"]) if "traceparent" in trace else None
    return found.group(1) if found is not None else ""


@dataclass(slots=True)
class Traced:
    """The last time of a bucket that has a trace: an exemplar. ``time`` is in seconds since 1970."""

    trace_id: str
    seconds: float
    time: float


@dataclass(slots=True)
class Spread:
    """A histogram: the number of times in each bucket, their sum, and an exemplar for each bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0
    exemplars: dict[int, Traced] = field(default_factory=dict)

    def add(self, seconds: float, trace_id: str = "", time: float = 0.0) -> None:
        bucket = bisect_left(SECONDS, seconds)
        self.counts[bucket] += 1
        self.sum += seconds
        if trace_id:
            self.exemplars[bucket] = Traced(trace_id, seconds, time)

    def plus(self, other: Spread) -> Spread:
        """Both together. If a bucket has two exemplars, the newer one stays."""
        newest = dict(self.exemplars)
        for bucket, traced in other.exemplars.items():
            if bucket not in newest or newest[bucket].time < traced.time:
                newest[bucket] = traced
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Spread(counts, self.sum + other.sum, newest)

    def buckets(self) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """The cumulative counts, as prometheus_client takes them."""
        found: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for bucket, count in enumerate(accumulate(self.counts)):
            traced = self.exemplars.get(bucket)
            if traced is None:
                found.append((_BUCKETS[bucket], count))
            else:
                found.append((_BUCKETS[bucket], count, Exemplar({"trace_id": traced.trace_id}, traced.seconds, traced.time)))
        return found


@dataclass(slots=True)
class UpstreamNumbers:
    """The numbers of one upstream. ``requests`` are by dialect and ending, ``errors`` by kind."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    cached: int = 0
    input: int = 0
    output: int = 0
    first: Spread = field(default_factory=Spread)
    gap: Spread = field(default_factory=Spread)
    longest: Spread = field(default_factory=Spread)

    def plus(self, other: UpstreamNumbers) -> UpstreamNumbers:
        return UpstreamNumbers(
            _sums(self.requests, other.requests),
            _sums(self.errors, other.errors),
            self.cached + other.cached,
            self.input + other.input,
            self.output + other.output,
            self.first.plus(other.first),
            self.gap.plus(other.gap),
            self.longest.plus(other.longest),
        )


@dataclass(slots=True)
class StoreNumbers:
    """The store's counts, by name and kind. Counts without a kind are under ""."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class LiveNumbers:
    """Current values, which end with their process."""

    open: int = 0
    breakers: dict[str, bool] = field(default_factory=dict)
    queued: int = 0
    queued_bytes: int = 0
    behind: float = 0.0
    failing: bool = False

    def plus(self, other: LiveNumbers) -> LiveNumbers:
        both = {*self.breakers, *other.breakers}
        return LiveNumbers(
            self.open + other.open,
            {name: self.breakers.get(name, False) or other.breakers.get(name, False) for name in both},
            self.queued + other.queued,
            self.queued_bytes + other.queued_bytes,
            max(self.behind, other.behind),
            self.failing or other.failing,
        )


@dataclass(slots=True)
class Numbers:
    """All numbers of one process."""

    upstreams: dict[str, UpstreamNumbers] = field(default_factory=dict)
    store: StoreNumbers = field(default_factory=StoreNumbers)
    live: LiveNumbers = field(default_factory=LiveNumbers)


def sum_of(ended: Iterable[Numbers], running: Numbers) -> Numbers:
    """The sum of the numbers of several processes. The live numbers of ended processes do not count."""
    upstreams, store = dict(running.upstreams), dict(running.store.counts)
    for numbers in ended:
        for name, one in numbers.upstreams.items():
            upstreams[name] = upstreams[name].plus(one) if name in upstreams else one
        store = _sums(store, numbers.store.counts)
    return Numbers(upstreams, StoreNumbers(store), running.live)


class Metrics:
    """The metrics of this process and of those that share its folder. It is a prometheus_client collector."""

    def __init__(self) -> None:
        self._numbers = Numbers()
        self._reported: dict[tuple[str, str], int] = {}
        self._files = metrics_files()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    # --- counting

    def note(self, record: ExchangeRecord, trace_id: str = "", time: float = 0.0) -> None:
        """Counts an exchange that has ended. ``trace_id`` becomes an exemplar of its times; ``time`` is in seconds since 1970."""
        noted = self._of(record.upstream)
        kind = (record.dialect, record.ending or "error")
        noted.requests[kind] = noted.requests.get(kind, 0) + 1
        if record.error:
            error = record.error_kind
            noted.errors[error] = noted.errors.get(error, 0) + 1
        noted.cached += record.cached
        if record.first_event:
            noted.first.add(record.first_event - record.began, trace_id, time)
            noted.gap.add(record.mean_gap, trace_id, time)
            noted.longest.add(record.longest_gap, trace_id, time)
        if record.usage is not None:
            noted.input += record.usage.input_tokens or 0
            noted.output += record.usage.output_tokens or 0

    def note_call(self, call: JsonObject) -> None:
        """Counts the tokens of a call that a stage made (a judge, a summary)."""
        noted = self._of(call["upstream"])
        noted.input += call["input_tokens"] or 0
        noted.output += call["output_tokens"] or 0

    def _of(self, upstream: str) -> UpstreamNumbers:
        noted = self._numbers.upstreams.get(upstream)
        if noted is None:
            noted = self._numbers.upstreams[upstream] = UpstreamNumbers()
        return noted

    def note_breakers(self, is_open: Mapping[str, bool]) -> None:
        self._numbers.live.breakers = dict(is_open)

    def note_store(self, report: Report) -> None:
        live = self._numbers.live
        live.queued, live.queued_bytes = report.queued, report.queued_bytes
        live.behind, live.failing = report.behind, report.failing
        for name, _ in _STORE_COUNTERS:
            self._count((name, ""), getattr(report, name))
        for name, _ in _STORE_COUNTERS_BY_KIND:
            for kind, count in getattr(report, name).items():
                self._count((name, kind), count)

    def _count(self, place: tuple[str, str], count: int) -> None:
        """Adds the growth since the last report, because a counter only increases."""
        counts = self._numbers.store.counts
        counts[place] = counts.get(place, 0) + max(0, count - self._reported.get(place, 0))
        self._reported[place] = count

    def publish(self, live: int) -> None:
        """Publishes the numbers to the other processes. Called by the gateway's clock."""
        self._numbers.live.open = live
        if self._files is not None:
            self._files.write(self._numbers)

    # --- reporting

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its media type. A reader that accepts OpenMetrics gets it, with exemplars; others get the older text."""
        if OPENMETRICS in accept:
            page: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]  # the library has no type for it
            return page, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """The metrics. prometheus_client calls it."""
        numbers = self._numbers
        if self._files is not None:
            others, ended = self._files.read(Numbers)
            for other in others:
                live = numbers.live.plus(other.live)
                numbers = sum_of([other], numbers)
                numbers.live = live
            numbers = sum_of(ended, numbers)
        yield from _upstream_metrics(numbers)
        yield from _store_metrics(numbers)


def _upstream_metrics(numbers: Numbers) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "streamglot_requests", "Requests by client dialect, upstream and ending", labels=["dialect", "upstream", "ending"]
    )
    errors = CounterMetricFamily("streamglot_errors", "Errors by kind", labels=["code", "upstream"])
    tokens = CounterMetricFamily("streamglot_tokens", "Tokens by direction", labels=["upstream", "direction"])
    first = HistogramMetricFamily("streamglot_first_event_seconds", "Time to the first event", labels=["upstream"])
    gap = HistogramMetricFamily("streamglot_gap_seconds", "Mean gap between two reads of a stream", labels=["upstream"])
    longest = HistogramMetricFamily(
        "streamglot_longest_gap_seconds", "Longest gap between two reads of a stream", labels=["upstream"]
    )
    breakers = GaugeMetricFamily(
        "streamglot_upstream_open", "1 if the circuit breaker of an upstream is open", labels=["upstream"]
    )
    for name, noted in numbers.upstreams.items():
        for (dialect, ending), count in noted.requests.items():
            requests.add_metric([dialect, name, ending], count)
        for kind, count in noted.errors.items():
            errors.add_metric([kind, name], count)
        for direction, count in (("input", noted.input), ("output", noted.output)):
            if count:
                tokens.add_metric([name, direction], count)
        for family, spread in ((first, noted.first), (gap, noted.gap), (longest, noted.longest)):
            if any(spread.counts):
                family.add_metric([name], spread.buckets(), spread.sum)
    for name, is_open in numbers.live.breakers.items():
        breakers.add_metric([name], float(is_open))
    cached = sum(noted.cached for noted in numbers.upstreams.values())
    yield requests
    yield errors
    yield tokens
    yield CounterMetricFamily("streamglot_cache_hits", "Answers that came from the cache", value=cached)
    yield first
    yield gap
    yield longest
    yield GaugeMetricFamily("streamglot_streams_open", "Running exchanges", value=numbers.live.open)
    yield breakers


def _store_metrics(numbers: Numbers) -> Iterator[Metric]:
    live, counts = numbers.live, numbers.store.counts
    for name, what, value in (
        ("queued", "Entries that wait to be written", live.queued),
        ("queued_bytes", "Approximate bytes of the entries that wait", live.queued_bytes),
        ("behind_seconds", "Age of the oldest entry that waits", live.behind),
        ("failing", "1 if the database or Valkey does not accept writes", live.failing),
    ):
        yield GaugeMetricFamily(f"streamglot_store_{name}", what, value=value)
    for name, what in _STORE_COUNTERS_BY_KIND:
        family = CounterMetricFamily(f"streamglot_store_{name}", what, labels=["kind"])
        for (counter, kind), count in counts.items():
            if counter == name:
                family.add_metric([kind], count)
        yield family
    for name, what in _STORE_COUNTERS:
        yield CounterMetricFamily(f"streamglot_store_{name}", what, value=counts.get((name, ""), 0))


def _sums(one: Mapping[Key, int], two: Mapping[Key, int]) -> dict[Key, int]:
    return {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}
