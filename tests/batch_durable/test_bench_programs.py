"""The programs of the benchmarks: one that ends is an error with its output, and never a wait without end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from bench import batch, programs
from bench.programs import LOAD_CORE, Ended, Missing, Program

BROKEN = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]


@pytest.fixture(autouse=True)
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "BUILD", tmp_path)


def test_a_program_that_ends_at_its_start_is_reported_with_its_output() -> None:
    with pytest.raises(Missing, match="broken did not start: the reason"):
        Program("broken", BROKEN, LOAD_CORE).wait_for_text("ready")


def test_a_program_that_ends_later_is_reported_with_its_output() -> None:
    command = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read(); raise SystemExit('the reason')"]
    program = Program("later", command, LOAD_CORE)
    program.wait_for_text("ready")
    program._process.wait()
    with pytest.raises(Ended, match=r"later ended with status 1: ready\nthe reason"):
        program.check()


def test_the_output_of_a_program_that_fails_is_not_taken_for_a_result() -> None:
    assert Program("good", [sys.executable, "-c", "print(7)"], LOAD_CORE).finished() == "7\n"
    with pytest.raises(Ended, match="broken ended with status 3: the reason"):
        Program("broken", BROKEN, LOAD_CORE).finished()


def test_the_batch_benchmark_fails_with_the_output_of_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker"
    worker.write_text(f"#!{sys.executable}\nprint('the reason')\nraise SystemExit(3)\n")
    worker.chmod(0o700)
    monkeypatch.setattr(batch, "gateway_command", lambda: str(worker))
    with pytest.raises(Missing, match="batch-worker-0 did not start: the reason"):
        asyncio.run(batch.run_batch(tmp_path, 1, f"sqlite:///{tmp_path}/s.db", 1, 1, False))
