"""Metrics of several processes: any of them reports the sum, including processes that have ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamglot.counters import workers
from streamglot.counters.metrics_files import DEAD, LIVE_SUFFIX, MetricsFiles
from streamglot.engine.stats import ExchangeRecord
from streamglot.gateway.observe import metrics
from streamglot.gateway.observe.metrics import SECONDS, Metrics
from streamglot.messages import TokenCounts
from streamglot.store import Report


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    workers.share(str(tmp_path))
    try:
        yield tmp_path
    finally:
        workers.unshare()


def record(upstream: str = "up", **more: object) -> ExchangeRecord:
    return ExchangeRecord("id", "openai_chat", 1.0, upstream=upstream, ending="end", **more)  # type: ignore[arg-type]  # fields of it


def report(written: int, behind: float = 0.0, failing: bool = False) -> Report:
    return Report(
        queued=1,
        queued_bytes=10,
        behind=behind,
        written={"turns": written},
        dropped={},
        unfit={},
        commits=written,
        failures=0,
        failing=failing,
        last_error="",
    )


def values(page: bytes) -> dict[str, float]:
    """All samples of a page that Prometheus can read."""
    return {
        sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def in_a_child(work: Callable[[], None]) -> int:
    """Its number, once it is gone."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return child


def test_one_process_reports_its_counts() -> None:
    counting = Metrics()
    counting.note(record(first_event=1.5, reads=3, last_event=2.0, longest_gap=0.3, usage=TokenCounts(5, 7)))
    counting.note(record("", error="x", error_kind="model_not_found"))
    counting.note(record(cached=True))
    counting.note_breakers({"up": False, "other": True})
    counting.note_store(report(3))
    counting.note_store(report(5, behind=2.0, failing=True))
    counting.publish(4)
    found = values(counting.page()[0])
    assert found["streamglot_requests_total|openai_chat|end|up"] == 2
    assert found["streamglot_errors_total|model_not_found|"] == 1
    assert found["streamglot_tokens_total|input|up"] == 5
    assert found["streamglot_cache_hits_total"] == 1
    assert found["streamglot_first_event_seconds_bucket|0.25|up"] == 0
    assert found["streamglot_first_event_seconds_bucket|0.5|up"] == 1
    assert found["streamglot_first_event_seconds_bucket|+Inf|up"] == found["streamglot_first_event_seconds_count|up"] == 1
    assert found["streamglot_first_event_seconds_sum|up"] == 0.5
    assert (found["streamglot_streams_open"], found["streamglot_upstream_open|other"]) == (4, 1)
    assert found["streamglot_store_written_total|turns"] == found["streamglot_store_commits_total"] == 5
    assert (found["streamglot_store_behind_seconds"], found["streamglot_store_failing"]) == (2, 1)
    counting.note_store(report(1))
    assert values(counting.page()[0])["streamglot_store_written_total|turns"] == 5, "a counter only goes up"
    assert len([name for name in found if name.startswith("streamglot_gap_seconds_bucket")]) == len(SECONDS) + 1


def test_a_page_of_one_process_has_the_numbers_of_all(shared: Path) -> None:
    counting = Metrics()
    counting.note(record(usage=TokenCounts(1, 1), first_event=1.2, reads=2))
    counting.note_breakers({"up": False})
    counting.publish(1)

    def other() -> None:
        mine = Metrics()
        mine.note(record(usage=TokenCounts(10, 0), first_event=1.2, reads=2))
        mine.note(record("only-there"))
        mine.note_breakers({"up": True})
        mine.note_store(report(2, behind=9.0))
        for live in range(5):
            mine.publish(live)

    child = in_a_child(other)
    found = values(counting.page()[0])
    assert found["streamglot_requests_total|openai_chat|end|up"] == 2
    assert found["streamglot_requests_total|openai_chat|end|only-there"] == 1
    assert found["streamglot_tokens_total|input|up"] == 11
    assert found["streamglot_first_event_seconds_count|up"] == 2
    assert (found["streamglot_streams_open"], found["streamglot_upstream_open|up"]) == (5, 1)
    assert (found["streamglot_store_behind_seconds"], found["streamglot_store_queued"]) == (9, 1)

    metrics.forget(child)
    found = values(counting.page()[0])
    assert found["streamglot_requests_total|openai_chat|end|up"] == 2, "what it counted stays"
    assert found["streamglot_store_written_total|turns"] == 2
    assert (found["streamglot_streams_open"], found["streamglot_upstream_open|up"]) == (1, 0), "what it had open is gone"
    assert found["streamglot_store_behind_seconds"] == 0
    assert sorted(path.name.partition("-")[0] for path in shared.iterdir()) == [str(os.getpid())] * 2 + [DEAD]


def test_counts_of_dead_processes_are_merged_into_one_file(shared: Path) -> None:
    for _ in range(3):
        metrics.forget(in_a_child(lambda: _count_one()))
    assert [path.name for path in shared.iterdir()] == [DEAD]
    assert values(Metrics().page()[0])["streamglot_requests_total|openai_chat|end|up"] == 3
    metrics.forget(1)
    assert values(Metrics().page()[0])["streamglot_requests_total|openai_chat|end|up"] == 3


def _count_one() -> None:
    counting = Metrics()
    counting.note(record())
    counting.publish(0)


def test_nothing_is_counted_twice_while_a_process_is_retired(shared: Path) -> None:
    child = in_a_child(_count_one)
    left = {path.name: path.read_bytes() for path in shared.iterdir()}
    metrics.forget(child)
    for name, data in left.items():
        (shared / name).write_bytes(data)  # as a reader has it that read the file a moment before
    assert values(Metrics().page()[0])["streamglot_requests_total|openai_chat|end|up"] == 1


def test_a_process_that_was_killed_while_it_wrote_loses_no_more_than_that_write(shared: Path) -> None:
    def two() -> None:
        counting = Metrics()
        for _ in range(2):
            counting.note(record())
            counting.publish(0)

    in_a_child(two)
    newest = max(shared.glob(f"*{LIVE_SUFFIX}"), key=lambda path: path.read_bytes()[8:16][::-1])
    newest.write_bytes(newest.read_bytes()[:-3])
    assert values(Metrics().page()[0])["streamglot_requests_total|openai_chat|end|up"] == 1
    for path in shared.glob(f"*{LIVE_SUFFIX}"):
        path.write_bytes(b"")
    assert "streamglot_requests_total|openai_chat|end|up" not in values(Metrics().page()[0])


def test_a_reader_never_sees_half_of_what_is_written(tmp_path: Path) -> None:
    """One writes as fast as it can, with numbers of changing length; what is read is always one of them, whole."""
    writing, reading = MetricsFiles(str(tmp_path)), MetricsFiles(str(tmp_path))
    over = threading.Event()
    writing.write(["x"])

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            writing.write([str(number)] * (number % 400))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = 0
        while seen < 300:
            living, _ = reading.read(list[str])
            seen += len(living)
            assert all(len(set(numbers)) <= 1 for numbers in living)
    finally:
        over.set()
        thread.join()


def test_without_the_folder_only_the_numbers_of_other_processes_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    workers.share(str(folder))
    folder.rmdir()
    try:
        counting = Metrics()
        counting.note(record())
        counting.publish(1)
        metrics.forget(1)
        assert values(counting.page()[0])["streamglot_requests_total|openai_chat|end|up"] == 1
    finally:
        workers.unshare()
    metrics.forget(1)
