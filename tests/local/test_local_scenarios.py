"""The scenarios of the tool loop with the real model, through every upstream dialect that a gateway serves.

A gateway in front runs the tools; its upstream is a gateway with the real model. What the model says is constrained to the script
of the scenario, or is free. What must hold whatever it says: every call has exactly one result, every turn ends with a true stop
reason, limits hold, and a client that hangs up cancels the tool.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import streamglot
from gateway.running import Running, running
from local.constrained import PLAYED, serving_constrained
from streamglot.events import Event, StepEnd, StreamEnd, ToolCallStart, ToolResult
from streamglot.grammar import check
from streamglot.messages import ToolResultPart
from streamglot.tools.settings import ToolLimits
from streamglot.upstream import Upstream
from tools.dialect_model import PREFIX
from tools.scenarios import DONE, HANG, LIMITS, PARIS, SCENARIOS, TOOLS, Scenario
from waiting import WAIT_SECONDS, until

UPSTREAMS = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
"""The dialects in which one gateway can be the upstream of another."""


@pytest.fixture(scope="module")
def constrained(model: Upstream) -> Iterator[Running]:
    with serving_constrained(model) as gateway:
        yield gateway


@contextmanager
def in_front_of(gateway: Running, dialect: str, tools: Sequence[str], limits: ToolLimits = LIMITS) -> Iterator[Running]:
    """A gateway that runs the tools and asks the other one in this dialect."""
    config = {
        "upstreams": {
            "behind": {
                "dialect": dialect,
                "base_url": gateway.url + PREFIX.get(dialect, ""),
                "key": "none",
                "models": ["text", "native"],
                "attempts": 1,
            }
        },
        "tools": {"enabled": list(tools), "python": ["tools.scenarios"], "limits": msgspec.to_builtins(limits)},
    }
    with running(config) as front:
        yield front


def asked(model: str, tools: Sequence[str]) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": 99,
        "stream": True,
        "messages": [{"role": "user", "content": "What about Paris? Use a tool."}],
        "streamglot": {"tools": list(tools)},
    }


def tools_of(scenario: Scenario) -> list[str]:
    """The tools that a scenario calls. Others would only make its prompt longer."""
    turns = [turn for number in range(scenario.requests) if not isinstance(turn := scenario.script(number, ""), str)]
    called = {name for turn in turns for name, _ in turn}
    return [tool.name for tool in TOOLS if tool.name in called] or ["forecast"]


def events_of(gateway: Running, body: dict[str, Any]) -> list[Event]:
    """The answer for a client of Messages: this dialect shows calls, results and the stop reason."""
    answer = gateway.ask("/v1/messages", body)
    assert answer.status == 200, answer.body
    reader = streamglot.reader("anthropic")
    events = [*reader.feed(answer.body), *reader.close()]
    check(events)
    return events


def results_of(events: list[Event]) -> list[ToolResult]:
    """The results. Every call has exactly one."""
    results = [event for event in events if isinstance(event, ToolResult)]
    calls = [event for event in events if isinstance(event, ToolCallStart)]
    assert all(call.kind == "server" for call in calls)
    assert sorted(result.call_id for result in results) == sorted(call.call_id for call in calls)
    return results


@pytest.mark.parametrize("dialect", UPSTREAMS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_loop_ends_properly(constrained: Running, dialect: str, name: str) -> None:
    scenario = SCENARIOS[name]
    PLAYED.plays(scenario.script)
    tools = tools_of(scenario)
    with in_front_of(constrained, dialect, tools, scenario.limits) as front:
        events = events_of(front, asked("text", tools))
    results = results_of(events)
    assert (len(results), sum(result.is_error for result in results)) == (scenario.results, scenario.failed)
    assert len(PLAYED.requests) == scenario.requests
    last = events[-1]
    assert isinstance(last, StreamEnd)
    assert last.reason == scenario.reason
    assert streamglot.collect(events).choices[0].text.endswith(DONE)
    told = [part.text for message in PLAYED.requests[-1].messages for part in message.parts if isinstance(part, ToolResultPart)]
    assert len(told) == scenario.results
    for words in scenario.expected:
        assert words in "\n".join(told)


@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_a_client_that_disconnects_cancels_the_tool(constrained: Running, dialect: str) -> None:
    HANG.clear()
    PLAYED.plays(lambda _number, _body: [("hang", PARIS)])
    with in_front_of(constrained, dialect, ["hang"]) as front:
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT_SECONDS)
        connection.request("POST", "/v1/messages", json.dumps(asked("text", ["hang"])), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert HANG.started.wait(WAIT_SECONDS)
        answer.close()
        connection.close()
        assert HANG.cancelled.wait(WAIT_SECONDS)
        until(lambda: any("ending" in line for line in front.lines), lambda: "the exchange did not end")
    assert len(PLAYED.requests) == 1


@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_a_free_model_ends_properly_too(constrained: Running, dialect: str) -> None:
    """The server finds the call by itself; after it the model may say what it likes."""
    PLAYED.plays(None)
    limits = ToolLimits(rounds=1, repeats=1)
    with in_front_of(constrained, dialect, ["forecast"], limits) as front:
        events = events_of(front, asked("native", ["forecast"]))
    results = results_of(events)
    assert results
    assert all(result.content.startswith(("sunny in ", "The tool 'forecast' was not run")) for result in results)
    assert len(PLAYED.requests) == 2
    last = events[-1]
    assert isinstance(last, StreamEnd)
    assert last.reason in ("end", "length", "other")
    assert sum(isinstance(event, StepEnd) for event in events) <= 1
