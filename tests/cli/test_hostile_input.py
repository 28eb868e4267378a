"""Input that a command must refuse or survive: devices without an end, bytes that are no text, JSON that is nested too deeply."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cli.shell import DONE, PROGRAM, Shell
from cli.shell_store import texts, turns
from streamglot import ConfigError
from streamglot.cli.options import read_file
from streamglot.cli.question import ATTACHMENT_BYTES, Question, attached
from streamglot.messages import MediaPart, TextPart
from waiting import WAIT_SECONDS

BYTES = os.fsdecode(b"a\xff\xfeb")
READ = "a\ufffd\ufffdb"
DEEP = "[" * 50_000 + "]" * 50_000
"""Short enough for one argument of a command line."""


def refused(done: subprocess.CompletedProcess[bytes], words: str) -> bool:
    """One line on standard error, and the status of a wrong option."""
    return (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1) and words in done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "-m", "replay", "-a", "/dev/zero", "x"],
        ["query", "-m", "replay", "--schema", "/dev/zero", "x"],
        ["query", "-m", "replay", "--tools-file", "/dev/zero", "x"],
        ["translate", "--from", "text", "--inband", "hermes", "--tools", "/dev/zero", "/dev/null"],
        ["config", "show", "--config", "/dev/zero"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-2]}",
)
def test_a_device_without_an_end_is_refused(shell: Shell, arguments: list[str]) -> None:
    assert refused(shell.run(*arguments), "larger than")


def test_a_file_may_have_as_many_bytes_as_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5)
    assert read_file(tmp_path / "file", 5) == b"x" * 5
    with pytest.raises(ConfigError, match="larger than the limit of 4 bytes"):
        read_file(tmp_path / "file", 4)
    for name in ("none", ".", "nul\0"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_file(tmp_path / name, 5)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", ATTACHMENT_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than"):
        attached(str(tmp_path / "large"))


@pytest.mark.parametrize("arguments", [["query", "-m", "replay"], ["chat", "-m", "replay"], ["record", "-m", "replay"]])
def test_a_pipe_without_an_end_is_refused(shell: Shell, arguments: list[str]) -> None:
    for source in ("/dev/zero", '<(printf \'"""\\n\'; yes)'):
        done = subprocess.run(
            ["bash", "-c", f'"$@" < {source}', "bash", PROGRAM, *arguments],
            env=shell.environment,
            cwd=shell.home,
            capture_output=True,
            timeout=2 * WAIT_SECONDS,
            check=False,
        )
        assert refused(done, "larger than" if arguments[0] != "chat" else "more than")


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "-m", "replay", "--schema", f'{{"x": {DEEP}}}', "x"],
        ["probe", "http://127.0.0.1:9", "--body", f'{{"x": {DEEP}}}'],
        ["query", "-m", "replay", "--tools-file", "deep.json", "x"],
        ["query", "-m", "replay", "--schema", "deep.json", "x"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-3]}"[:30],
)
def test_json_that_is_nested_too_deeply_is_refused(shell: Shell, arguments: list[str]) -> None:
    (shell.home / "deep.json").write_text(DEEP)
    assert refused(shell.run(*arguments), "nested too deeply")


def test_a_variable_or_file_of_settings_that_is_nested_too_deeply_is_refused(shell: Shell) -> None:
    done = shell.run("config", "show", environment={"STREAMGLOT_SERVER__ORIGINS": DEEP})
    assert refused(done, "STREAMGLOT_SERVER__ORIGINS")
    (shell.home / "deep.toml").write_text(f"x = {DEEP}\n")
    assert refused(shell.run("config", "show", "--config", "deep.toml"), "deep.toml")


def test_bytes_that_are_not_text_become_replacement_characters(shell: Shell) -> None:
    assert shell.run("query", "-m", "replay", "-s", BYTES, BYTES).stdout.decode() == f"You said: {READ}\n"
    assert texts(turns(shell)[0])[:2] == [f"system: {READ}", f"user: {READ}"]
    assert shell.run("chat", "-m", "replay", stdin=b"caf\xe9\n").stdout.decode() == "You said: caf\ufffd\n"
    assert shell.run("query", "-m", "replay", stdin=b"caf\xe9\n").stdout.decode() == "You said: caf\ufffd\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "-m", BYTES, "x"],
        ["query", "-m", "replay", "-a", BYTES, "x"],
        ["query", "-m", "replay", "--schema", BYTES, "x"],
        ["query", "-m", "replay", "--effort", BYTES, "x"],
        ["query", f"--{BYTES}"],
        [BYTES],
        ["translate", BYTES],
        ["translate", "--from", BYTES, "/dev/null"],
        ["replay", BYTES],
        ["record", "-m", BYTES, "x"],
        ["probe", BYTES],
        ["setup", BYTES],
        ["formats", BYTES],
        ["local", "remove", BYTES],
        ["local", "pull", BYTES],
        ["config", "show", "-c", BYTES],
        ["serve", "-c", BYTES],
        ["reply", "--session", BYTES, "x"],
        ["chat", "-c", BYTES],
        ["logs", "list", "--session", BYTES],
        ["logs", "list", "--since", BYTES],
        ["logs", "search", BYTES],
        ["logs", "show", BYTES],
        ["logs", "export", "-o", f"/none/{BYTES}"],
        ["sessions", "show", BYTES],
        ["keys", "revoke", BYTES],
    ],
    ids=lambda arguments: ascii(" ".join(arguments)),
)
def test_bytes_that_are_not_text_are_refused_with_a_sentence(shell: Shell, arguments: list[str]) -> None:
    done = shell.run(*arguments)
    assert done.returncode in (0, 1, 2)
    assert b"Traceback" not in done.stderr
    assert done.stderr or done.returncode == 0


def test_the_name_of_an_attachment_may_be_no_text(tmp_path: Path) -> None:
    for name, data in ((f"{BYTES}.txt", b"words"), (f"{BYTES}.png", b"\x89PNG")):
        (tmp_path / name).write_bytes(data)
        part = attached(str(tmp_path / name))
        assert READ in (part.text if isinstance(part, TextPart) else part.filename if isinstance(part, MediaPart) else "")
    assert Question(attachments=[f"https://example.com/{BYTES}.png"]).message("x").parts[0] == MediaPart(
        "image/png", url=f"https://example.com/{READ}.png"
    )


def test_the_working_directory_may_not_be_text_or_not_exist(shell: Shell) -> None:
    first, shell.home = shell.home, shell.home / BYTES
    shell.home.mkdir()
    assert shell.run("query", "-m", "replay", "x").stderr == b""
    assert shell.run("reply", "--here", "y").stdout == b"You said: y\n"
    assert READ in shell.run("sessions", "list", "--here").stdout.decode()
    gone = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
    for arguments, status in ((["query", "-m", "replay", "x"], 0), (["sessions", "list", "--here"], 2)):
        done = subprocess.run(
            ["bash", "-c", gone, "bash", PROGRAM, *arguments],
            env=shell.environment,
            cwd=first,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * WAIT_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr.count(b"\n")) == (status, status and 1), done.stderr
    shell.home = first
    assert len(turns(shell)) == 3


def test_halves_of_surrogate_pairs_in_an_answer_become_replacement_characters(shell: Shell) -> None:
    body = 'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a\\ud800b"}}]}\n\n'
    shell.add_recording("halves", [body, DONE])
    for form in ("--raw", "--json", "--events", "--markdown=always", "--markdown=never"):
        done = shell.run("query", "-m", "halves", form, "x")
        assert "a\ufffdb" in done.stdout.decode()
        assert b"Traceback" not in done.stderr
