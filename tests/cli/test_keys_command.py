"""``keys``, ``doctor`` and the start of the gateway report whether keys are required and valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cli.shell import Shell
from cli.shell_store import database
from gateway.worker_client import asked
from waiting import until

CURL = re.compile(r"curl -N http://127\.0\.0\.1:(\d+)/v1/chat/completions -H 'authorization: Bearer (\S+)'")


def doctor(shell: Shell) -> tuple[int, dict[str, Any]]:
    done = shell.run("doctor", "--json", "--offline")
    return done.returncode, next(finding for finding in json.loads(done.stdout) if finding["about"] == "keys")


def listing(shell: Shell) -> str:
    done = shell.run("keys", "list")
    assert done.returncode == 0
    return done.stderr.decode()


def greeting(shell: Shell, folder: Path) -> str:
    """The output of the gateway at its start. The test runs the example in it."""
    log = folder / "greeting"
    with log.open("wb") as sink, shell.started("serve", "--port", "0", errors=sink) as process:
        until(lambda: "More: " in log.read_text() or process.poll() is not None, lambda: log.read_text())
        text = log.read_text()
        found = CURL.search(text)
        assert found, text
        until(lambda: _status(int(found[1])) != 0)
        expected = 401 if "eys are required" in text else 200
        assert _status(int(found[1])) == expected
    return text


def _status(port: int) -> int:
    try:
        return asked(port, "/v1/chat/completions", {"model": "replay", "messages": [{"role": "user", "content": "q"}]})[0]
    except ConnectionError:
        return 0


def test_every_command_of_keys_reads_the_named_configuration(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/other.db"\n')
    for place in (("--config", str(file)), ("-c", str(file))):
        added = shell.run("keys", "add", f"alice{place[0]}", *place)
        assert (added.returncode, bool(added.stdout)) == (0, True), added.stderr
        assert f"alice{place[0]}" in shell.run("keys", "list", *place).stdout.decode()
    assert (tmp_path / "other.db").exists()
    for command, name in (("revoke", "alice--config"), ("remove", "alice-c")):
        assert shell.run("keys", command, name, "--config", str(file)).returncode == 0
    assert "alice" not in shell.run("keys", "list", "--config", str(file)).stdout.decode()
    missing = shell.run("keys", "list", "--config", str(tmp_path / "missing.toml"))
    assert (missing.returncode, b"missing.toml" in missing.stderr) == (2, True)


def test_a_store_without_keys(shell: Shell, tmp_path: Path) -> None:
    assert "keys are not required: there is none" in listing(shell)
    status, found = doctor(shell)
    assert (status, found["state"]) == (0, "note")
    text = greeting(shell, tmp_path)
    assert "Bearer streamglot'" in text
    assert "eys are required" not in text


def test_a_key(shell: Shell, tmp_path: Path) -> None:
    shell.run("keys", "add", "me")
    assert listing(shell) == ""
    status, found = doctor(shell)
    assert (status, found["state"], found["says"]) == (0, "good", "keys are required: 1 in the store")
    text = greeting(shell, tmp_path)
    assert "Keys are required: 1 in the store. Put one in place of YOUR_KEY." in text
    assert "Bearer YOUR_KEY'" in text


def test_the_only_key_was_revoked(shell: Shell, tmp_path: Path) -> None:
    shell.run("keys", "add", "me")
    done = shell.run("keys", "revoke", "me")
    for output in (done.stderr.decode(), listing(shell), greeting(shell, tmp_path)):
        assert "none is valid: the only one was revoked. Every request is refused with 401" in output
        assert "make a key with `streamglot keys add NAME`" in output
        assert 'or set server.authentication = "none"' in output
    status, found = doctor(shell)
    assert (status, found["state"]) == (1, "bad")
    assert "the only one was revoked" in found["says"]
    assert "keys add" in found["step"]


def test_a_database_that_was_deleted(shell: Shell, tmp_path: Path) -> None:
    shell.run("keys", "add", "me")
    for path in database(shell).parent.glob("streamglot.db*"):
        path.unlink()
    status, found = doctor(shell)
    assert (status, found["state"]) == (1, "bad")
    assert "had keys before and has none now" in found["says"]
    assert not database(shell).exists()
    assert "The gateway cannot be used: keys are required and none is known" in greeting(shell, tmp_path)
    assert "had keys before and has none now" in listing(shell)


def test_the_setting_none_requires_no_keys(shell: Shell) -> None:
    shell.environment["STREAMGLOT_SERVER__AUTHENTICATION"] = "none"
    done = shell.run("keys", "add", "me")
    assert b"the gateway does not require it" in done.stderr
    assert "1 key in the store is ignored" in listing(shell)
    assert doctor(shell)[1]["state"] == "note"


def test_invisible_model_patterns_are_refused(shell: Shell) -> None:
    for pattern in ("", "a\x1bb"):
        done = shell.run("keys", "add", "me", "-m", pattern)
        assert (done.returncode, b"Traceback" in done.stderr) == (1, False), done
        assert b"a pattern of models" in done.stderr


def test_bytes_that_are_not_text_find_nothing(shell: Shell) -> None:
    shell.run("query", "-m", "replay", "x")
    for command in (("logs", "show"), ("sessions", "show"), ("keys", "revoke")):
        done = shell.run(*command, "turn_\udcff")
        assert (done.returncode, b"Traceback" in done.stderr) == (1, False), done.stderr
        assert b"there is no" in done.stderr


def test_a_key_may_be_limited_to_some_tools(shell: Shell) -> None:
    assert shell.run("keys", "add", "one", "-T", "weather.*", "--tool", "time").returncode == 0
    assert shell.run("keys", "add", "two", "--no-tools").returncode == 0
    assert shell.run("keys", "add", "three", "--no-tools", "-T", "time").returncode == 2
    shown = shell.run("keys", "list").stdout.decode()
    assert "tools weather.* time" in shown
    assert "tools none" in shown
