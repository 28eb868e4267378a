"""``streamglot policies``: list, show, check, try and replay."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

import warm
from cli.shell import PROGRAM
from store.turns import answer, ask, take, user
from streamglot.events import encode
from streamglot.policies.builtin import BUILT_IN
from streamglot.store import Store, StoreSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "anthropic.sse"
POLICIES = """
[[policies]]
use = "redact"
words = ["Lisbon"]

[[policies]]
use = "deny_tools"
tools = ["weather"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies.toml"
    path.write_text(POLICIES)
    return path


def run(*arguments: str | Path, status: int = 0) -> str:
    command = [PROGRAM, "policies", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "160"}
    done = warm.run(command, env=environment, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout.decode()


def test_all_policies_are_listed_and_shown() -> None:
    listed = run("list")
    assert all(name in listed for name in BUILT_IN)
    assert "tools: list[str]  (required)" in run("show", "deny_tools")
    assert "there is no policy" in run("show", "nope", status=2)


def test_a_configuration_is_checked(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("check", file).splitlines()[:2] == ["2 policies: redact, deny_tools", "  text: held by the pattern"]
    nothing = tmp_path / "nothing.toml"
    nothing.write_text('[[policies]]\nuse = "system_note"\ntext = "x"\n')
    assert run("check", nothing).splitlines() == ["1 policy: system_note", "  nothing of an answer is held"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "no configuration file was found" in run("check", status=2)
    for broken, rule in (
        ('[[policies]]\nuse = "x"', "policies[0]"),
        ("policies = 3", "a list of tables"),
        ("[", "not valid TOML"),
    ):
        bad = tmp_path / "bad.toml"
        bad.write_text(broken)
        assert rule in run("check", bad, status=2)
    assert "cannot be read" in run("check", tmp_path / "missing.toml", status=2)


def test_a_recording_is_shown_before_and_after(file: Path, tmp_path: Path) -> None:
    shown = run("try", EXAMPLE, "-p", file)
    assert "text 'Let me look at the sky over Lisbon.'" in shown
    assert "redact: rewrite text word" in shown
    assert "deny_tools: refuse tool_call weather" in shown
    written = run("try", EXAMPLE, "-p", file, "--as", "openai_chat")
    assert "Lisbon" not in written
    assert "[DONE]" in written
    events = tmp_path / "recording.jsonl"
    from streamglot import reader

    box = reader("anthropic")
    events.write_bytes(b"".join(encode(event) + b"\n" for event in box.feed(EXAMPLE.read_bytes()) + box.close()))
    assert "redact: rewrite text word" in run("try", events, "-p", file)


def test_stored_turns_are_tried_and_replayed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    monkeypatch.setenv("STREAMGLOT_STORE__URL", url)

    async def fill() -> str:
        store = await Store.open(StoreSettings(url=url))
        try:
            turns = [await take(store, ask(user("Where?"), model="m"), answer(f"In Lisbon, {number}.")) for number in range(3)]
            return turns[-1].id
        finally:
            await store.close()

    turn = asyncio.run(fill())
    assert "In [word], 2." in run("try", turn, "-p", file)
    report = run("replay", "-p", file, "--processes", "1", "--since", "7d")
    assert report.splitlines()[0] == "3 turns, 18 events: 3 turns would have been touched"
    assert "redact: rewrite word" in report
