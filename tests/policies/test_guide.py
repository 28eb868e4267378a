"""Runs the guide: its tutorial, its configurations, its webhook, and the numbers that it states."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies.policy_streams import call, calls_of, run, stream, text, text_of
from streamglot import writer
from streamglot.patterns.expressions import MAX_PROGRAM
from streamglot.patterns.scanner import HOLD_CHARS, RESCAN_CHARS
from streamglot.policies import Callbacks, load_policies, prepare
from streamglot.policies.builtin.external_judge import Judged, verdict_of
from streamglot.policies.running.facts import MAX_RECORDED_CHARS, MAX_RECORDS
from streamglot.policies.running.judging import MAX_PENDING
from streamglot.policies.verdicts import Rewrite

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "policies.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def house_rules(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("house_rules")
    exec(blocks("python")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, "house_rules", module)
    return module


def test_the_tutorial_writes_a_policy_in_ten_lines(house_rules: types.ModuleType) -> None:
    body = blocks("python")[0].partition("class ")[2]
    assert len([line for line in f"class {body}".splitlines() if line.strip()]) <= 10
    (policy,) = load_policies(tomllib.loads(blocks("toml")[1])["policies"])
    assert isinstance(policy, house_rules.StayInside)
    events = stream(
        call("write", '{"path": "/home/user/project/a"}'),
        call("rm", '{"path": "/etc"}', id="x"),
        call("ls", "{}", id="y"),
        reason="tool_calls",
    )
    after = run(events, policy)
    assert [name for name, _ in calls_of(after)] == ["write", "ls"]
    assert text_of(after) == "[rm may only use /home/user/project/]"


def test_the_policy_of_the_tutorial_is_found_in_a_folder_of_pythonpath(tmp_path: Path) -> None:
    code = next(block for block in blocks("python") if "class StayInside" in block)
    (tmp_path / "house_rules.py").write_text(code)
    (tmp_path / "streamglot.toml").write_text(next(block for block in blocks("toml") if "house_rules" in block))
    program = [sys.executable, "-P", "-m", "streamglot", "policies", "check", "streamglot.toml"]
    for path, status in (("", 2), (".", 0)):
        variables = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **({"PYTHONPATH": path} if path else {})}
        done = subprocess.run(program, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert ("house_rules:StayInside" in done.stdout) is (status == 0)


def test_the_tutorial_runs_without_a_gateway(house_rules: types.ModuleType) -> None:
    assert house_rules.__name__ == "house_rules"
    box = writer("anthropic", id="i", model="m", created=1)
    recording = box.feed(stream(text("a"), call("rm", '{"path": "/etc"}'), reason="tool_calls")) + box.close()
    sent: list[bytes] = []
    names: dict[str, Any] = {"recording": recording, "chunks": [recording], "send": sent.append}
    exec(blocks("python")[1], names)
    assert calls_of(names["safe"]) == []
    assert b"may only use /srv/data/" in b"".join(sent)


def test_the_judge_and_the_callbacks_of_the_guide_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"cheap_question": None}
    exec(blocks("python")[2], names)
    assert prepare([names["Budget"]()])[0].policy.waits
    exec(blocks("python")[3], names)
    assert all(isinstance(policy, Callbacks) for policy in names["policies"])
    assert text_of(run(stream(text("a colour"), call("rm", "{}")), *names["policies"])) == "a color[no]"
    assert capsys.readouterr().out == "text a color\ntext [no]\n"


def test_every_configuration_of_the_guide_is_accepted(house_rules: types.ModuleType) -> None:
    assert house_rules is not None
    for written in blocks("toml"):
        load_policies(tomllib.loads(written)["policies"])


def test_the_webhook_is_as_documented() -> None:
    asked, answered = blocks("json")
    assert msgspec.json.decode(asked, type=Judged).tool == "rm"
    assert isinstance(verdict_of(answered.encode()), Rewrite)


def test_the_numbers_of_the_guide_are_those_of_the_code() -> None:
    for number in (HOLD_CHARS, MAX_PROGRAM, MAX_RECORDS, MAX_RECORDED_CHARS):
        assert f"{number:,}" in GUIDE
    assert f"{MAX_PENDING + 1}th" in GUIDE
    assert f"{RESCAN_CHARS:,}" in (DOCS / "decisions" / "0015-patterns-in-streams.md").read_text()
