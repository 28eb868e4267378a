"""The same loop through every upstream dialect: native tools, no parallel calls, and calls in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import streamglot
from gateway.running import running
from streamglot.config import Config, LoadedConfig
from streamglot.events import StepEnd, StreamEnd, ToolResult
from streamglot.grammar import check
from streamglot.tools import ToolsConfig
from streamglot.tools.settings import ToolLimits
from tools.dialect_model import WIRES, DialectModel, Turn
from tools.scenarios import DONE, HANG, LIMITS, PARIS, ROME, SCENARIOS, TOOLS, hang
from waiting import WAIT_SECONDS


@pytest.fixture(scope="module", params=WIRES)
def model(request: pytest.FixtureRequest) -> Iterator[DialectModel]:
    model = DialectModel(request.param, lambda _number, _body: DONE)
    yield model
    model.close()


@contextmanager
def client_of(model: DialectModel, limits: ToolLimits = LIMITS) -> Iterator[streamglot.Client]:
    config = LoadedConfig(Config(tools=ToolsConfig(limits=limits)))
    with streamglot.Client(upstreams=[model.upstream()], tools=TOOLS, config=config) as client:
        yield client


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_loop_ends_properly(model: DialectModel, name: str) -> None:
    scenario = SCENARIOS[name]
    model.plays(scenario.script)
    with client_of(model, scenario.limits) as client:
        events = list(client.stream(model="m", messages="What is the weather?"))
    check(events)
    if name == "unknown_tool" and ":text" in model.wire:  # what looks like a call of no declared tool stays text
        assert '"nothing"' in streamglot.collect(events).choices[0].text
        assert len(model.texts) == 1
        return
    results = [event for event in events if isinstance(event, ToolResult)]
    assert (len(results), sum(result.is_error for result in results)) == (scenario.results, scenario.failed)
    last = events[-1]
    assert isinstance(last, StreamEnd)
    assert last.reason == scenario.reason
    assert streamglot.collect(events).choices[0].text.endswith(DONE)
    assert len(model.texts) == scenario.requests
    assert sum(isinstance(event, StepEnd) for event in events) == scenario.requests - 1
    for words in scenario.expected:
        assert words in model.texts[-1], model.bodies[-1]


def test_a_model_without_parallel_calls_gets_the_same_results(model: DialectModel) -> None:
    turns: list[Turn] = [[("forecast", PARIS)], [("forecast", ROME)], DONE]
    model.plays(lambda number, _body: turns[number])
    with client_of(model) as client:
        answer = streamglot.collect(client.stream(model="m", messages="What is the weather?", parallel_tool_calls=False))
    assert answer.choices[0].text.endswith(DONE)
    assert "sunny in Paris" in model.texts[-1]
    assert "sunny in Rome" in model.texts[-1]


def test_hanging_up_cancels_the_tool(model: DialectModel) -> None:
    HANG.clear()
    model.plays(lambda _number, _body: [("hang", PARIS)])
    with streamglot.Client(upstreams=[model.upstream()], tools=[hang]) as client:
        running = streamglot.run_in_thread(client=client, model="m", messages="hi")
        assert HANG.started.wait(WAIT_SECONDS)
        running.stop()
        assert running.join(WAIT_SECONDS)
        assert HANG.cancelled.wait(WAIT_SECONDS)
        events = list(running)
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "cancelled"
    assert len(model.texts) == 1


SEEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "openai_responses": ("/v1/responses", {"input": "hi"}, '"mcp_call"'),
    "anthropic": ("/v1/messages", {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}, '"mcp_tool_use"'),
    "agui": (
        "/agui",
        {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hi"}]},
        '"TOOL_CALL_START"',
    ),
    "vercel": (
        "/ui",
        {"messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]},
        '"tool-input-start"',
    ),
}
"""Client dialects that show calls that a server ran: path, body, and the mark of a call."""


def test_clients_see_the_calls_with_every_upstream_dialect(model: DialectModel) -> None:
    config = {
        "server": {"default_model": "m"},
        "upstreams": {"scripted": msgspec.to_builtins(model.upstream())},
        "tools": {"enabled": ["forecast"], "python": ["tools.scenarios"]},
    }
    with running(config) as gateway:
        for client, (path, body, mark) in SEEN.items():
            model.plays(SCENARIOS["two_cities"].script)
            answer = gateway.ask(path, {"model": "m", "stream": True, **body, "streamglot": {"tools": ["forecast"]}})
            shown = answer.body.decode()
            assert answer.status == 200, shown
            assert shown.count(mark) >= 2, (client, shown)
            for words in ("sunny in Paris", "sunny in Rome", DONE):
                assert words in shown or words in "".join(re.findall(r'"delta":"([^"]*)"', shown)), (client, shown)
