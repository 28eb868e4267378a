"""``replay``, ``record`` and ``probe``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cli.shell import DONE, Shell, chunk, text_answer
from local.model import real_model
from response_server import serve_response
from streamglot.cli.probe.observation import Observation, Probed, report_lines

CORPUS = Path(__file__).parents[1] / "corpus"


def test_replay_in_another_dialect(shell: Shell) -> None:
    recording = shell.recordings / shell.add_recording("song", text_answer("la ", "la"))
    done = shell.run("replay", str(recording), "--as", "anthropic")
    assert done.stdout.startswith(b"event: message_start")
    assert b"message_stop" in done.stdout
    assert shell.run("replay", str(recording)).stdout == b"la la\n"
    events = shell.run("replay", str(recording), "--as", "events").stdout
    (shell.home / "events").write_bytes(events)
    assert shell.run("replay", "events").stdout == b"la la\n"


def test_replay_keeps_the_time(shell: Shell) -> None:
    recording = str(shell.recordings / shell.add_recording("slow", text_answer(*("la " for _ in range(8))), gap=0.3))
    began = time.monotonic()
    assert shell.run("replay", recording, "--speed", "1x").returncode == 0
    assert time.monotonic() - began > 1.2
    endless = str(shell.recordings / shell.add_recording("endless", text_answer("la ", "la"), gap=3600))
    assert shell.run("replay", endless, "--speed", "0").stdout == b"la la\n"
    assert shell.run("replay", recording, "--speed", "fast").returncode == 2


def test_replay_says_when_it_ended_in_an_error(shell: Shell) -> None:
    recording = str(shell.recordings / shell.add_recording("cut", [chunk(content="half")]))
    done = shell.run("replay", recording)
    assert (done.returncode, done.stdout) == (1, b"half\n")
    assert done.stderr


@pytest.mark.parametrize(
    "name", [path for path in ("anthropic", "openai_chat", "openai_responses", "gemini", "ollama") if (CORPUS / path).is_dir()]
)
def test_the_dialect_of_a_recording_is_guessed(shell: Shell, name: str) -> None:
    path = next(path for path in sorted((CORPUS / name).iterdir()) if path.suffix in (".sse", ".ndjson"))
    guessed = shell.run("replay", str(path), "--as", "events", "--speed", "0").stdout
    replayed = shell.run("replay", str(path), "--as", "events", "--speed", "0", "--from", name).stdout
    assert guessed == replayed
    assert guessed


def test_record(shell: Shell) -> None:
    answer = "".join(text_answer("la ", "la")).encode()
    with serve_response(answer, "text/event-stream") as url:
        (shell.home / "streamglot.toml").write_text(f'[server]\ndiscover = false\n[upstreams.one]\nbase_url = "{url}/v1"\n')
        done = shell.run("record", "-m", "m", "-o", "song", "sing")
    assert done.returncode == 0, done.stderr
    assert (shell.home / "song").read_bytes() == answer
    sizes = [int(line.split()[1]) for line in (shell.home / "song.times").read_text().splitlines()]
    assert sum(sizes) == len(answer)
    assert shell.run("replay", "song").stdout == b"la la\n"
    with serve_response(b'{"error":{"message":"no"}}', "application/json", 500) as url:
        (shell.home / "streamglot.toml").write_text(f'[server]\ndiscover = false\n[upstreams.one]\nbase_url = "{url}/v1"\n')
        assert shell.run("record", "-m", "m", "sing").returncode == 1


def test_probe_reports_every_deviation_of_a_server(shell: Shell) -> None:
    call = {"id": "1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    chunks = [
        'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        'data: {"id":"x","object":"thing","choices":[{"index":0,"delta":{"mood":"good"}}]}\n\n',
        chunk(tool_calls=[call]),
        chunk("stop"),
        chunk("stop"),
    ]
    with serve_response("".join(chunks).encode(), "text/plain") as url:
        done = shell.run("probe", f"{url}/v1", "-m", "m", "-d", "openai_chat")
    words = done.stdout.decode()
    for sentence in (
        "the content type is 'text/plain'",
        "does not end with `data: [DONE]`",
        "chunks have no `model`",
        "`id` changes",
        "`object` is `thing`",
        "choices have no `index`",
        "does not say `role: assistant`",
        "the dialect does not know: `mood`",
        "`finish_reason` comes 2 times",
        "fragments of tool calls have no `index`",
        "`arguments` is a JSON value",
        "no usage was reported",
        "reasoning was requested, but none came",
    ):
        assert sentence in words
    assert done.returncode == 0


def test_probe_without_a_server_fails(shell: Shell) -> None:
    done = shell.run("probe", "http://127.0.0.1:9/v1", "-m", "m")
    assert done.returncode == 1
    assert b"not supported" in done.stdout
    assert shell.run("probe", "nobody").returncode == 2
    without_key = shell.run("probe", "openrouter", "-m", "openai/gpt-4o-mini")
    assert without_key.returncode == 2
    assert b"OPENROUTER_API_KEY" in without_key.stderr


def test_probe_of_a_router_describes_its_reasoning_and_its_final_chunk(shell: Shell) -> None:
    """The chunks that the document asks about: reasoning details, calls, the finish reason and what follows it."""
    details = [{"type": "reasoning.text", "text": "Let me think."}]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    counted = chunk(usage=usage).replace('"choices":[{"index":0,"delta":{}}]', '"choices":[]')
    function = {"name": "weather", "arguments": '{"city":"Paris"}'}
    call = {"index": 0, "id": "1", "type": "function", "function": function}
    stray = {**call, "function": {**function, "name": "shell"}}
    first = chunk(role="assistant", reasoning="Let me think.", reasoning_details=details)
    for made, sentences in (
        (call, ["calls came although no tools were offered: weather (plain, with reasoning)"]),
        (stray, ["calls came of tools that were not offered: shell (with tools, with tools and reasoning)"]),
    ):
        answer = [first, chunk(tool_calls=[made]), chunk("tool_calls"), counted, DONE]
        with serve_response("".join(answer).encode(), "text/event-stream") as url:
            words = shell.run("probe", f"{url}/v1", "-m", "m", "-d", "openai_chat").stdout.decode()
        assert "the dialect does not know" not in words
        for sentence in sentences:
            assert sentence in words
        final = next(line for line in words.splitlines() if "final chunk: " in line)
        assert '"finish_reason":"tool_calls"' in final
        assert final.endswith(", then a chunk with usage, then [DONE]")


def test_probe_of_a_good_server_finds_nothing(shell: Shell) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    counted = chunk(usage=usage).replace('"choices":[{"index":0,"delta":{}}]', '"choices":[]')
    good = [chunk(role="assistant", content="Hello"), chunk(content=" there"), chunk("stop"), counted, DONE]
    with serve_response("".join(good).encode(), "text/event-stream") as url:
        found = json.loads(shell.run("probe", f"{url}/v1", "-m", "m", "-d", "openai_chat", "--json").stdout)
    plain = found[0]["observations"][0]
    assert plain["deviations"] == []
    assert plain["order"] == ["text ×2", "usage", "end (end)"]
    assert (shell.home / plain["recording"]).read_text() == "".join(good)


def test_the_report_lists_the_fields_of_a_correct_server() -> None:
    seen = Observation(case="plain", status=200, fields={"id": 1, "model": 2})
    words = list(report_lines([Probed("openai_chat", "http://x", "m", [seen])]))
    assert "  nothing departs from the dialect" in words
    assert "  fields used: id, model" in words


def test_probe_of_the_real_server_names_its_real_faults(shell: Shell) -> None:
    thinks = '{"chat_template_kwargs":{"reasoning_effort":"low"},"thinking":{"type":"enabled","budget_tokens":5}}'
    with real_model() as model:
        variables = {"STREAMGLOT_PROBE_KEY": model.key}
        command = ("probe", model.base_url, "-m", "local", "--max-tokens", "40")
        words = shell.run(*command, environment=variables).stdout.decode()
        thought = shell.run(*command, "-d", "anthropic", "--body", thinks, environment=variables).stdout.decode()
    chat, responses, messages = (words.partition(f"{name} at ")[2] for name in ("openai_chat", "openai_responses", "anthropic"))
    assert "the dialect does not know: `timings`" in chat
    assert "arguments of weather: " in chat
    assert "finish: 'tool_calls'" in chat
    assert "all events about items are without an `output_index`" in responses
    assert "reasoning was asked for" not in messages
    assert "without a `sequence_number`" in responses
    assert "response.function_call_arguments.delta is never followed by" in responses
    assert "a tool_use block begins without `input`" in messages
    assert "blocks overlap: block 1 (text) begins while 0 (thinking) is open" in thought
