"""``streamglot batch submit`` and the other commands on batches, against a fake of the gateway's files and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batch.fake_gateway import FakeGateway, fake_gateway
from streamglot.cli.address import gateway_address
from streamglot.cli.app import run as command
from streamglot.errors import ConfigError, StreamglotError

Run = Callable[..., int]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway("secret") as server:
        yield server


@pytest.fixture
def batch(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("STREAMGLOT_URL", f"{gateway.url}/v1/")
    monkeypatch.setenv("STREAMGLOT_KEY", "secret")
    return lambda *words: command(["batch", *map(str, words)])


def requests(path: Path, count: int = 5, url: str = "/v1/chat/completions", last: str = "") -> Path:
    lines = [
        {"custom_id": f"r{n}", "method": "POST", "url": last if last and n == count - 1 else url, "body": {"n": n}}
        for n in range(count)
    ]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return path


def custom_ids(data: str | bytes) -> list[str]:
    return [msgspec.json.decode(line)["custom_id"] for line in data.splitlines()]


def test_a_file_is_submitted_and_its_id_printed(
    batch: Run, gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = requests(tmp_path / "in.jsonl", 2000)
    assert batch("submit", path) == 0
    assert capsys.readouterr().out == "batch_1\n"
    assert gateway.files["file-1"] == path.read_bytes()
    made = gateway.batches["batch_1"]
    assert (made["endpoint"], made["completion_window"]) == ("/v1/chat/completions", "24h")


def test_waiting_gives_every_result_once_and_the_failures_as_the_status(batch: Run, gateway: FakeGateway, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert batch("submit", requests(tmp_path / "in.jsonl"), "--wait", "-o", out) == 0
    assert sorted(custom_ids(out.read_bytes())) == ["r0", "r1", "r2", "r3", "r4"]
    gateway.fails = lambda custom_id: custom_id == "r3"
    gateway.unwell = 1
    assert batch("submit", tmp_path / "in.jsonl", "--wait", "-o", out) == 1
    assert custom_ids(out.read_bytes()) == ["r0", "r1", "r2", "r4", "r3"]
    assert not (tmp_path / "out.jsonl.part").exists()


def test_only_what_failed_is_retried(
    batch: Run, gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.fails = lambda custom_id: custom_id in ("r1", "r4")
    assert batch("submit", requests(tmp_path / "in.jsonl"), "--wait") == 1
    gateway.fails = lambda custom_id: False
    capsys.readouterr()
    assert batch("retry", "batch_1", "--wait") == 0
    assert custom_ids(capsys.readouterr().out) == ["r1", "r4"]
    made = gateway.batches["batch_2"]
    assert custom_ids(gateway.files[made["input_file_id"]]) == ["r1", "r4"]
    assert made["metadata"] == {"retry_of": "batch_1"}
    assert batch("retry", "batch_2") == 0
    assert "no request failed" in capsys.readouterr().out


def test_status_list_cancel_and_results(
    batch: Run, gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.steps = 10**9
    batch("submit", requests(tmp_path / "in.jsonl"))
    batch("submit", tmp_path / "in.jsonl")
    capsys.readouterr()
    assert batch("list") == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["id", "batch_2", "batch_1"]
    assert batch("list", "--json") == 0
    assert [msgspec.json.decode(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["batch_2", "batch_1"]
    assert batch("status", "batch_1") == 0
    assert "batch_1: in_progress; 5 total, 0 completed, 0 failed" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="when it has ended"):
        batch("retry", "batch_1")
    assert batch("results", "batch_1") == 0
    assert "has no results" in capsys.readouterr().err
    assert batch("cancel", "batch_2") == 0
    assert "batch_2 is cancelling" in capsys.readouterr().out
    gateway.steps = 0
    assert batch("status", "batch_1", "--wait", "--json", "-q") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["status"] == "completed"
    assert batch("results", "batch_1") == 0
    assert len(custom_ids(capsys.readouterr().out)) == 5
    assert batch("results", "batch_1", "-o", tmp_path / "got.jsonl") == 0
    assert len(custom_ids((tmp_path / "got.jsonl").read_bytes())) == 5


def test_a_file_that_the_gateway_refuses_is_described(batch: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("submit", requests(tmp_path / "in.jsonl", last="/v1/other"), "--wait") == 1
    assert "line 2: the url is another one" in capsys.readouterr().out


def test_failures_are_reported(batch: Run, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"text": "x"}\n')
    cases: list[tuple[tuple[Any, ...], type[StreamglotError], str]] = [
        (("submit", plain), ConfigError, "batch run"),
        (("submit", tmp_path / "none.jsonl"), ConfigError, "cannot be read"),
        (("submit", requests(tmp_path / "in.jsonl"), "-o", "x"), ConfigError, "--wait"),
        (("retry", "x", "-o", "x"), ConfigError, "--wait"),
        (("status", "nothing"), StreamglotError, "404.*nothing here"),
        (("list", "--key", "wrong"), StreamglotError, "401.*not known"),
        (("list", "--url", "ftp://x"), ConfigError, "http://"),
        (("list", "--url", "http://127.0.0.1:9"), StreamglotError, "does not answer"),
    ]
    for words, kind, message in cases:
        with pytest.raises(kind, match=message):
            batch(*words)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(ConfigError, match="empty"):
        batch("submit", empty)


def test_the_address_comes_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "streamglot.toml"
    config.write_text('[server]\nhost = "0.0.0.0"\nport = 1234\n')
    monkeypatch.setenv("STREAMGLOT_CONFIG", str(config))
    assert gateway_address("", "").url == "http://127.0.0.1:1234"
