"""``streamglot chat``: lines from a pipe, and a person at a terminal."""

from __future__ import annotations

import json

from cli.past import turns
from cli.shell import DONE, Shell, chunk, prompt, said
from streamglot.cli.reply import with_results
from streamglot.messages import MediaPart, Message, TextPart, ToolCallPart, ToolResultPart


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


def call(id: str, kind: str = "function") -> ToolCallPart:
    return ToolCallPart(id, f"tool_{id}", "{}", kind)  # type: ignore[arg-type]


def words(text: str) -> Message:
    return Message("user", [TextPart(text)])


def test_what_is_said_after_a_call_is_its_result() -> None:
    asked = Message("assistant", [TextPart("Let me see."), call("a")])
    result = ToolResultPart("a", [TextPart("sunny")], name="tool_a")
    assert with_results([words("Weather?"), asked, words("sunny")]) == [words("Weather?"), asked, Message("tool", [result])]
    picture = Message("user", [MediaPart("image/png", data="eA=="), TextPart("this")])
    shown = with_results([asked, picture])[-1].parts[0]
    assert isinstance(shown, ToolResultPart)
    assert shown.content == picture.parts


def test_several_calls_were_not_run() -> None:
    asked = Message("assistant", [call("a"), call("b", "custom"), call("s", "server")])
    refused = [
        ToolResultPart("a", [TextPart("not run")], name="tool_a"),
        ToolResultPart("b", [TextPart("not run")], name="tool_b", kind="custom"),
    ]
    assert with_results([asked, words("sunny")]) == [asked, Message("tool", [*refused]), words("sunny")]


def test_calls_that_have_their_results_are_left_alone() -> None:
    asked, told = Message("assistant", [call("a")]), Message("tool", [ToolResultPart("a", [TextPart("sunny")])])
    ran = Message("assistant", [call("s", "server"), ToolResultPart("s", [TextPart("found")], kind="server"), TextPart("yes")])
    before = [words("Weather?"), asked, told, words("thanks"), ran, words("bye")]
    assert with_results(before) == before
    again = with_results([*before, asked, words("cloudy")])  # the same id, once more
    assert again[:-1] == [*before, asked]
    assert again[-1].role == "tool"


def test_a_chat_goes_on_after_a_call(shell: Shell) -> None:
    """Each request that goes out answers the calls before it; what is saved is what was said."""
    function = {"name": "weather", "arguments": "{}"}
    shell.tape(
        "calls",
        [chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}]), chunk("tool_calls"), DONE],
    )
    lines = b"Weather?\n/model replay\nsunny\n/retry\n/save talk.json\n"
    done = shell.keeps().run("chat", "-m", "calls", stdin=lines)
    assert done.returncode == 0, done.stderr
    saved = json.loads((shell.home / "talk.json").read_bytes())
    assert [message["role"] for message in saved] == ["user", "assistant", "user", "assistant"]
    retried, asked, _ = turns(shell)
    for turn in (retried, asked):
        assert turn.upstream_request is not None
        *_, result = turn.upstream_request.messages
        assert [message.role for message in turn.upstream_request.messages] == ["user", "assistant", "tool"]
        assert result.parts == [ToolResultPart("c1", [TextPart("sunny")], name="weather")]


def test_an_error_does_not_end_the_conversation(shell: Shell) -> None:
    done = shell.run("chat", "-m", "nowhere/gone", stdin=b"hi\n/model replay\nhello\n")
    assert done.stdout == b"You said: hello\n"
    assert b"cannot be reached" in done.stderr
    assert done.returncode == 0
    assert shell.run("chat", "-m", "nowhere/gone", stdin=b"hi\n").returncode == 1


def test_at_a_terminal(shell: Shell) -> None:
    shell.tape("slow", said("first ", *("more " for _ in range(200))), gap=0.1)
    with shell.terminal("chat", "-m", "replay") as terminal:
        terminal.until(prompt("replay"))
        terminal.type("hello **you**\r")
        terminal.until(b"\x1b[1myou\x1b[0m")
        terminal.type("/model slow\r")
        terminal.until(b"slow\r\n")
        terminal.type("go\r")
        terminal.until(b"first")
        terminal.type("\x03")
        terminal.seen = b""
        terminal.until(prompt("slow"))
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert b"Traceback" not in terminal.seen
    history = shell.home / ".local" / "state" / "streamglot" / "history"
    assert "hello **you**" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
