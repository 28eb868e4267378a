"""``streamglot query`` with pipes and at a terminal: what is written where, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from cli.shell import DONE, PROGRAM, Shell, chunk, interrupt, text_answer
from gateway.upstream import hostile, streamed, whole
from local.model import real_model
from streamglot.upstream.local.weights import folder
from waiting import WAIT_SECONDS

HOSTILE = "before\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b2Jafter\x1b[0m \u202egnp.exe\r gone"
CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


def test_words_and_standard_input_are_joined(shell: Shell) -> None:
    done = shell.run("query", "-m", "replay", "what", "is", "this", stdin=b"a file\n")
    assert done.stdout == b"You said: what is this\n\na file\n"
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_empty_question_is_refused(shell: Shell) -> None:
    done = shell.run("query")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"nothing was asked" in done.stderr


def test_a_pipe_gets_plain_text(shell: Shell) -> None:
    shell.add_recording("fancy", text_answer("# Title\n\n", "some **bold** words\n", "```python\nx = 1\n```\n"))
    done = shell.run("query", "-m", "fancy", "x")
    assert done.stdout == b"# Title\n\nsome **bold** words\n```python\nx = 1\n```\n"
    assert not CONTROLS.search(done.stdout + done.stderr)


def test_a_wait_for_a_rate_limit_is_told_while_it_lasts(shell: Shell) -> None:
    with hostile() as upstream:
        busy = whole({"error": {"message": "slow down"}}, 429, x_ratelimit_reset_requests="300ms")
        upstream.scripts["busy"] = [busy, streamed("".join(text_answer("Hello")).encode())]
        environment = {
            "STREAMGLOT_UPSTREAMS__NOWHERE__BASE_URL": f"{upstream.url}/v1",
            "STREAMGLOT_UPSTREAMS__NOWHERE__ATTEMPTS": "2",
        }
        done = shell.run("query", "-m", "nowhere/busy", "x", environment=environment)
    assert done.stdout == b"Hello\n"
    assert b"upstream 'nowhere' asks to wait 0.3 s (status 429); attempt 2 of 2 follows\n" in done.stderr


def test_a_terminal_gets_rendered_markdown(shell: Shell) -> None:
    shell.add_recording("fancy", text_answer("some ", "**bo", "ld** words\n\n", "* one\n* two\n"), gap=0.02)
    with shell.terminal("query", "-m", "fancy", "x") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[1mbold\x1b[0m" in terminal.seen
    assert b"**" not in terminal.seen.rpartition(b"some")[2]
    assert "\x1b[1m • \x1b[0mone".encode() in terminal.seen
    with shell.terminal("query", "-m", "fancy", "--markdown", "never", "x") as terminal:
        assert terminal.end() == 0
    assert b"**bold**" in terminal.seen
    assert b"\x1b" not in terminal.seen


def test_markdown_is_written_once_however_long_it_is(shell: Shell) -> None:
    lines = [f"line number {number}\n\n" for number in range(80)]
    shell.add_recording("long", text_answer(*lines), gap=0.004)
    with shell.terminal("query", "-m", "long", "x") as terminal:
        assert terminal.end() == 0
    shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", terminal.seen)
    assert [line for line in lines if line.strip().encode() not in shown] == []
    whole = shell.run("query", "-m", "long", "--markdown", "always", "x").stdout
    assert whole.count(b"line number 40") >= 1


@pytest.mark.parametrize("markdown", ["never", "always"])
def test_escape_sequences_of_a_model_do_nothing(shell: Shell, markdown: str) -> None:
    shell.add_recording("hostile", text_answer(*HOSTILE, "\n"))
    piped = shell.run("query", "-m", "hostile", "--markdown", "never", "x")
    assert not CONTROLS.search(piped.stdout)
    assert "␛]0;owned␇".encode() in piped.stdout
    with shell.terminal("query", "-m", "hostile", "--markdown", markdown, "x") as terminal:
        assert terminal.end() == 0
    for sequence in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[31m", b"\xc2\x9b", "\u202e".encode(), b"\r gone"):
        assert sequence not in terminal.seen
    assert b"owned" in terminal.seen


def test_escape_sequences_elsewhere_do_nothing(shell: Shell) -> None:
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": "evil\x1b[2J", "arguments": '{"a":"\x1b]0;x\x07"}'}}
    chunks = [chunk(reasoning_content="think\x1b[2J"), chunk(tool_calls=[call]), chunk("tool_calls"), DONE]
    shell.add_recording("hostile", chunks)
    done = shell.run("query", "-m", "hostile", "x")
    assert not CONTROLS.search(done.stdout + done.stderr)
    shell.add_recording("refused", ['data: {"error":{"message":"no\x1b[2J"}}\n\n'.replace("\x1b", "\\u001b")])
    done = shell.run("query", "-m", "refused", "x")
    assert done.returncode == 1
    assert not CONTROLS.search(done.stderr)


def test_raw_is_exact_for_a_pipe_and_safe_for_a_terminal(shell: Shell) -> None:
    shell.add_recording("hostile", text_answer(HOSTILE))
    assert shell.run("query", "-m", "hostile", "--raw", "x").stdout.decode() == f"{HOSTILE}\n"
    with shell.terminal("query", "-m", "hostile", "--raw", "x") as terminal:
        assert terminal.end() == 0
    assert b"\x1b" not in terminal.seen


def test_reasoning_is_dim_and_on_standard_error(shell: Shell) -> None:
    shell.add_recording("deep", [chunk(reasoning_content="well …"), *text_answer("yes")])
    done = shell.run("query", "-m", "deep", "x")
    assert (done.stdout, done.stderr) == (b"yes\n", "well …\n".encode())
    assert shell.run("query", "-m", "deep", "--hide-reasoning", "x").stderr == b""
    with shell.terminal("query", "-m", "deep", "x") as terminal:
        assert terminal.end() == 0
    assert "\x1b[2mwell …\x1b[0m".encode() in terminal.seen
    with shell.terminal("query", "-m", "deep", "x", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert b"\x1b[2m" not in terminal.seen


def test_calls_are_shown_with_their_arguments(shell: Shell) -> None:
    first = {"index": 0, "id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city"'}}
    rest = {"index": 0, "function": {"arguments": ': "Paris"}'}}
    shell.add_recording(
        "caller", [chunk(content="Let me see."), chunk(tool_calls=[first]), chunk(tool_calls=[rest]), chunk("tool_calls"), DONE]
    )
    tools = shell.home / "tools.json"
    tools.write_text('[{"type":"function","function":{"name":"weather"}}]')
    done = shell.run("query", "-m", "caller", "--tools-file", str(tools), "x")
    assert done.stdout.decode() == 'Let me see.\n→ weather({"city": "Paris"})\n'


def test_json_and_events(shell: Shell) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    shell.add_recording("song", [*(chunk(content=piece) for piece in ("la ", "la")), chunk("stop", usage), DONE])
    answer = json.loads(shell.run("query", "-m", "song", "--json", "x").stdout)
    assert answer["choices"][0]["parts"][0]["text"] == "la la"
    assert answer["usage"]["input_tokens"] == 7
    lines = shell.run("query", "-m", "song", "--events", "x").stdout.splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    assert (kinds[0], kinds.count("text_delta"), kinds[-1]) == ("stream_start", 2, "stream_end")
    done = shell.run("query", "-m", "song", "-u", "x")
    assert done.stderr == b"7 tokens in, 2 out; cost: unknown\n"


@pytest.mark.parametrize("form", ["--json", "--events"])
def test_json_has_no_control_characters_and_loses_none(shell: Shell, form: str) -> None:
    shell.add_recording("hostile", text_answer(HOSTILE))
    out = shell.run("query", "-m", "hostile", form, "x").stdout
    assert not CONTROLS.search(out)
    assert not re.search("[\x80-\x9f\u202e]", out.decode())
    values = [json.loads(line) for line in out.splitlines()]
    text = values[0]["choices"][0]["parts"][0]["text"] if form == "--json" else "".join(value.get("text", "") for value in values)
    assert text == HOSTILE


def test_ctrl_c_keeps_the_partial_answer(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(200))), gap=0.1)
    with shell.started("query", "-m", "slow", "x") as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"first "
        interrupt(process)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    with shell.terminal("query", "-m", "slow", "x") as terminal:
        terminal.until(b"first")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert b"Traceback" not in terminal.seen
    assert terminal.seen.rfind(b"\x1b[?25h") > terminal.seen.rfind(b"\x1b[?25l"), "the cursor is hidden"


def test_ctrl_c_and_json(shell: Shell) -> None:
    shell.add_recording("slow", text_answer("first ", *("more " for _ in range(200))), gap=0.1)
    with shell.started("query", "-m", "slow", "--events", "x") as process:
        assert process.stdout is not None
        lines: list[bytes] = []
        while not lines or b"text_delta" not in lines[-1]:
            lines.append(process.stdout.readline())
        interrupt(process)
        lines += process.communicate(timeout=WAIT_SECONDS)[0].splitlines()
    assert json.loads(lines[-1]) == {"type": "stream_end", "reason": "cancelled"}
    assert json.loads(lines[-2]) == {"type": "text_end", "complete": False}
    assert process.returncode == 130


def test_a_broken_pipe_is_silent(shell: Shell) -> None:
    shell.add_recording("long", text_answer(*("word " * 100 for _ in range(500))), gap=0.002)
    for form in ("--markdown=never", "--events", "--json"):
        with shell.started("query", "-m", "long", form, "x") as process:
            assert process.stdout is not None
            if form != "--json":
                assert process.stdout.read(10)
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
            assert process.wait(WAIT_SECONDS) == 128 + signal.SIGPIPE
    script = f"set -o pipefail; {PROGRAM} query -m long x | head -c 5"
    done = subprocess.run(["bash", "-c", script], env=shell.environment, capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert (done.stdout, done.stderr) == (b"word ", b"")


def test_a_broken_pipe_is_silent_in_other_commands_too(shell: Shell) -> None:
    for command in (["formats"], ["setup", "curl"], ["doctor", "--offline"], ["translate", "/dev/null"]):
        done = shell.run_into_closed_pipe(*command)
        assert b"rror" not in done.stderr
        assert done.returncode == 128 + signal.SIGPIPE, command


def test_errors_and_their_status(shell: Shell) -> None:
    done = shell.run("query", "-m", "nowhere/gone", "x")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cannot be reached" in done.stderr
    assert done.stderr.count(b"\n") == 1
    shell.add_recording("cut", [chunk(content="half an ans")])
    done = shell.run("query", "-m", "cut", "x")
    assert (done.returncode, done.stdout) == (1, b"half an ans\n")
    assert b"streamglot: " in done.stderr
    for wrong in (
        ["--no-such-option"],
        ["--raw", "--json"],
        ["--schema", "none.json"],
        ["--attach", "none.png"],
        ["--markdown", "x"],
    ):
        done = shell.run("query", "-m", "replay", *wrong, "x")
        assert (done.returncode, done.stdout) == (2, b""), wrong
        assert done.stderr
        assert b"Traceback" not in done.stderr


def test_help_is_quick_because_it_imports_little() -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "import sys; sys.argv[1:] = ['--help']; import streamglot.cli as c; c.main()",
    ]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "query" in done.stdout
    assert not imported & {"aiohttp", "httptools", "rich", "prompt_toolkit", "genai_prices", "uvicorn", "pydantic", "xllamacpp"}


def test_bash_completes_commands_and_values(shell: Shell) -> None:
    assert shell.completions("streamglot", "qu") == ["query"]
    assert "openai_responses" in shell.completions("streamglot", "translate", "--to", "open")


def test_a_new_user_queries_a_real_model(shell: Shell) -> None:
    with real_model():
        pass  # it can be had
    shell.environment.pop("STREAMGLOT_CONFIG")
    (shell.home / "streamglot.toml").unlink()
    cache = {"STREAMGLOT_CACHE": str(folder().parent), "STREAMGLOT_LOCAL_THREADS": "1"}
    done = shell.run("query", "Say", "hello", "--max-tokens", "5", "-u", environment=cache)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if b"5 out" in done.stderr:
        assert b"the answer ended early: length" in done.stderr
    assert b"cost: nothing, it ran on this machine" in done.stderr
    done = shell.run("chat", "-m", "smollm2", "--max-tokens", "3", stdin=b"hi\nand?\n", environment=cache)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
