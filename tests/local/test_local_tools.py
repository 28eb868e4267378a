"""The real model in the tool loop: what it says is its own; that every turn ends properly is ours."""

from __future__ import annotations

import pytest

import streamglot
from gateway.official import OFFICIAL
from gateway.running import running
from streamglot.config import Config, LoadedConfig
from streamglot.events import StepEnd, StreamEnd, ToolCallStart, ToolResult
from streamglot.tools import ToolsConfig
from streamglot.tools.settings import ToolLimits
from streamglot.upstream import Upstream

QUESTION = "What about Paris? Use a tool."
LIMITS = ToolLimits(rounds=2, repeats=1)
"""A small model may call again and again."""
ran: list[str] = []


@pytest.fixture(autouse=True)
def none_ran() -> None:
    ran.clear()


@streamglot.tool
def forecast(city: str) -> str:
    """The weather in a city."""
    ran.append(city)
    return f"sunny in {city}"


def test_it_calls_a_tool_and_continues_with_its_result(model: Upstream) -> None:
    config = LoadedConfig(Config(tools=ToolsConfig(limits=LIMITS)))
    with streamglot.Client(upstreams=[model], tools=[forecast], config=config) as client:
        events = list(client.stream(model="local", messages=QUESTION, max_tokens=60, temperature=0))
    streamglot.check(events)
    calls = [event for event in events if isinstance(event, ToolCallStart)]
    results = [event for event in events if isinstance(event, ToolResult)]
    assert ran[0] == "Paris"
    assert (calls[0].name, calls[0].kind) == ("forecast", "server")
    assert len(results) == len(calls)
    assert results[0].content == "sunny in Paris"
    assert any(isinstance(event, StepEnd) for event in events)
    assert isinstance(events[-1], StreamEnd)


@pytest.mark.parametrize("client", OFFICIAL)
def test_clients_of_every_dialect_see_an_answer(model: Upstream, client: str) -> None:
    config = {
        "engine": {"stages": ["local.constrained:Brief"]},
        "upstreams": {"here": {"base_url": model.base_url, "key": model.key, "models": ["m"]}},
        "routes": [{"models": ["m"], "to": [{"upstream": "here"}], "tools": ["forecast"]}],
        "tools": {
            "enabled": ["forecast"],
            "python": ["local.test_local_tools"],
            "limits": {"rounds": 1},
        },
    }
    with running(config) as gateway:
        reading = OFFICIAL[client](gateway.url, "m", True)
    assert reading.error is None
    assert reading.finish is not None
