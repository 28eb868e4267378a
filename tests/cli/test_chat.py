"""``streamglot chat``: lines from a pipe, and a person at a terminal."""

from __future__ import annotations

import json

from cli.shell import Shell, said

PROMPT = b"\x1b[0m>"


def test_lines_of_a_pipe(shell: Shell) -> None:
    done = shell.run("chat", "-m", "replay", stdin=b'hello\n\n"""\ntwo\nlines\n"""\n')
    assert done.stdout == b"You said: hello\nYou said: two\nlines\n"
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_was_said_is_sent_again(shell: Shell) -> None:
    shell.tape("song", said("la"))
    done = shell.run("chat", "-m", "song", "-s", "Sing.", stdin=b"one\ntwo\n/save talk.json\n")
    assert done.stdout == b"la\nla\n"
    saved = json.loads((shell.home / "talk.json").read_bytes())
    assert [message["role"] for message in saved] == ["user", "assistant", "user", "assistant"]


def test_commands(shell: Shell) -> None:
    lines = (
        "/help\n/model replay\nhi\n/usage\n/retry\n/reset\n/retry\n/system Be kind.\n/attach none.txt\n/dance\n/exit\nnot said\n"
    )
    done = shell.run("chat", stdin=lines.encode())
    assert done.stdout == b"You said: hi\nYou said: hi\n"
    for words in ("/retry ", "replay\n", "tokens in", "nothing was asked yet", "Be kind.", "cannot be read", "no command /dance"):
        assert words in done.stderr.decode()


def test_an_error_does_not_end_the_conversation(shell: Shell) -> None:
    done = shell.run("chat", "-m", "nowhere/gone", stdin=b"hi\n/model replay\nhello\n")
    assert done.stdout == b"You said: hello\n"
    assert b"cannot be reached" in done.stderr
    assert done.returncode == 0
    assert shell.run("chat", "-m", "nowhere/gone", stdin=b"hi\n").returncode == 1


def test_at_a_terminal(shell: Shell) -> None:
    shell.tape("slow", said("first ", *("more " for _ in range(200))), gap=0.1)
    with shell.terminal("chat", "-m", "replay") as terminal:
        terminal.until(PROMPT)
        terminal.type("hello **you**\r")
        terminal.until(b"\x1b[1myou\x1b[0m")
        terminal.type("/model slow\r")
        terminal.until(b"slow\r\n")
        terminal.type("go\r")
        terminal.until(b"first")
        terminal.type("\x03")
        terminal.seen = b""
        terminal.until(PROMPT)
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert b"Traceback" not in terminal.seen
    history = shell.home / ".local" / "state" / "streamglot" / "history"
    assert "hello **you**" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
