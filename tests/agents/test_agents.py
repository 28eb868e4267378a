"""A small part of ``make agents`` for every run of the tests: two real agents, each against dialects that are not its own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from agents.drivers import HERE, Ran, installed
from agents.matrix import DIRECT, Cell, Found, cells
from agents.page import page
from agents.run import drive_twice
from agents.scenarios import Script

MODULES = HERE / "node_modules"
CELLS = (
    Cell("codex", "openai_chat", "patch"),
    Cell("codex", "ollama", "cut-call"),
    Cell("codex-ws", "anthropic", "file"),
    Cell("codex-ws", "gemini", "interrupt"),
    Cell("claude-code", "openai_responses", "parallel"),
    Cell("claude-code", "bedrock_converse", "reasoning"),
    Cell("claude-code", "ollama", "file"),
    Cell("claude-code", "openai_chat", "interrupt"),
    Cell("claude-code", "gemini", "image"),
)
"""Every kind of scenario and every dialect once, in about a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.agent}-{cell.upstream}-{cell.scenario}")
def test_an_agent_works_on_another_dialect(cell: Cell, tmp_path: Path) -> None:
    if not installed(MODULES):
        warnings.warn("NOT CHECKED with the real coding agents: they are not installed", stacklevel=1)
        pytest.skip("the agents are not installed: make test installs them where npm is there")
    outcome = drive_twice(cell, MODULES, tmp_path)
    assert outcome.found.faults == [], f"{outcome.seen}\n{outcome.ran.output[-2000:]}\n{outcome.ran.errors[-2000:]}"


# --- the runner itself


def test_cells_that_cannot_be_are_left_out() -> None:
    found = cells(["codex", "opencode", "qwen-code"], [DIRECT], ["patch", "image"])
    assert [(cell.agent, cell.scenario) for cell in found] == [("codex", "patch"), ("codex", "image"), ("opencode", "image")]


def test_the_page_shows_what_the_control_explains(tmp_path: Path) -> None:
    for package in ("@openai/codex", "@qwen-code/qwen-code"):
        place = tmp_path / package / "package.json"
        place.parent.mkdir(parents=True)
        place.write_text('{"version": "1.2.3"}')
    found = [
        Found(Cell("codex", DIRECT, "file"), [], 1.0),
        Found(Cell("codex", "anthropic", "file"), [], 1.0, again=True),
        Found(Cell("codex", "ollama", "file"), ["it did not end"], 1.0, again=True),
        Found(Cell("qwen-code", DIRECT, "cut-text"), ["it ended with 1"], 1.0),
        Found(Cell("qwen-code", "anthropic", "cut-text"), ["it ended with 1"], 1.0),
    ]
    text = page(found, tmp_path)
    assert "| codex | ok | ok ² | wrong |" in text
    assert "- codex, ollama: it did not end" in text
    assert "| qwen-code | wrong | as direct | not run |" in text
    assert "@qwen-code/qwen-code 1.2.3" in text
    assert "2 of 5 runs are right (1 of them the second time), 2 go wrong without a gateway too." in text
    assert found[4].explained_by({one.cell: one for one in found})
    assert not found[2].explained_by({one.cell: one for one in found})


def test_a_run_that_went_wrong_once_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(Script):
        def verify(self, output: str) -> list[str]:
            return [] if self.folder.parent.name == "second" else ["it was busy"]

    monkeypatch.setattr("agents.run.SCENARIOS", {"file": Nothing})
    monkeypatch.setattr("agents.run.run", lambda *_: Ran(0, "", ""))
    outcome = drive_twice(Cell("codex", DIRECT, "file"), MODULES, tmp_path)
    assert (outcome.found.faults, outcome.found.again) == ([], True)
