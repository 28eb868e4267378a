"""``streamglot batch run``: every row of a file, without a server."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warm
from batch.mock import MockUpstream
from streamglot.cli.app import run as command
from streamglot.cli.batch import rows as rows_module
from streamglot.cli.batch.progress import Counts, ProgressBar
from streamglot.cli.batch.rows import RowsDone, open_rows
from streamglot.cli.batch.run import Template
from streamglot.errors import ConfigError, RequestError
from waiting import WAIT_SECONDS, until

CSV = 'id,text\n1,first\n2,"second, with a comma\nand a line"\n3,third\n'
Run = Callable[..., int]


@pytest.fixture
def batch(upstream: MockUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with these words."""
    config = tmp_path / "streamglot.toml"
    config.write_text(
        f'[server]\ndiscover = false\ndefault_model = "m"\n[upstreams.mock]\nbase_url = "{upstream.url}"\nattempts = 1\n'
        'breaker = {failures = 1000000}\n[store]\nurl = "none"\n'
    )
    monkeypatch.setenv("STREAMGLOT_CONFIG", str(config))
    return lambda *words: command(["batch", "run", *map(str, words)])


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def numbered(count: int, path: Path) -> Path:
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(count)))
    return path


def test_answers_are_joined_to_the_rows_of_a_table(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    table = tmp_path / "reviews.csv"
    table.write_text(CSV)
    assert batch(table, "--prompt", "Summarise {{x}}: {text}", "-s", "be short", "--ordered", "-t", "0.5") == 0
    got = lines(tmp_path / "reviews.out.jsonl")
    assert [line["id"] for line in got] == ["1", "2", "3"]
    assert got[1]["text"] == "second, with a comma\nand a line"
    assert got[1]["answer"] == "re: Summarise {x}: second, with a comma\nand a line"
    info = got[0]["batch"]
    assert (info["row"], info["error"], info["upstream"], info["input_tokens"], info["attempts"]) == (1, None, "mock", 10, 1)
    assert upstream.bodies[0]["messages"][0] == {"role": "system", "content": "be short"}
    assert upstream.bodies[0]["temperature"] == 0.5


def test_a_run_that_is_repeated_continues_and_retries_what_failed(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "7" and times == 1 else 0
    table, out = numbered(20, tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    arguments = (table, "--prompt", "{n}", "-o", out)
    assert batch(*arguments) == 1
    assert [line["n"] for line in lines(out) if line["batch"]["error"]] == [7]
    assert batch(*arguments) == 0
    assert sorted(line["n"] for line in lines(out)) == list(range(20))
    assert not [line for line in lines(out) if line["batch"]["error"]]
    assert batch(*arguments) == 0
    assert {prompt: count for prompt, count in upstream.asked.items() if count != 1} == {"7": 2}


def test_a_torn_last_line_is_repaired(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    table, out = numbered(5, tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    assert batch(table, "--prompt", "{n}", "-o", out, "--ordered") == 0
    data = out.read_bytes()
    for cut in (1, 20, len(data.splitlines()[-1])):
        out.write_bytes(data[:-cut])
        assert batch(table, "--prompt", "{n}", "-o", out, "--ordered") == 0
        assert [line["n"] for line in lines(out)] == list(range(5))
    assert upstream.asked == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 4}


def test_an_output_of_another_input_is_refused(batch: Run, tmp_path: Path) -> None:
    table, out = numbered(5, tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    assert batch(table, "--prompt", "{n}", "-o", out) == 0
    before = out.read_bytes()
    table.write_text('{"n": "other"}\n')
    with pytest.raises(ConfigError, match="row 1 differs"):
        batch(table, "--prompt", "{n}", "-o", out)
    assert out.read_bytes() == before
    for foreign in (b"no JSON\n", b'{"a": 1}\n', b"[1]\n"):
        out.write_bytes(foreign)
        with pytest.raises(ConfigError, match="that no run wrote"):
            batch(table, "--prompt", "{n}", "-o", out)
        assert out.read_bytes() == foreign
    with pytest.raises(ConfigError, match="overwrite the input"):
        batch(table, "--prompt", "{n}", "-o", table)


def test_one_bad_row_never_stops_the_rest(batch: Run, tmp_path: Path) -> None:
    table, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    table.write_text('{"t": "a"}\nno json\n[1]\n\n{"u": "b"}\n{"t": {"deep": 1}}\n{"t": null, "answer": 1}\n')
    assert batch(table, "--prompt", "{t}", "-o", out, "--ordered") == 1
    got = lines(out)
    assert [line["batch"]["row"] for line in got] == [1, 2, 3, 5, 6, 7]
    assert [line["answer"] for line in got] == ["re: a", None, None, None, 're: {"deep":1}', None]
    words = [line["batch"]["error"]["message"] for line in got if line["batch"]["error"]]
    assert [
        word in text
        for word, text in zip(("not JSON", "not a JSON object", "no value for the column 't'", "--column"), words, strict=True)
    ] == [True] * 4


def test_rows_of_a_table_may_be_requests_themselves(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    table, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"prompt": "plain", "note": "kept", "temperature": 0.25},
        {"messages": [{"role": "user", "content": "chat"}], "model": "other"},
    ]
    table.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    assert batch(table, "-o", out, "--ordered", "--max-tokens", "7", "-s", "short") == 0
    assert [(line.get("note"), line["answer"]) for line in lines(out)] == [("kept", "re: plain"), (None, "re: chat")]
    bodies = sorted(upstream.bodies, key=lambda body: str(body["model"]))
    assert [body["model"] for body in bodies] == ["m", "other"]
    assert all("note" not in body and body["messages"][0]["content"] == "short" for body in bodies)
    assert bodies[0]["temperature"] == 0.25


def test_lines_of_the_batch_api_are_answered_as_it_does(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" and times == 1 else 0
    table, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def line(id: object, prompt: str, url: str = "/v1/chat/completions", **more: Any) -> bytes:
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}
        return msgspec.json.encode({"custom_id": id, "method": "POST", "url": url, "body": body}) + b"\n"

    anthropic = line("a", "claude", "/v1/messages", max_tokens=5)
    table.write_bytes(line("r1", "one") + line("r2", "bad") + anthropic + line("e", "x", "/v1/embeddings") + line(None, "x"))
    assert batch(table, "-o", out, "--ordered") == 1
    one, bad, claude, embedding, nameless = lines(out)
    assert (one["id"], one["custom_id"], one["error"]) == ("batch_req_1", "r1", None)
    assert one["response"]["status_code"] == 200
    assert one["response"]["body"]["choices"][0]["message"]["content"] == "re: one"
    assert (bad["response"]["status_code"], bad["response"]["body"]["error"]["code"]) == (400, "mock_failure")
    assert claude["response"]["body"]["content"][0]["text"] == "re: claude"
    assert embedding["response"] is None
    assert "submit" in embedding["error"]["message"]
    assert nameless["custom_id"] is None
    assert batch(table, "-o", out, "--ordered") == 1
    assert [one["custom_id"] for one in lines(out)] == ["r1", "a", "r2", "e", None]
    assert upstream.asked == {"one": 1, "bad": 2, "claude": 1}


def test_parquet(batch: Run, tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types
    from pyarrow import parquet

    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    columns = {"text": [f"t{number}" for number in range(600)], "when": [when] * 600, "blob": [b"x"] * 600}
    parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        assert batch(tmp_path / "in.parquet", "--prompt", "{text} {when}", "-o", out, "--ordered", "-q") == 0
    got = lines(out)
    assert [line["answer"] for line in got] == [f're: t{number} "2026-01-02T03:04:05"' for number in range(600)]
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="not a Parquet"):
        open_rows(tmp_path / "bad.parquet")


def test_invalid_input_is_reported_before_any_request(batch: Run, upstream: MockUpstream, tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text(CSV)
    for words, message in (
        ((table, "--prompt", "{nothing}"), "no column 'nothing'"),
        ((table,), "--prompt"),
        ((table, "--prompt", "{text}", "--column", "id"), "needs the column 'id'"),
        ((table, "--prompt", "{text"), "not a valid template"),
        ((table, "--prompt", "{}"), "without a column name"),
        ((tmp_path / "no.csv", "--prompt", "x"), "cannot be read"),
        ((tmp_path / "streamglot.toml", "--prompt", "x"), "must end with"),
    ):
        with pytest.raises(ConfigError, match=message):
            batch(*words)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(ConfigError, match="names of the columns"):
        batch(empty, "--prompt", "x")
    assert not upstream.asked


def test_a_fault_of_the_settings_stops_the_run(batch: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none.toml").write_text("[server]\ndiscover = false\n")
    monkeypatch.setenv("STREAMGLOT_CONFIG", str(tmp_path / "none.toml"))
    out = tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match="no upstream"):
        batch(numbered(100, tmp_path / "in.jsonl"), "--prompt", "{n}", "-o", out)
    assert lines(out) == []


def test_rows_that_are_not_csv_are_errors_of_their_own(tmp_path: Path) -> None:
    table = tmp_path / "in.tsv"
    table.write_bytes(b"\xef\xbb\xbfa\tb\n1\t2\n1\n\n3\t\xff\n1\t2\t3\n")
    got = list(open_rows(table))
    assert [(row.number, row.values) for row in got if not row.error] == [(1, {"a": "1", "b": "2"}), (3, {"a": "3", "b": "�"})]
    assert [row.number for row in got if row.error] == [2, 4]


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ROW_BYTES", 20)
    table = tmp_path / "in.jsonl"
    table.write_text('{"a": 1}\n{"a": "' + "x" * 100 + '"}\n{"a": 2}')
    got = list(open_rows(table))
    assert [(row.number, bool(row.error)) for row in got] == [(1, False), (2, True), (3, False)]


def test_rows_done_take_five_bytes_each() -> None:
    done = RowsDone()
    for number in range(1, 10_001):
        done.add(number, b"%d" % number)
    assert done.count == 10_000
    assert done.has(10_000)
    assert not done.has(20_000)
    assert not done.has(0)
    assert done.same(5, b"5")
    assert not done.same(5, b"6")
    assert len(done._flags) <= 2**15


def test_a_template_takes_any_name() -> None:
    assert Template("{first name} {a.b} {{}}").render({"first name": "x", "a.b": None}) == "x  {}"
    with pytest.raises(RequestError):
        Template("{a}").render({})
    with pytest.raises(ConfigError):
        Template("{a!r}")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_at_a_terminal_and_printed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(ProgressBar, "clock", lambda self: now)
    counts = Counts(done=3, failed=1, retried=2, input_tokens=30, output_tokens=6, cost=0.5, fraction=0.5)
    shown = counts.line(10.0, 0.0)
    for words in ("3 done", "1 failed", "2 retried", "30 tokens in, 6 out", "$0.5", "0.4 items/s", "0:10 left", "50%"):
        assert words in shown
    assert "unknown" in Counts(fraction=0.1).line(1.0)
    for file, drawn in ((FakeTerminal(), True), (io.StringIO(), False)):
        now = 0.0
        bar = ProgressBar(file)
        bar.update(counts)
        assert file.getvalue() == ""
        now = 11.0
        bar.update(counts)
        bar.update(counts)
        bar.end(counts)
        assert file.getvalue().count("3 done") == 2
        assert ("\r" in file.getvalue()) is drawn
        assert file.getvalue().endswith("\n")


def start(*words: object) -> subprocess.Popen[bytes]:
    program = [str(Path(sys.executable).with_name("streamglot")), "batch", "run", *map(str, words)]
    return warm.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("batch")
def test_a_run_that_is_stopped_continues(number: int, status: int, upstream: MockUpstream, tmp_path: Path) -> None:
    """Only requests in flight are repeated."""
    upstream.hold = threading.Event()
    upstream.held = lambda prompt: int(prompt) >= 30
    table, out = numbered(60, tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    arguments = (table, "--prompt", "{n}", "-o", out, "-c", 4)
    with start(*arguments) as process:
        until(lambda: out.exists() and out.read_bytes().count(b"\n") == 30 and sum(upstream.asked.values()) == 34)
        with start(*arguments) as second:
            _, errors = second.communicate(timeout=WAIT_SECONDS)
            assert second.returncode == 2
            assert b"another run" in errors
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == status
    assert status < 0 or b"run the same command again to continue" in errors
    upstream.hold.set()
    with start(*arguments) as process:
        printed, errors = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0
    assert b"60 of 60 rows" in printed
    assert b"30 done" in errors
    assert b"30 before" in errors
    assert sorted(line["n"] for line in lines(out)) == list(range(60))
    assert sum(upstream.asked.values()) == 64


def test_rows_may_be_stored_as_turns(batch: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'store' / 'turns.db'}"
    monkeypatch.setenv("STREAMGLOT_STORE__URL", url)
    table = numbered(6, tmp_path / "in.jsonl")
    assert batch(table, "--prompt", "{n}", "--log", "-c", "3") == 0
    from gateway.stored_turns import turns

    assert len({turn.session_id for turn in turns(url)}) == 6
