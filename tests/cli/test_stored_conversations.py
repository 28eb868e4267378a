"""``query``, ``chat`` and ``reply`` store their turns, and still answer if nothing can be stored."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import DONE, PROGRAM, Shell, chunk, interrupt, prompt, text_answer
from cli.shell_store import database, in_store, texts, turns
from response_server import serve_response
from store.turns import answer as reply
from store.turns import ask, assistant, take, thought, user
from streamglot.messages import ReasoningPart
from streamglot.store import Store
from waiting import WAIT_SECONDS
from web_chat import web_chat

CORPUS = Path(__file__).parents[1] / "corpus"


def quietly(done: subprocess.CompletedProcess[bytes]) -> None:
    """The command succeeded without any output on standard error."""
    assert (done.returncode, done.stderr) == (0, b"")


# --- query and chat


def test_a_query_is_stored(shell: Shell) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    shell.add_recording("song", [chunk(reasoning_content="hm"), chunk(content="la"), chunk("stop", usage), DONE])
    done = shell.run("query", "-m", "recorded/song", "-s", "Sing.", "a", "song")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"la\n", b"hm\n")
    (turn,) = turns(shell)
    assert (turn.model, turn.upstream, turn.ending, turn.error) == ("recorded/song", "recorded", "end", None)
    assert turn.dialects == {"client": "cli", "upstream": "openai_chat"}
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens, turn.cost) == (7, 2, None)
    assert texts(turn) == ["system: Sing.", "user: a song", "answer: la"]
    assert turn.response is not None
    thinking = turn.response.choices[0].parts[0]
    assert isinstance(thinking, ReasoningPart)
    assert thinking.text == "hm"
    assert turn.timings["first_event"] > 0
    assert turn.upstream_request is not None
    assert turn.upstream_request.model == "song"
    session = json.loads(shell.run("sessions", "list", "--json").stdout)
    assert (session["id"], session["directory"], session["title"]) == (turn.session_id, str(shell.home), "a song")
    assert database(shell).stat().st_mode & 0o077 == 0


def test_the_cost_of_an_answer_is_a_number(shell: Shell) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    shell.add_recording("gpt-4o", [chunk(content="la"), chunk("stop", usage), DONE])
    (shell.home / "streamglot.toml").write_text(
        f'[server]\ndiscover = false\n[upstreams.openai]\nbase_url = "file:{shell.recordings}"\n'
    )
    assert shell.run("query", "-m", "gpt-4o", "x").returncode == 0
    assert turns(shell)[0].cost == pytest.approx(0.0026)


def test_a_chat_is_one_session_until_it_is_reset(shell: Shell) -> None:
    done = shell.run("chat", "-m", "replay", stdin=b"one\ntwo\n/reset\nthree\n")
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
    assert b"4 messages are forgotten" in done.stderr
    third, second, first = turns(shell)
    assert first.session_id == second.session_id != third.session_id
    assert texts(second) == ["user: one", "assistant: You said: one", "user: two", "answer: You said: two"]
    assert texts(third) == ["user: three", "answer: You said: three"]


def test_ctrl_c_stores_the_partial_answer(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    with shell.started("query", "-m", "slow", "x") as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"first "
        interrupt(process)
        err = process.communicate(timeout=60)[1]
    assert (process.returncode, err) == (130, b"")
    (turn,) = turns(shell)
    assert turn.ending == "cancelled"
    assert texts(turn)[-1].startswith("answer: first ")
    with shell.terminal("query", "-m", "slow", "x") as terminal:
        terminal.until(b"first")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert [turn.ending for turn in turns(shell)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_stores_the_partial_answer(shell: Shell, number: signal.Signals, status: int) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    quietly(shell.run("query", "-m", "replay", "x"))
    for command in (("query", "-m", "slow"), ("reply", "-m", "slow")):
        with shell.started(*command, "x") as process:
            assert process.stdout is not None
            assert process.stdout.read(6) == b"first "
            process.send_signal(number)
            process.send_signal(number)  # as a terminal does that goes away
            err = process.communicate(timeout=60)[1]
        assert (process.returncode, err) == (status, b"")
        assert turns(shell)[0].ending == "cancelled"
        assert texts(turns(shell)[0])[-1].startswith("answer: first ")


BEFORE_A_STEP = """\
import os, signal, sys
from streamglot.cli import main
from streamglot.tasks import LoopThread

begin = LoopThread.begin


def signalled(thread, step):
    if step.__qualname__ == "Stream.read":
        os.kill(os.getpid(), signal.SIGTERM)
    return begin(thread, step)


LoopThread.begin = signalled
main()
"""


def test_a_signal_before_a_step_of_the_client_starts_ends_it_silently(shell: Shell) -> None:
    command = [sys.executable, "-c", BEFORE_A_STEP, "query", "-m", "replay", "x"]
    done = subprocess.run(command, env=shell.environment, cwd=shell.home, capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (143, b"")


def test_sigterm_ends_a_chat(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    with shell.terminal("chat", "-m", "slow") as terminal:
        terminal.until(prompt("slow"))
        terminal.type("go\r")
        terminal.until(b"first")
        terminal.process.terminate()
        assert terminal.end() == 143
    (turn,) = turns(shell)
    assert (turn.ending, texts(turn)[-1].startswith("answer: first ")) == ("cancelled", True)
    with shell.terminal("chat", "-m", "slow") as terminal:
        terminal.until(prompt("slow"))
        terminal.process.terminate()
        assert terminal.end() == 143
    assert b"Traceback" not in terminal.seen


def test_a_closed_terminal_stores_the_partial_answer(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(400))), gap=0.1)
    with shell.terminal("query", "-m", "slow", "x") as terminal:
        terminal.until(b"first")
        terminal.close()
        assert terminal.process.wait(60) == 129
    (turn,) = turns(shell)
    assert turn.ending in ("cancelled", "client_gone")
    assert texts(turn)[-1].startswith("answer: first ")


def test_an_ignored_signal_stays_ignored(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(10)), "last"), gap=0.1)
    with subprocess.Popen(
        ["nohup", PROGRAM, "query", "-m", "slow", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=shell.environment,
        cwd=shell.home,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"first "
        process.send_signal(signal.SIGHUP)
        assert process.stdout.read().endswith(b"last\n")
    assert process.returncode == 0


def test_a_closed_pipe_is_stored_as_client_gone(shell: Shell) -> None:
    shell.add_recording("long", text_answer(*("word " * 100 for _ in range(500))), gap=0.002)
    with shell.started("query", "-m", "long", "x") as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"word "
        process.stdout.close()
        assert process.wait(60) == 141
    (turn,) = turns(shell)
    assert turn.ending == "client_gone"
    assert texts(turn)[-1].startswith("answer: word word ")


def test_errors_are_stored_with_the_partial_answer(shell: Shell) -> None:
    shell.add_recording("cut", [chunk(content="half an ans")])
    assert shell.run("query", "-m", "cut", "x").returncode == 1
    assert shell.run("query", "-m", "nowhere/gone", "x").returncode == 1
    refused, cut = turns(shell)
    assert cut.error is not None
    assert (cut.ending, cut.error.code, texts(cut)[-1]) == ("truncated", "upstream_truncated", "answer: half an ans")
    assert refused.error is not None
    assert (refused.ending, refused.upstream) == ("error", "nowhere")
    assert "cannot be reached" in refused.error.message


def test_nothing_is_stored_if_storing_is_switched_off(shell: Shell) -> None:
    quietly(shell.run("query", "--no-log", "-m", "replay", "x"))
    quietly(shell.run("chat", "--no-log", "-m", "replay", stdin=b"x\n"))
    quietly(shell.run("query", "-m", "replay", "x", environment={"STREAMGLOT_STORE__URL": "none"}))
    assert not database(shell).exists()
    quietly(shell.run("query", "-m", "replay", "secret words", environment={"STREAMGLOT_STORE__CONTENT": "false"}))
    (turn,) = turns(shell)
    assert (turn.ending, turn.request, turn.response) == ("end", None, None)
    assert b"secret words" not in database(shell).read_bytes()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////dev/null/streamglot.db", b"cannot be created"),
        ("postgresql://me:hidden@127.0.0.1:9/none", b"cannot be opened"),
        ("mysql://me:hidden@127.0.0.1/none", b"store.url begins with 'mysql'"),
    ],
)
def test_a_store_that_cannot_be_opened_gives_one_line_of_warning(shell: Shell, url: str, words: bytes) -> None:
    elsewhere = {"STREAMGLOT_STORE__URL": url}
    done = shell.run("query", "-m", "replay", "x", environment=elsewhere)
    assert (done.returncode, done.stdout) == (0, b"You said: x\n")
    assert done.stderr.startswith(b"streamglot: this turn was not stored: ")
    assert words in done.stderr
    assert b"--no-log" in done.stderr
    assert done.stderr.count(b"\n") == 1
    done = shell.run("reply", "x", environment=elsewhere)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"hidden" not in done.stderr
    assert shell.run("logs", "list", environment=elsewhere).returncode == 2


def test_a_database_that_is_locked_for_long_gives_one_line_of_warning(shell: Shell) -> None:
    quietly(shell.run("query", "-m", "replay", "x"))
    holder = sqlite3.connect(database(shell))
    holder.execute("BEGIN IMMEDIATE")
    done = shell.run("query", "-m", "replay", "x")
    holder.close()
    assert (done.returncode, done.stdout) == (0, b"You said: x\n")
    assert b"locked" in done.stderr


def test_an_answer_does_not_wait_for_the_store(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/none"
        with shell.started("query", "-m", "replay", "x", STREAMGLOT_STORE__URL=url) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"You said: x\n"
            peer, _ = silent.accept()
            with peer:
                assert peer.recv(1), "it was given up before the answer was there"
            err = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert err.startswith(b"streamglot: this turn was not stored: ")


def test_the_store_is_loaded_when_the_question_is_on_its_way() -> None:
    script = "import sys; sys.argv[1:] = ['query', '--help']; import streamglot.cli as c; c.main()"
    asked = (
        "import sys, streamglot.cli.commands.ask, streamglot.cli.commands.chat; print('streamglot.store.store' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", script], capture_output=True, check=True, text=True)
    assert "streamglot.store.store" not in done.stderr
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout == b"False\n"


# --- reply


def test_reply_continues_with_the_last_conversation(shell: Shell) -> None:
    shell.add_recording("song", text_answer("la"))
    quietly(shell.run("query", "-m", "recorded/song", "-s", "Sing.", "one"))
    done = shell.run("reply", "two", "words", stdin=b"and a file\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"la\n", b"")
    second, first = turns(shell)
    assert texts(second) == ["system: Sing.", "user: one", "assistant: la", "user: two words\n\nand a file", "answer: la"]
    assert (second.model, second.session_id) == ("recorded/song", first.session_id)
    answer = json.loads(shell.run("reply", "-m", "replay", "-s", "Speak.", "--json", "three").stdout)
    assert answer["choices"][0]["parts"][0]["text"] == "You said: three"
    shown = texts(turns(shell)[0])
    assert (shown[:2], len(shown)) == (["system: Speak.", "user: one"], 7)
    quietly(shell.run("chat", "-m", "replay", stdin=b"uno\ndue\n"))
    assert shell.run("reply", "tre").returncode == 0
    shown = texts(turns(shell)[0])
    assert (shown[-2:], len(shown)) == (["user: tre", "answer: You said: tre"], 6)
    with shell.terminal("reply", "**quattro**") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[1mquattro\x1b[0m" in terminal.seen
    assert len(texts(turns(shell)[0])) == 8


def test_reply_here_and_to_a_session(shell: Shell) -> None:
    quietly(shell.run("query", "-m", "replay", "at home"))
    (home,) = turns(shell)
    elsewhere = shell.home / "elsewhere"
    elsewhere.mkdir()
    first, shell.home = shell.home, elsewhere
    done = shell.run("reply", "--here", "x")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"there is no answer of this directory" in done.stderr
    quietly(shell.run("query", "-m", "replay", "far away"))
    shell.home = first
    quietly(shell.run("reply", "--here", "back"))
    assert texts(turns(shell)[0])[0] == "user: at home"
    quietly(shell.run("query", "-m", "replay", "something else"))
    done = shell.run("reply", "--session", home.session_id[:18], "and again")
    assert done.stdout == b"You said: and again\n"
    newest = turns(shell)[0]
    assert (newest.session_id, len(texts(newest))) == (home.session_id, 6)
    assert shell.run("reply", "--here", "--session", home.session_id, "x").returncode == 2


def test_reply_skips_turns_without_an_answer(shell: Shell) -> None:
    done = shell.run("reply", "x")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert b"there is no answer yet" in done.stderr
    assert b"nothing is stored" in shell.run("reply", "x", environment={"STREAMGLOT_STORE__URL": "none"}).stderr
    assert shell.run("query", "-m", "nowhere/gone", "x").returncode == 1
    assert shell.run("reply", "x").returncode == 1
    quietly(shell.run("query", "-m", "replay", "good"))
    assert shell.run("query", "-m", "nowhere/gone", "bad").returncode == 1
    assert shell.run("reply", "--no-log", "better").stdout == b"You said: better\n"
    assert len(turns(shell)) == 3
    done = shell.run("reply", "--session", "ses_none", "x")
    assert (done.returncode, b"there is no session 'ses_none'" in done.stderr) == (1, True)
    assert shell.run("reply").returncode == 2


def upstream(shell: Shell, url: str, dialect: str) -> None:
    (shell.home / "streamglot.toml").write_text(
        f'[server]\ndiscover = false\n[upstreams.one]\ndialect = "{dialect}"\nbase_url = "{url}"\nstate = "one"\n'
    )


def test_a_reply_to_a_call_is_its_result(shell: Shell) -> None:
    asked: list[bytes] = []
    function = {"name": "weather", "arguments": "{}"}
    call = chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}])
    with serve_response(f"{call}{chunk('tool_calls')}{DONE}".encode(), "text/event-stream", asked=asked) as url:
        upstream(shell, url, "openai_chat")
        for command in ("query", "reply", "reply"):
            assert shell.run(command, *(("-m", "one/c") if command == "query" else ()), "sunny").returncode == 0
    sent = json.loads(asked[-1])["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in sent if message["role"] == "tool"] == ["sunny", "sunny"]
    assert shell.run("sessions", "show", turns(shell)[0].session_id).stdout.count("← sunny".encode()) == 2


def test_a_reply_returns_signatures_to_their_provider(shell: Shell) -> None:
    asked: list[bytes] = []
    with serve_response((CORPUS / "anthropic" / "thinking.sse").read_bytes(), "text/event-stream", asked=asked) as url:
        upstream(shell, url, "anthropic")
        assert shell.run("query", "-m", "one/c", "Ferries?").stdout == b"Yes, all day.\n"
        assert shell.run("reply", "sure?").stdout == b"Yes, all day.\n"
    sent = json.loads(asked[-1])["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"][0]["signature"] == "c2lnbmVk"
    assert sent[1]["content"][1] == {"type": "redacted_thinking", "data": "aGlkZGVu"}


def test_a_reply_to_what_the_gateway_kept_restores_what_its_client_dropped(shell: Shell) -> None:
    async def past(store: Store) -> None:
        await take(store, ask(user("one?"), model="one/c"), reply(thought("hm", "S1", "anthropic@one"), "yes"), name="mine")
        await take(store, ask(user("one?"), assistant("yes"), user("two?"), model="one/c"), reply("no"), name="mine")
        await take(store, ask(user("not yours"), model="one/c"), reply("never"), caller="a key")

    in_store(shell, past)
    asked: list[bytes] = []
    with serve_response((CORPUS / "anthropic" / "text_cached.sse").read_bytes(), "text/event-stream", asked=asked) as url:
        upstream(shell, url, "anthropic")
        done = shell.run("reply", "three?")
    assert done.returncode == 0, done.stderr
    sent = json.loads(asked[-1])["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert sent[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "S1"}
    newest, _, first, _ = turns(shell)
    assert (newest.session_id, newest.caller) == (first.session_id, "")


def test_a_reply_names_the_message_that_it_follows(shell: Shell) -> None:
    with web_chat() as chat:
        upstream(shell, chat.url, "qwen_web")
        quietly(shell.run("query", "-m", "one/q", "one"))
        quietly(shell.run("reply", "two"))
        quietly(shell.run("reply", "-m", "replay", "three"))
        quietly(shell.run("reply", "-m", "one/q", "four"))
        quietly(shell.run("chat", "--no-log", "-m", "one/q", stdin=b"five\nsix\n"))
    parents = [(asked.place, asked.content.count("\n\n")) for asked in chat.asked]
    assert parents == [
        (("chat-1", None), 0),
        (("chat-1", "r-1"), 0),
        (("chat-2", None), 6),
        (("chat-3", None), 0),
        (("chat-3", "r-4"), 0),
    ]
