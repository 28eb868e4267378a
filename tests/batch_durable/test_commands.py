"""``streamglot batch submit`` and the other commands on batches, against a gateway process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import Process, config_of, gateway, input_lines
from streamglot.cli.app import run as command
from streamglot.errors import StreamglotError
from waiting import until

Run = Callable[..., int]
Captured = pytest.CaptureFixture[str]
MODEL = "gpt-4o-mini"
"""A model whose price is known."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningMock]:
    with mocked() as mock:
        yield mock


@pytest.fixture(scope="module")
def served(upstream: RunningMock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("commands")
    config = config_of(upstream.url, f"sqlite:///{folder}/s.db", attempts=2)
    priced = config.replace("[upstreams.up]", "[upstreams.openai]").replace('models = ["m"]', f'models = ["{MODEL}"]')
    with gateway(folder, priced) as process:
        yield process


@pytest.fixture
def batch(served: Process, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("STREAMGLOT_URL", served.url)
    monkeypatch.setenv("STREAMGLOT_KEY", "one")
    return lambda *words: command(["batch", *map(str, words)])


def questions(path: Path, *asked: str) -> Path:
    path.write_bytes(input_lines(((f"r{number}", question) for number, question in enumerate(asked)), MODEL))
    return path


def shown(batch: Run, capsys: Captured, id: str) -> dict[str, Any]:
    capsys.readouterr()
    batch("status", id, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def custom_ids(data: str | bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in data.splitlines()]


def test_a_file_is_submitted_and_waited_for(batch: Run, tmp_path: Path, capsys: Captured) -> None:
    asked = [f"submitted {number}" + (" fail-1" if number == 3 else "") for number in range(250)]
    out = tmp_path / "out.jsonl"
    assert batch("submit", questions(tmp_path / "in.jsonl", *asked), "--wait", "-o", out) == 0
    assert sorted(custom_ids(out.read_bytes())) == sorted(f"r{number}" for number in range(250))
    errors = capsys.readouterr().err
    assert "100%  250 done, 0 failed, 1 retried, 1750 tokens in, 500 out, $0.0005" in errors


def test_the_batch_object_has_what_the_progress_bar_shows(batch: Run, tmp_path: Path, capsys: Captured) -> None:
    path = questions(tmp_path / "in.jsonl", "counted", "counted fail-1", "counted bad")
    assert batch("submit", path, "--wait", "-q") == 1, "one request failed"
    errors = capsys.readouterr()
    assert sorted(custom_ids(errors.out)) == ["r0", "r1", "r2"]
    id = errors.err.split("submitted as ")[1].split()[0]
    found = shown(batch, capsys, id)
    assert found["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (found["usage"]["input_tokens"], found["usage"]["output_tokens"]) == (14, 4)
    assert found["streamglot"]["retried"] == 1
    assert found["streamglot"]["cost"] == pytest.approx((14 * 0.15 + 4 * 0.6) / 1e6)


def test_only_what_failed_is_retried(batch: Run, upstream: RunningMock, tmp_path: Path, capsys: Captured) -> None:
    path = questions(tmp_path / "in.jsonl", "retried", "retried fail-2", "retried bad")
    with path.open("ab") as file:
        file.write(b"this line is no JSON\n")
    assert batch("submit", path) == 0
    id = capsys.readouterr().out.strip()
    assert batch("status", id, "--wait", "-q") == 1
    assert f"{id}: completed; 4 total, 1 completed, 3 failed" in capsys.readouterr().out
    out = tmp_path / "again.jsonl"
    assert batch("retry", id, "--wait", "-q", "-o", out) == 1, "what is refused is refused again"
    assert sorted(custom_ids(out.read_bytes())) == ["r1", "r2"]
    asked = upstream.stats()["asked"]
    assert (asked["retried"], asked["retried fail-2"], asked["retried bad"]) == (1, 3, 2)
    again = capsys.readouterr().err.split("submitted as ")[1].split()[0]
    assert shown(batch, capsys, again)["metadata"] == {"retry_of": id}


def test_a_batch_without_failures_has_nothing_to_retry(batch: Run, tmp_path: Path, capsys: Captured) -> None:
    batch("submit", questions(tmp_path / "in.jsonl", "faultless"))
    id = capsys.readouterr().out.strip()
    assert batch("status", id, "--wait", "-q") == 0
    assert batch("retry", id) == 0
    assert "nothing to retry" in capsys.readouterr().out


def test_a_batch_is_listed_and_cancelled_and_keeps_its_results(
    batch: Run, upstream: RunningMock, tmp_path: Path, capsys: Captured
) -> None:
    path = questions(tmp_path / "in.jsonl", "first", *(f"cancelled {number} slow" for number in range(200)))
    assert batch("submit", path) == 0
    id = capsys.readouterr().out.strip()
    until(lambda: shown(batch, capsys, id)["request_counts"]["completed"] == 1)
    assert batch("results", id) == 0
    assert custom_ids(capsys.readouterr().out) == ["r0"], "partial results can be read"
    with pytest.raises(StreamglotError, match="when it has ended"):
        batch("retry", id)
    assert batch("list", "-n", 1) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == [id, "in_progress", "201", "1", "0"]
    assert batch("cancel", id) == 0
    assert capsys.readouterr().out == f"{id} is cancelling\n"
    upstream.release()
    assert batch("status", id, "--wait", "-q") == 1
    assert f"{id}: cancelled; 201 total" in capsys.readouterr().out
    assert batch("list", "--json", "-n", 1) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "cancelled"
    out = tmp_path / "out.jsonl"
    assert batch("results", id, "-o", out) == 0
    assert sorted(custom_ids(out.read_bytes())) == sorted(f"r{number}" for number in range(201)), "every custom_id once"
    with pytest.raises(StreamglotError, match=r"409.*nothing to cancel"):
        batch("cancel", id)


def test_a_file_without_a_usable_line_is_described(batch: Run, tmp_path: Path, capsys: Captured) -> None:
    path = questions(tmp_path / "in.jsonl", "of no use")
    assert batch("submit", path, "--endpoint", "/v1/responses", "--wait") == 1
    assert "line 1: " in (errors := capsys.readouterr().out)
    assert "(mismatched_endpoint)" in errors


def test_a_batch_of_another_key_is_not_there(batch: Run, tmp_path: Path, capsys: Captured) -> None:
    batch("submit", questions(tmp_path / "in.jsonl", "private"))
    id = capsys.readouterr().out.strip()
    with pytest.raises(StreamglotError, match="404"):
        batch("status", id, "--key", "two")
