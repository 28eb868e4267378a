"""The scripted upstream itself: what it says on each wire is understood, streamed and whole, and is cut where it should be."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agents import wires
from agents.scenarios import MARK, SCENARIOS, Script
from agents.scripted import scripted
from agents.turns import Asked, Call, Turn
from streamglot import ReasoningEnd, StreamEnd, StreamError, TextEnd, ToolCallEnd, collect
from streamglot.dialects import dialect
from streamglot.messages import ReasoningPart, TextPart, ToolCallPart, ToolSpec

TURN = Turn("A text.", "A thought.", "c2ln", [Call("c_1", "f", {"a": "b"}), Call("c_2", "g", {})])
LAST = Turn("Only a text.")


@pytest.mark.parametrize("name", wires.DIALECTS)
@pytest.mark.parametrize("turn", [TURN, LAST])
def test_a_turn_is_understood_on_every_wire(name: str, turn: Turn) -> None:
    box = dialect(name).reader()
    events = [event for piece in wires.streamed(name, turn, "m") for event in box.feed(piece)] + box.close()
    whole = dialect(name).parse_response(json.loads(wires.whole(name, turn, "m")))
    for response in (collect(events), whole):
        assert response.error is None
        parts = response.choices[0].parts
        assert [part.text for part in parts if isinstance(part, TextPart) and part.text] == [turn.text]
        assert [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCallPart)] == [
            (call.name, call.arguments) for call in turn.calls
        ]
        assert response.usage.output_tokens == wires.OUTPUT_TOKENS
    thoughts = [part.text for part in collect(events).choices[0].parts if isinstance(part, ReasoningPart) and part.text]
    assert thoughts == ([turn.reasoning] if turn.reasoning else [])


def asked(name: str, results: list[str]) -> Asked:
    tools = {tool: ToolSpec(tool) for tool in ("Write", "Read", "apply_patch")}
    return Asked(name, "m", True, tools, results, ["c2lnbmVkLXN0YXRl"], "", False, {})


@pytest.mark.parametrize("name", wires.DIALECTS)
@pytest.mark.parametrize("scenario", ["cut-text", "cut-reasoning", "cut-call"])
def test_a_cut_is_inside_of_a_block(tmp_path: Path, name: str, scenario: str) -> None:
    script = SCENARIOS[scenario](tmp_path)
    reply = script.answer(asked(name, []))
    assert reply.cut_after
    box = dialect(name).reader()
    pieces = wires.streamed(name, reply.turn, "m")[: reply.cut_after]
    events = [event for piece in pieces for event in box.feed(piece)] + box.close()
    assert isinstance(events[-1], StreamError)
    whole_calls = scenario == "cut-call" and name in ("gemini", "ollama")
    assert [event.complete for event in events if isinstance(event, (TextEnd, ReasoningEnd, ToolCallEnd))][-1] is whole_calls
    assert script.answer(asked(name, [])).cut_after is None, "it happens once"


@pytest.mark.parametrize("scenario", ["file", "parallel", "reasoning", "429", "long", "cut-text"])
def test_a_script_knows_a_run_that_went_well(tmp_path: Path, scenario: str) -> None:
    script = SCENARIOS[scenario](tmp_path)
    assert script.verify(""), "nothing was done"
    results: list[str] = []
    for _ in range(6):
        reply = script.answer(asked("anthropic", results))
        if reply.status != 200 or reply.cut_after is not None:
            continue
        for call in reply.turn.calls:
            assert isinstance(call.arguments, dict)
            path = Path(call.arguments["file_path"])
            if call.name == "Write":
                path.write_text(call.arguments["content"])
            results.append(path.read_text())
        if not reply.turn.calls:
            break
    assert script.verify(f"it says {MARK}") == []
    assert script.verify("it says nothing") == ["the answer is not in what the agent printed"]


def _ask(url: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_server_finds_the_dialect_by_the_address(tmp_path: Path) -> None:
    script: Script = SCENARIOS["file"](tmp_path)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": []},
        "/v1/responses": {"input": "x"},
        "/v1/messages?beta=true": {"messages": [], "max_tokens": 9},
        "/v1beta/models/a/b:generateContent": {"contents": []},
        "/api/chat": {"messages": [], "stream": False},
        "/model/a%2Fb/converse": {"messages": []},
    }
    with scripted(script) as upstream:
        for path, body in bodies.items():
            status, answer = _ask(upstream.url, path, {"model": "m", **body} if "models" not in path else body)
            assert (status, b"Tides" in answer) == (200, True), path
        assert _ask(upstream.url, "/nowhere", {})[0] == 404
        assert _ask(upstream.url, "/v1/messages/count_tokens", {})[0] == 200
        assert _ask(upstream.url, "/v1/chat/completions", {"messages": 5})[0] == 400
    assert len(upstream.seen) == 9
    assert script.faults


def test_complete_ends_are_the_only_proper_ones() -> None:
    box = dialect("openai_chat").reader()
    events = [event for piece in wires.streamed("openai_chat", TURN, "m") for event in box.feed(piece)]
    assert isinstance(events[-1], StreamEnd)
    assert all(event.complete for event in events if isinstance(event, ToolCallEnd))
