"""Processes that are killed on the way, and a database that is restarted: nothing is lost, nothing is reported twice, and only
the calls that were in flight are made again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import openai

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import Process, config_of, gateway, input_lines, worker
from batch_durable.test_batch_clients import client_of, ended, lines_of, submitted
from store.servers import Postgres
from waiting import until

CONCURRENCY = 8


def questions(count: int) -> list[tuple[str, str]]:
    return [(f"r{number}", f"question {number}") for number in range(count)]


def checked(client: openai.OpenAI, done: Any, count: int) -> None:
    """Every custom_id is there exactly once."""
    assert done.status == "completed", done
    assert done.request_counts.model_dump() == {"total": count, "completed": count, "failed": 0}
    names = [entry["custom_id"] for entry in lines_of(client, done.output_file_id)]
    assert sorted(names) == sorted(name for name, _ in questions(count))
    assert done.error_file_id is None


def completed(process: Process, client: openai.OpenAI, batch: Any, at_least: int) -> None:
    def far_enough() -> bool:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts is not None and counts.completed >= at_least

    until(far_enough, lambda: f"it does not go on: {process.log.read_text()[-2000:]}")


def test_a_gateway_that_is_killed_repeats_only_what_was_in_flight(tmp_path: Path) -> None:
    count, kills = 3000, 5
    with mocked() as upstream:
        config = config_of(upstream.url, f"sqlite:///{tmp_path}/s.db", concurrency=CONCURRENCY)
        batch: Any = None
        for kill in range(kills):
            with gateway(tmp_path, config) as process:
                client = client_of(process)
                batch = batch or submitted(client, input_lines(questions(count)))
                completed(process, client, batch, (kill + 1) * count // (kills + 2))
                process.kill()
        with gateway(tmp_path, config) as process:
            client = client_of(process)
            checked(client, ended(client, batch), count)
            assert count <= upstream.asked() <= count + kills * CONCURRENCY


def test_a_gateway_that_is_killed_while_it_reads_the_file_starts_again(tmp_path: Path) -> None:
    with mocked() as upstream:
        config = config_of(upstream.url, f"sqlite:///{tmp_path}/s.db", concurrency=CONCURRENCY)
        with gateway(tmp_path, config) as process:
            batch = submitted(client_of(process), input_lines(questions(5000)))
            process.kill()
        with gateway(tmp_path, config) as process:
            client = client_of(process)
            checked(client, ended(client, batch), 5000)
            assert upstream.asked() <= 5000 + CONCURRENCY


def test_a_stopping_gateway_releases_its_jobs(tmp_path: Path) -> None:
    with mocked() as upstream:
        config = config_of(upstream.url, f"sqlite:///{tmp_path}/s.db", concurrency=CONCURRENCY)
        with gateway(tmp_path, config) as process:
            client = client_of(process)
            batch = submitted(client, input_lines(questions(2000)))
            completed(process, client, batch, 500)
            assert process.stop() == 0
        with gateway(tmp_path, config) as process:
            client = client_of(process)
            checked(client, ended(client, batch), 2000)
            assert upstream.asked() <= 2000 + CONCURRENCY


def test_one_of_two_workers_is_killed(postgres: Postgres, tmp_path: Path) -> None:
    count = 3000
    with mocked() as upstream:
        store = asyncio.run(postgres.database())
        folder = str(tmp_path / "files")
        config = config_of(upstream.url, store, concurrency=CONCURRENCY, worker=False, directory=folder)
        with (
            gateway(tmp_path / "gateway", config) as process,
            worker(tmp_path / "one", config) as one,
            worker(tmp_path / "two", config) as two,
        ):
            client = client_of(process)
            batch = submitted(client, input_lines(questions(count)))
            completed(process, client, batch, count // 3)
            one.kill()
            checked(client, ended(client, batch), count)
            assert count <= upstream.asked() <= count + CONCURRENCY
            assert two.process.poll() is None


def test_the_database_is_restarted_on_the_way(tmp_path: Path) -> None:
    count = 3000
    server = Postgres()
    try:
        with mocked() as upstream:
            config = config_of(
                upstream.url, asyncio.run(server.database()), concurrency=CONCURRENCY, directory=str(tmp_path / "f")
            )
            with gateway(tmp_path, config) as process:
                client = client_of(process)
                batch = submitted(client, input_lines(questions(count)))
                completed(process, client, batch, count // 3)
                server.stop("immediate")
                stood_still(upstream)
                server.start()
                until(lambda: answers(client, batch), lambda: f"it does not come back: {process.log.read_text()[-2000:]}")
                checked(client, ended(client, batch), count)
                assert count <= upstream.asked() <= count + CONCURRENCY
    finally:
        server.close()


def answers(client: openai.OpenAI, batch: Any) -> bool:
    try:
        return bool(client.batches.retrieve(batch.id))
    except openai.APIStatusError:
        return False


def stood_still(upstream: RunningMock) -> None:
    """Waits until no more calls are made: without a database no result could be committed."""
    seen: list[int] = []

    def still() -> bool:
        seen.append(upstream.asked())
        time.sleep(0.2)
        return seen[-1] == upstream.asked()

    until(still)
