"""``streamglot chat``: lines from a pipe, and a person at a terminal."""

from __future__ import annotations

import json
import re
import termios

import pytest

from cli.shell import DONE, PROGRAM, Shell, Terminal, chunk, prompt, text_answer
from cli.shell_store import texts, turns
from streamglot.cli.commands.ask import with_results
from streamglot.cli.commands.chat import NARROWEST, help_text
from streamglot.messages import MediaPart, Message, TextPart, ToolCallPart, ToolResultPart


def test_lines_of_a_pipe(shell: Shell) -> None:
    done = shell.run("chat", "-m", "replay", stdin=b'hello\n\n"""\ntwo\nlines\n"""\n')
    assert done.stdout == b"You said: hello\nYou said: two\nlines\n"
    assert (done.returncode, done.stderr) == (0, b"")


def test_each_request_repeats_the_conversation(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
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
    for words in (
        "/retry ",
        "model replay\n",
        "tokens in",
        "nothing was asked yet",
        "Be kind.",
        "cannot be read",
        "no command /dance",
    ):
        assert words in done.stderr.decode()


def call(id: str, kind: str = "function") -> ToolCallPart:
    return ToolCallPart(id, f"tool_{id}", "{}", kind)  # type: ignore[arg-type]  # one of the kinds


def words(text: str) -> Message:
    return Message("user", [TextPart(text)])


def test_the_message_after_a_call_is_its_result() -> None:
    asked = Message("assistant", [TextPart("Let me see."), call("a")])
    result = ToolResultPart("a", [TextPart("sunny")], name="tool_a")
    assert with_results([words("Weather?"), asked, words("sunny")]) == [words("Weather?"), asked, Message("tool", [result])]
    picture = Message("user", [MediaPart("image/png", data="eA=="), TextPart("this")])
    shown = with_results([asked, picture])[-1].parts[0]
    assert isinstance(shown, ToolResultPart)
    assert shown.content == picture.parts


def test_several_calls_get_the_result_not_run() -> None:
    asked = Message("assistant", [call("a"), call("b", "custom"), call("s", "server")])
    refused = [
        ToolResultPart("a", [TextPart("not run")], name="tool_a"),
        ToolResultPart("b", [TextPart("not run")], name="tool_b", kind="custom"),
    ]
    assert with_results([asked, words("sunny")]) == [asked, Message("tool", [*refused]), words("sunny")]


def test_calls_that_have_their_results_are_left_alone() -> None:
    asked, results = Message("assistant", [call("a")]), Message("tool", [ToolResultPart("a", [TextPart("sunny")])])
    ran = Message("assistant", [call("s", "server"), ToolResultPart("s", [TextPart("found")], kind="server"), TextPart("yes")])
    before = [words("Weather?"), asked, results, words("thanks"), ran, words("bye")]
    assert with_results(before) == before
    again = with_results([*before, asked, words("cloudy")])  # the same id, once more
    assert again[:-1] == [*before, asked]
    assert again[-1].role == "tool"


def test_a_chat_continues_after_a_call(shell: Shell) -> None:
    """Each request has a result for every earlier call; the saved file has only the messages."""
    function = {"name": "weather", "arguments": "{}"}
    shell.add_recording(
        "calls",
        [chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}]), chunk("tool_calls"), DONE],
    )
    lines = b"Weather?\n/model replay\nsunny\n/retry\n/save talk.json\n"
    done = shell.run("chat", "-m", "calls", stdin=lines)
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


def test_an_unserved_model_is_refused_and_the_old_one_stays(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
    served = {"STREAMGLOT_UPSTREAMS__RECORDED__MODELS": '["song"]'}
    lines = b"/usage\n/model nosuch\n/usage\nhi\n/model nosuch\n/usage\n/model\n"
    done = shell.run("chat", "-m", "song", stdin=lines, environment=served)
    assert (done.returncode, done.stdout) == (0, b"la\n")
    assert [b"nosuch" if b"nosuch" in line else line.partition(b":")[0] for line in done.stderr.splitlines()] == [
        b"streamglot",  # nothing was asked yet
        b"nosuch",
        b"streamglot",
        b"nosuch",
        b"5 tokens in, 1 out (estimated); cost",
        b"model song",
    ]


def test_an_unserved_model_in_the_options_does_not_end_the_chat(shell: Shell) -> None:
    served = {"STREAMGLOT_UPSTREAMS__RECORDED__MODELS": '["song"]'}
    done = shell.run("chat", "-m", "nosuch", stdin=b"hi\n/usage\n/model replay\nhello\n", environment=served)
    assert (done.returncode, done.stdout) == (0, b"You said: hello\n")
    assert b"no upstream serves the model 'nosuch'" in done.stderr


def test_commands_report_what_they_did(shell: Shell) -> None:
    (shell.home / "note.md").write_text("note")
    lines = "hi\n/save talk.json\n/reset\n/save talk.json\n/system A.\n/system clear\n/system\n/attach note.md\n/save\n/attach\n"
    done = shell.run("chat", "-m", "replay", stdin=lines.encode())
    assert done.stderr.decode().splitlines() == [
        "2 messages are saved in talk.json",
        "2 messages are forgotten; the next question starts a new conversation",
        "0 messages are saved in talk.json",
        "system message: A.",
        "the system message is removed",
        "there is no system message",
        "note.md is sent with the next message",
        "streamglot: /save needs the name of a file: /save FILE",
        "streamglot: /attach needs the name of a file, or an address: /attach FILE",
    ]


@pytest.mark.parametrize("columns", [20, 40, 79, 80, 200])
def test_the_help_is_wrapped_between_words(columns: int) -> None:
    shown = help_text(columns)
    assert max(map(len, shown.splitlines())) < max(columns, NARROWEST)
    assert shown.split() == help_text(1000).split()


# --- resumed


def test_a_conversation_is_resumed_with_its_model_and_system_message(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
    shell.run("chat", "-m", "recorded/song", "-s", "Sing.", stdin=b"one\n")
    (first,) = turns(shell)
    shell.run("query", "-m", "replay", "something else")
    for option in (["--continue", first.session_id[:20]], ["-c", first.session_id], [f"--continue={first.session_id}"]):
        done = shell.run("chat", *option, stdin=b"two\n/model\n/system\n")
        assert (done.returncode, done.stdout) == (0, b"la\n")
        assert done.stderr == b"model recorded/song\nsystem message: Sing.\n"
        newest = turns(shell)[0]
        assert newest.session_id == first.session_id
        assert texts(newest)[:4] == ["system: Sing.", "user: one", "assistant: la", "user: two"]
    done = shell.run("chat", "-c", "-m", "replay", "-s", "Speak.", stdin=b"three\n/reset\nfour\n")
    assert done.stdout == b"You said: three\nYou said: four\n"
    fourth, third, *_ = turns(shell)
    assert (third.session_id, texts(third)[0]) == (first.session_id, "system: Speak.")
    assert fourth.session_id != first.session_id
    assert texts(fourth) == ["system: Speak.", "user: four", "answer: You said: four"]


def test_a_resumed_conversation_keeps_its_tools(shell: Shell) -> None:
    (shell.home / "tools.json").write_text('[{"type":"function","function":{"name":"weather"}}]')
    shell.run("chat", "-m", "replay", "--tools-file", "tools.json", stdin=b"one\n")
    shell.run("chat", "--here", stdin=b"two\n")
    request = turns(shell)[0].request
    assert request is not None
    assert [tool.name for tool in request.tools] == ["weather"]


def test_resuming_without_a_stored_conversation_is_an_error(shell: Shell) -> None:
    for option, words in ((["-c"], b"no answer yet"), (["--here"], b"of this directory"), (["-c", "ses_none"], b"no session")):
        done = shell.run("chat", *option, stdin=b"hi\n")
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
        assert words in done.stderr
    assert shell.run("chat", "--here", "-c", "ses_none").returncode == 2
    assert shell.run("chat", "-c", environment={"STREAMGLOT_STORE__URL": "none"}).returncode == 2


def test_a_resumed_chat_shows_the_end_of_the_conversation(shell: Shell) -> None:
    shell.run("query", "-m", "replay", "the question")
    with shell.terminal("chat", "--continue") as terminal:
        terminal.until(prompt("replay"))
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert b"resumed after 2 messages" in terminal.seen
    assert b"user: the question\r\n  assistant: You said: the question\r\n" in terminal.seen


# --- at a terminal


def test_commands_models_and_files_are_completed(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
    (shell.home / "notes of today.md").write_text("x")
    with shell.terminal("chat", "-m", "replay", STREAMGLOT_UPSTREAMS__RECORDED__MODELS='["song"]') as terminal:
        terminal.until(prompt("replay"))
        for typed, shown, model in (
            ("/he\t\r", b"list the commands", "replay"),
            ("/mod\t so\t\r", b"model song\r\n", "song"),
            ("/attach notes\t\r", b"notes of today.md is sent with the next message", "song"),
            ("\tno command\t\r", b"la  ", "song"),
        ):
            terminal.type(typed)
            terminal.until(shown, prompt(model))
        terminal.type("\x04")
        assert terminal.end() == 0


def echoes(terminal: Terminal) -> bool:
    return bool(termios.tcgetattr(terminal.master)[3] & termios.ECHO)


@pytest.mark.parametrize("command", [["chat", "-m", "slow"], ["query", "-m", "slow", "go"]], ids=["chat", "query"])
def test_an_interrupt_is_reported_without_moving_the_cursor(shell: Shell, command: list[str]) -> None:
    """The terminal's own ``^C`` at the right margin would begin a line, and the block would be drawn one line too low."""
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    with shell.terminal(*command) as terminal:
        if command[0] == "chat":
            terminal.until(prompt("slow"))
            terminal.type("go\r")
        terminal.until(b"first")
        assert not echoes(terminal)
        terminal.type("typed\x03")
        seen = terminal.until(b"stopped")
        if command[0] == "chat":
            terminal.until(b"stopped", prompt("slow"))
            terminal.type("\x04")
        assert terminal.end() in (0, 130)
        assert b"^C" not in seen
        assert b"typed" not in seen + terminal.seen
        assert echoes(terminal)


def test_a_command_in_the_background_leaves_the_terminal_alone(shell: Shell) -> None:
    """A process that changes a terminal from the background is stopped by the system."""
    with shell.terminal(
        "query", "-m", "replay", "hello", program=["bash", "-ic", '"$@" & wait $!; echo done', "bash", PROGRAM]
    ) as terminal:
        terminal.until(b"You said: hello")
        terminal.until(b"done")


def test_a_chat_works_at_a_terminal(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(200))), gap=0.1)
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


def test_every_line_of_a_chat_is_wrapped_between_words(shell: Shell) -> None:
    question = "a question of many words that does not fit into a line of this terminal"
    shell.run("query", "-m", "replay", question)
    with shell.terminal(
        "chat", "--continue", "-m", "nosuch", COLUMNS="40", STREAMGLOT_UPSTREAMS__RECORDED__MODELS='["song"]'
    ) as terminal:
        terminal.until(prompt("replay"))
        terminal.type("/attach nothing-of-this-name-is-in-this-directory.txt\r")
        terminal.until(b"cannot be read", prompt("replay"))
        terminal.type("/system Some words that follow each other until the line is full.\r")
        terminal.until(b"system message: ", prompt("replay"))
        terminal.type("\x04")
        assert terminal.end() == 0
    greeting, *_ = terminal.everything.split(prompt("replay"))
    lines = [*re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", greeting).decode().split("\r\n")]
    assert max(map(len, lines)) < 40
    shown = " ".join(line.strip() for line in lines)
    for words in ("no upstream serves the model 'nosuch'", "/help lists the commands, Ctrl-D leaves", f"user: {question}"):
        assert words in shown
    assert b"system message: Some words that follow\r\neach other until the line is full." in terminal.everything
    assert b"\r\nnothing-of-this-name-is-in-this-directory.txt" in terminal.everything


def test_an_unserved_model_is_reported_when_the_chat_starts(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
    with shell.terminal("chat", "-m", "nosuch", STREAMGLOT_UPSTREAMS__RECORDED__MODELS='["song"]') as terminal:
        terminal.until(b"no model is named: /model NAME", prompt(""))
        terminal.type("/model nosuch\r")
        terminal.until(b"no upstream serves", prompt(""))
        terminal.type("\x04")
        assert terminal.end() == 0
    errors = re.findall(rb"\x1b\[31m(.*?)\x1b\[0m", terminal.everything, re.DOTALL)
    assert errors[0].startswith(b"streamglot: no upstream serves the model 'nosuch'; upstreams: ")
    assert errors == [errors[0]] * 2


def test_a_model_that_is_not_listed_is_accepted_when_the_chat_starts(shell: Shell) -> None:
    shell.add_recording("unlisted", text_answer("la"))
    with shell.terminal("chat", "-m", "recorded/unlisted", STREAMGLOT_UPSTREAMS__RECORDED__MODELS='["song"]') as terminal:
        terminal.until(b"model recorded/unlisted; ", prompt("recorded/unlisted"))
        terminal.type("\x04")
        assert terminal.end() == 0
    assert b"no upstream" not in terminal.everything


def test_the_usage_of_a_stopped_answer_is_estimated(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    with shell.terminal("chat", "-m", "slow") as terminal:
        terminal.until(prompt("slow"))
        terminal.type("a question of some words\r")
        terminal.until(b"first")
        terminal.type("\x03")
        terminal.until(b"stopped", prompt("slow"))
        terminal.type("/usage\r")
        terminal.until(b"; cost: unknown", prompt("slow"))
        terminal.type("\x04")
        assert terminal.end() == 0
    assert re.search(rb"[1-9]\d* tokens in, [1-9]\d* out \(estimated\); cost: unknown", terminal.everything)
