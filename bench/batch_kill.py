"""Batches with injected faults, and with a gateway that is killed on the way. ``python -m bench.batch_kill``.

    BENCH_ITEMS=5000                a short run (50,000 lines by default)
    BENCH_KILLS=5                   how often the gateway is killed with -9
    BENCH_CONCURRENCY=32            calls at once
    BENCH_DATABASE=postgresql       the database (sqlite by default)

A client of the openai package uploads the lines, waits and downloads the results. Every ``custom_id`` must be there exactly once.
The mock upstream counts the calls and the answers. An answer is paid; a call that fails with a 500 is not. Two passes are compared
with a clean pass, in which each line is answered once: one with faults and no kills, one with kills and no faults. The tests have
the small form of both.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .programs import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import openai

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import Process, config_of, gateway, input_lines

ITEMS = int(os.environ.get("BENCH_ITEMS", "50000"))
KILLS = int(os.environ.get("BENCH_KILLS", "5"))
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "32"))
DATABASE = os.environ.get("BENCH_DATABASE", "sqlite")
FAULTS = 0.01
"""The share of lines that fail once."""
GOAL = 1.001
"""Answers that may be paid for each line, with faults and without kills."""
POLL = 0.5
"""Seconds between two questions for the progress."""


def client_of(process: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0, timeout=300)


def submitted(client: openai.OpenAI, every: int) -> Any:
    """Uploads the lines and creates a batch of them. Every so many lines, one fails once; 0: none."""
    questions = (
        (f"r{number}", f"question {number}{' fail-1' if every and number % every == 0 else ''}") for number in range(ITEMS)
    )
    file = client.files.create(file=("in.jsonl", input_lines(questions)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def wait(client: openai.OpenAI, batch: Any, enough: Callable[[Any], bool]) -> Any:
    while True:
        now = client.batches.retrieve(batch.id)
        if enough(now) or now.status in ("failed", "expired", "cancelled"):
            return now
        time.sleep(POLL)


def has_done(count: int, batch: Any) -> bool:
    return bool(batch.request_counts) and bool(batch.request_counts.completed >= count)


def check(client: openai.OpenAI, done: Any) -> None:
    """Exits if a line is missing or reported twice."""
    if done.status != "completed" or done.request_counts.completed != ITEMS:
        sys.exit(f"the batch did not complete: {done}")
    found = client.files.content(done.output_file_id).text.splitlines()
    names = {line.partition('"custom_id":"')[2].partition('"')[0] for line in found}
    if len(found) != ITEMS or names != {f"r{number}" for number in range(ITEMS)}:
        sys.exit(f"{len(found)} lines with {len(names)} different ids came back, not {ITEMS}")


def report(what: str, upstream: RunningMock, seconds: float) -> float:
    stats = upstream.stats()
    asked, answered = sum(stats["asked"].values()), sum(stats["answered"].values())
    paid = float(answered / ITEMS)
    print(
        f"  {what}: every custom_id once, in {seconds:.0f} s; {asked:,} calls, {answered:,} answers: paid {paid:.4f} of a clean pass",
        flush=True,
    )
    return paid


def with_faults(folder: Path, store: str) -> None:
    with mocked() as upstream, gateway(folder, config_of(upstream.url, store, concurrency=CONCURRENCY)) as process:
        begin, client = time.monotonic(), client_of(process)
        done = wait(client, submitted(client, round(1 / FAULTS)), lambda now: now.status == "completed")
        check(client, done)
        paid = report(f"{FAULTS:.0%} faults, no kills", upstream, time.monotonic() - begin)
        again = [name for name, count in upstream.stats()["asked"].items() if count > 1]
        if any(not name.endswith("fail-1") for name in again):
            sys.exit("a line was called again that had not failed")
        verdict = "" if paid <= GOAL else f", ABOVE {GOAL}"
        print(f"    {len(again):,} lines were called again, exactly those that failed{verdict}", flush=True)


def with_kills(folder: Path, store: str) -> None:
    with mocked() as upstream:
        config = config_of(upstream.url, store, concurrency=CONCURRENCY)
        begin, batch = time.monotonic(), None
        for kill in range(KILLS):
            with gateway(folder, config) as process:
                client = client_of(process)
                batch = batch or submitted(client, 0)
                wait(client, batch, partial(has_done, (kill + 1) * ITEMS // (KILLS + 1)))
                process.kill()
        with gateway(folder, config) as process:
            client = client_of(process)
            check(client, wait(client, batch, lambda now: now.status == "completed"))
            report(f"{KILLS} kills, no faults", upstream, time.monotonic() - begin)
        stats = upstream.stats()
        asked, answered = sum(stats["asked"].values()), sum(stats["answered"].values())
        most = KILLS * CONCURRENCY
        print(
            f"    {asked - ITEMS} calls were repeated, of at most {most} in flight at the kills; of {answered - ITEMS} the answer "
            f"had come and was not committed",
            flush=True,
        )
        if asked - ITEMS > most:
            sys.exit("more calls were repeated than were in flight")


@contextmanager
def stores() -> Iterator[Callable[[Path], str]]:
    """A function that makes a new database."""
    if DATABASE == "sqlite":
        yield lambda folder: f"sqlite:///{folder}/s.db"
        return
    from store.servers import Postgres

    server = Postgres()
    try:
        yield lambda _: asyncio.run(server.database())
    finally:
        server.close()


def main() -> None:
    print(f"{ITEMS:,} lines, {CONCURRENCY} calls at once, {DATABASE}")
    with stores() as make:
        for part in (with_faults, with_kills):
            with tempfile.TemporaryDirectory() as directory:
                part(Path(directory), make(Path(directory)))


if __name__ == "__main__":
    main()
