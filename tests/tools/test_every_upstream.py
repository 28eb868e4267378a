"""The same loop through every upstream dialect: native tools, no parallel calls, and calls in the text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import streamglot
from streamglot.config import Config, LoadedConfig
from streamglot.events import StepEnd, StreamEnd, ToolResult
from streamglot.grammar import check
from streamglot.tools import ToolsConfig
from tools.dialect_model import WIRES, DialectModel
from tools.scenarios import DONE, LIMITS, PARIS, ROME, SCENARIOS, TOOLS, Hanging, weather
from waiting import PATIENCE


@pytest.fixture(scope="module", params=WIRES)
def model(request: pytest.FixtureRequest) -> Iterator[DialectModel]:
    model = DialectModel(request.param, lambda _number, _body: DONE)
    yield model
    model.close()


@pytest.fixture(scope="module")
def client(model: DialectModel) -> Iterator[streamglot.Client]:
    config = LoadedConfig(Config(tools=ToolsConfig(limits=LIMITS)))
    with streamglot.Client(upstreams=[model.upstream()], tools=TOOLS, config=config) as client:
        yield client


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_loop_ends_properly(model: DialectModel, client: streamglot.Client, name: str) -> None:
    scenario = SCENARIOS[name]
    model.plays(scenario.script)
    events = list(client.stream(model="m", messages="What is the weather?"))
    check(events)
    if name == "unknown_tool" and ":text" in model.wire:  # what looks like a call of no declared tool stays text
        assert '"nothing"' in streamglot.collect(events).choices[0].text
        assert len(model.bodies) == 1
        return
    results = [event for event in events if isinstance(event, ToolResult)]
    assert (len(results), sum(result.is_error for result in results)) == (scenario.results, scenario.failed)
    last = events[-1]
    assert isinstance(last, StreamEnd)
    assert last.reason == scenario.reason
    assert streamglot.collect(events).choices[0].text.endswith(DONE)
    assert len(model.bodies) == scenario.requests
    assert sum(isinstance(event, StepEnd) for event in events) == scenario.requests - 1
    for words in scenario.expected:
        assert words in model.bodies[-1], model.bodies[-1]


def test_a_model_without_parallel_calls_gets_the_same_results(model: DialectModel, client: streamglot.Client) -> None:
    turns = [[("weather", PARIS)], [("weather", ROME)], DONE]
    model.plays(lambda number, _body: turns[number])
    answer = streamglot.collect(client.stream(model="m", messages="What is the weather?", parallel_tool_calls=False))
    assert answer.choices[0].text.endswith(DONE)
    assert "sunny in Paris" in model.bodies[-1]
    assert "sunny in Rome" in model.bodies[-1]


def test_hanging_up_cancels_the_tool(model: DialectModel) -> None:
    hanging = Hanging()
    model.plays(lambda _number, _body: [("hang", PARIS)])
    with streamglot.Client(upstreams=[model.upstream()], tools=[hanging.tool(), weather]) as client:
        running = streamglot.run_in_thread(client=client, model="m", messages="hi")
        assert hanging.started.wait(PATIENCE)
        running.stop()
        assert running.join(PATIENCE)
        assert hanging.cancelled.wait(PATIENCE)
        events = list(running)
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "cancelled"
    assert len(model.bodies) == 1
