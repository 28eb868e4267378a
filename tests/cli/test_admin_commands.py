"""``models``, ``formats``, ``config``, ``doctor``, ``setup``, ``local``."""

from __future__ import annotations

import json
import re
import sqlite3
import tomllib

import pytest

from cli.shell import Shell
from cli.shell_store import database


def test_models(shell: Shell) -> None:
    listed = json.loads(shell.run("models", "--json").stdout)
    assert {"model": "replay", "upstream": "replay", "provider": "replay", "pattern": False} in listed["models"]
    assert b"gone  " in shell.run("models").stdout


def test_formats(shell: Shell) -> None:
    assert b"hermes" in shell.run("formats").stdout
    assert b"<tool_call>" in shell.run("formats", "hermes").stdout
    assert shell.run("formats", "-m", "qwen3-8b").stdout == b"qwen3-8b: hermes\n"
    assert shell.run("formats", "klingon").returncode == 2


def test_config(shell: Shell) -> None:
    shown = shell.run("config", "show").stdout.decode()
    assert "upstreams.nowhere.attempts = 1" in shown
    assert "server.port = 8484  # default" in shown
    assert shell.run("config", "edit", environment={"EDITOR": "true"}).returncode == 0
    script = shell.home / "editor"
    script.write_text("#!/bin/sh\necho 'colour = 1' >> \"$1\"\n")
    script.chmod(0o755)
    done = shell.run("config", "edit", environment={"EDITOR": str(script)})
    assert done.returncode == 2
    assert b"colour" in done.stderr
    fresh = shell.home / "new" / "streamglot.toml"
    assert shell.run("config", "edit", "-c", str(fresh), environment={"EDITOR": "true"}).returncode == 0
    assert tomllib.loads(fresh.read_text()) == {"server": {}}


def test_config_check(shell: Shell) -> None:
    file = shell.home / "checked.toml"
    file.write_text(
        '[upstreams.one]\nbase_url = "http://127.0.0.1:9/v1"\nkey_env = "ABSENT_KEY"\n[[policies]]\nuse = "max_output"\nchars = 5\n'
    )
    done = shell.run("config", "check", str(file))
    assert done.returncode == 0
    warning, verdict = done.stdout.decode().splitlines()
    assert warning.startswith("warning: upstreams.one.key_env: the variable ABSENT_KEY is not set")
    assert verdict == f"{file} is in order: 1 upstream, 0 routes, 1 policy, 0 keys"
    assert shell.run("config", "check").returncode == 0, "the usual file"
    for wrong, named in (
        ("colour = 1", "colour"),
        ('[[policies]]\nuse = "no_such_policy"', "no_such_policy"),
        ('[engine]\nstages = ["absent:Stage"]', "absent"),
        ('[server]\nredact = ["("]', "redact"),
    ):
        file.write_text(wrong)
        done = shell.run("config", "check", str(file))
        assert done.returncode == 2, wrong
        assert named in done.stderr.decode()
    nowhere = {"STREAMGLOT_CONFIG": "", "XDG_CONFIG_HOME": str(shell.home / "empty")}
    file.rename(shell.home / "other.toml")
    (shell.home / "streamglot.toml").unlink()
    done = shell.run("config", "check", environment=nowhere)
    assert (done.returncode, b"there is no configuration file to check" in done.stderr) == (2, True)


def test_config_schema(shell: Shell) -> None:
    schema = json.loads(shell.run("config", "schema").stdout)
    assert schema["properties"]["server"] == {"$ref": "#/$defs/ServerConfig"}


def test_the_version_names_the_main_packages(shell: Shell) -> None:
    lines = shell.run("--version").stdout.decode().splitlines()
    assert lines[0].startswith("streamglot 0.")
    assert lines[1].startswith("Python 3.")
    assert any(line.startswith("msgspec ") for line in lines)


def test_doctor(shell: Shell) -> None:
    done = shell.run("doctor", "--json")
    findings = {finding["about"]: finding for finding in json.loads(done.stdout)}
    assert findings["upstream nowhere"]["state"] == "bad"
    assert "check base_url" in findings["upstream nowhere"]["step"]
    assert findings["local model"]["step"] == "streamglot local pull"
    assert done.returncode == 1
    (shell.home / "streamglot.toml").write_text('[upstreams.one]\nbase_url = "http://127.0.0.1:9"\nkey_env = "MY_KEY"\n')
    words = shell.run("doctor", "--offline").stdout.decode()
    assert "MY_KEY is not set  → export MY_KEY=…" in words
    assert "\x1b" not in words
    (shell.home / "streamglot.toml").write_text("colour = 1")
    done = shell.run("doctor", "--offline")
    assert done.returncode == 1
    assert "streamglot config edit" in done.stdout.decode()


def test_doctor_and_the_store(shell: Shell) -> None:
    def store(**variables: str) -> tuple[int, dict[str, str]]:
        done = shell.run("doctor", "--json", "--offline", environment=variables)
        return done.returncode, next(finding for finding in json.loads(done.stdout) if finding["about"] == "store")

    assert store()[1]["says"].endswith("streamglot.db does not exist yet: the first turn creates it")
    assert not database(shell).exists()
    assert store(STREAMGLOT_STORE__URL="none")[1]["state"] == "note"
    shell.run("query", "-m", "replay", "x")
    status, found = store()
    assert (status, found["state"]) == (0, "good")
    assert re.fullmatch(r"sqlite:///.*streamglot\.db, version \d+, 1 turns, \d+ (bytes|kB)", found["says"])
    with sqlite3.connect(database(shell)) as connection:
        connection.execute("UPDATE schema_version SET version = 9999")
    status, found = store()
    assert (status, found["state"]) == (1, "bad")
    assert "has version 9999" in found["says"]
    assert "Update streamglot" in found["says"]
    assert "store.url" in found["step"]
    done = shell.run("query", "-m", "replay", "x")
    assert (done.returncode, done.stdout) == (0, b"You said: x\n")
    assert b"a newer release made it" in done.stderr
    assert b"a newer release made it" in shell.run("logs", "list").stderr
    status, found = store(STREAMGLOT_STORE__URL="postgresql://me:hidden@127.0.0.1:9/none")
    assert (status, found["state"]) == (1, "bad")
    assert "hidden" not in found["says"]


CLIENTS = (
    "codex",
    "claude-code",
    "openai",
    "anthropic",
    "opencode",
    "aider",
    "continue",
    "open-webui",
    "vercel",
    "langchain",
    "curl",
    "gemini-cli",
    "qwen-code",
    "crush",
    "goose",
    "zed",
    "copilot",
    "cline",
)


@pytest.mark.parametrize("client", CLIENTS)
def test_setup(shell: Shell, client: str) -> None:
    done = shell.run("setup", client, "--address", "http://10.0.0.1:1234/", "-m", "some-model", "--key", "k-1")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "http://10.0.0.1:1234" in text
    assert "1234//" not in text
    if client in ("claude-code", "opencode"):
        json.loads(text)
    if client == "codex":
        assert tomllib.loads(text)["model_providers"]["streamglot"]["base_url"] == "http://10.0.0.1:1234/v1"


def test_setup_writes_but_not_over_what_it_cannot_read(shell: Shell) -> None:
    done = shell.run("setup", "claude-code", "--write")
    path = shell.home / ".claude" / "settings.json"
    assert done.returncode == 0
    assert json.loads(path.read_text())["env"]["ANTHROPIC_MODEL"] == "local"
    path.write_text("mine")
    done = shell.run("setup", "claude-code", "--write")
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert shell.run("setup", "curl", "--write").returncode == 2
    assert shell.run("setup", "klingon").returncode == 2
    assert shell.run("setup", "codex", "-m", 'x"\nevil = "').returncode == 2
    assert len(shell.run("setup").stdout.splitlines()) == len(CLIENTS)


def test_local(shell: Shell) -> None:
    done = shell.run("local", "list")
    assert b"streamglot local pull" in done.stderr
    (shell.home / "tiny.gguf").write_bytes(b"GGUF....")
    done = shell.run("local", "pull", "tiny.gguf")
    assert done.stdout.decode().strip().endswith("tiny.gguf")
    assert b"* tiny  0 MB" in shell.run("local", "list").stdout
    assert shell.run("local", "remove", "tiny").returncode == 0
    assert shell.run("local", "remove", "tiny").returncode == 2
    with shell.terminal("local", "pull", "tiny.gguf") as terminal:
        assert terminal.end() == 0
    assert b"weights" in terminal.seen
