"""``streamglot translate``, run as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import warm

EXAMPLE = Path(__file__).parents[2] / "examples" / "anthropic.sse"


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return warm.run([warm.PROGRAM, *arguments], sent=stdin)


def test_a_file_to_another_dialect() -> None:
    done = run("translate", "--from", "anthropic", "--to", "openai_chat", str(EXAMPLE))
    assert done.returncode == 0
    assert done.stdout.endswith(b"data: [DONE]\n\n")
    assert b'"name":"weather"' in done.stdout


def test_standard_input_to_events() -> None:
    done = run("translate", "--from", "anthropic", "--to", "events", stdin=EXAMPLE.read_bytes())
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert (kinds[0], kinds[-1]) == ("stream_start", "stream_end")


def test_the_whole_answer() -> None:
    answer = json.loads(run("translate", "--from", "anthropic", "--to", "response", str(EXAMPLE)).stdout)
    parts = answer["choices"][0]["parts"]
    assert [part["type"] for part in parts] == ["reasoning", "text", "tool_call"]
    assert json.loads(parts[2]["arguments"]) == {"city": "Lisbon"}
    assert (answer["choices"][0]["stop_reason"], answer["choices"][0]["raw_stop_reason"]) == ("tool_calls", "tool_use")
    assert answer["usage"]["output_tokens"] == 43
    assert answer["error"] is None


@pytest.mark.parametrize("target", ["events", "response", "openai_chat"])
def test_a_stream_that_broke_exits_with_1_after_everything_was_written(target: str) -> None:
    done = run("translate", "--from", "anthropic", "--to", target, stdin=EXAMPLE.read_bytes()[:1500])
    assert done.returncode == 1
    assert b"upstream_truncated" in done.stdout
    assert b"look at the sky" in done.stdout


def test_an_unknown_dialect_is_refused() -> None:
    done = run("translate", "--from", "klingon")
    assert done.returncode == 2
    assert b"no dialect 'klingon'" in done.stderr


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith(b"streamglot 0.")
    assert b"translate" in run("--help").stdout


def test_it_is_written_as_it_comes() -> None:
    command = [
        sys.executable,
        "-c",
        "from streamglot.cli import main; main()",
        "translate",
        "--from",
        "anthropic",
        "--to",
        "events",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(EXAMPLE.read_bytes()[:1200])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["type"] == "stream_start"
        process.stdin.close()
        process.wait()


def test_plain_text_with_a_call_in_it(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "weather"}}]))
    text = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Lisbon"}}\n</tool_call>'
    command = ["translate", "--from", "text", "--inband", "hermes", "--tools", str(tools), "--to", "response"]
    answer = json.loads(run(*command, stdin=text.encode()).stdout)
    assert [part["type"] for part in answer["choices"][0]["parts"]] == ["text", "tool_call"]
    assert json.loads(answer["choices"][0]["parts"][1]["arguments"]) == {"city": "Lisbon"}
    assert answer["choices"][0]["stop_reason"] == "tool_calls"
    assert b"weather" in run(*command[:-1], "anthropic", stdin=text.encode()).stdout
    plain = run("translate", "--from", "text", "--to", "response", stdin=b"just text")
    assert json.loads(plain.stdout)["choices"][0]["parts"] == [{"type": "text", "text": "just text"}]


def test_half_a_call_in_plain_text_fails_unless_it_may_be_text() -> None:
    text = b'Ok. <tool_call>{"name": "weather", "arguments": {"city": "Li</tool_call>'
    command = ["translate", "--from", "text", "--inband", "hermes", "--to", "response"]
    found = run(*command, stdin=text)
    assert found.returncode == 1
    answer = json.loads(found.stdout)
    assert answer["error"]["code"] == "tool_call_parse_error"
    assert [part.get("complete") for part in answer["choices"][0]["parts"]] == [None, False]
    answer = json.loads(run(*command, "--bad-call", "text", stdin=text).stdout)
    assert answer["choices"][0]["parts"] == [{"type": "text", "text": text.decode()}]
    assert (answer["error"], answer["choices"][0]["stop_reason"]) == (None, "end")


def test_bad_names_and_files_for_the_parser(tmp_path: Path) -> None:
    assert b"no in-band format" in run("translate", "--from", "text", "--inband", "klingon").stderr
    broken = tmp_path / "tools.json"
    broken.write_text("{")
    assert b"is not valid JSON" in run("translate", "--from", "text", "--inband", "hermes", "--tools", str(broken)).stderr
    broken.write_text("{}")
    assert b"list of tool definitions" in run("translate", "--from", "text", "--inband", "hermes", "--tools", str(broken)).stderr


def test_formats_are_listed() -> None:
    assert b"hermes" in run("formats").stdout
