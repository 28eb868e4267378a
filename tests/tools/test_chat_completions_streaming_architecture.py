"""One stream of events for every vendor: what a consumer does with it, and what it never has to know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import streamglot
from streamglot.events import StepEnd, StreamEnd, StreamError, TextDelta, ToolCallStart, ToolResult
from streamglot.messages import Message, TextPart
from streamglot.stages import messages_of
from streamglot.tools import ToolRegistry, ToolsConfig
from tools.dialect_model import NATIVE, DialectModel
from tools.scenarios import DONE, PARIS, forecast

SHAPES = {TextDelta: "text", ToolCallStart: "call", ToolResult: "result", StepEnd: "step", StreamEnd: "stop"}


@pytest.fixture
def models() -> Iterator[list[DialectModel]]:
    models = [DialectModel(wire, lambda number, _body: DONE if number else [("forecast", PARIS)]) for wire in NATIVE]
    yield models
    for model in models:
        model.close()


def shapes(model: DialectModel) -> list[str]:
    with streamglot.Client(upstreams=[model.upstream()], tools=[forecast]) as client:
        events = list(client.stream(model="m", messages="weather?"))
    return [SHAPES[type(event)] for event in events if type(event) in SHAPES]


def test_one_generic_event_stream_for_all_vendors(models: list[DialectModel]) -> None:
    seen = {tuple(shapes(model)) for model in models}
    assert seen == {("call", "result", "step", "text", "stop")}


def test_the_loop_appends_the_call_and_its_result_and_asks_again(models: list[DialectModel]) -> None:
    model = models[0]
    shapes(model)
    assert len(model.texts) == 2
    first, second = model.texts
    assert "sunny in Paris" not in first
    assert second.index('"forecast"') < second.index("sunny in Paris")


def test_the_answer_is_history_for_the_next_question(models: list[DialectModel]) -> None:
    model = models[0]
    with streamglot.Client(upstreams=[model.upstream()], tools=[forecast]) as client:
        asked = [Message("user", [TextPart("weather?")])]
        answer = streamglot.collect(client.stream(model="m", messages=asked))
        history = [*asked, *messages_of(answer), Message("user", [TextPart("thanks")])]
        again = streamglot.collect(client.stream(model="m", messages=history))
    assert [message.role for message in history] == ["user", "assistant", "tool", "assistant", "user"]
    assert again.choices[0].text == DONE
    assert "sunny in Paris" in model.texts[-1]


def test_an_error_in_a_later_turn_ends_the_stream(models: list[DialectModel]) -> None:
    model = models[0]
    model.plays(lambda number, _body: "" if number else [("forecast", PARIS)])
    with streamglot.Client(upstreams=[model.upstream()], tools=[forecast]) as client:
        events = list(client.stream(model="m", messages="weather?"))
    assert isinstance(events[-1], StreamError)
    assert any(isinstance(event, ToolResult) for event in events)


@pytest.mark.anyio
async def test_the_registry_filters_by_glob() -> None:
    config = ToolsConfig(enabled=["t*", "calc*"], disabled=["time"])
    tools, _ = await ToolRegistry(config, [forecast]).select(["*"])
    assert [tool.name for tool in tools] == ["calculator", "forecast"]
    tools, _ = await ToolRegistry(config).select(["calc?lator"])
    assert [tool.name for tool in tools] == ["calculator"]
