"""``Client(tools=[…])`` against a real socket."""

from __future__ import annotations

import pytest

import streamglot
from streamglot import Client, collect
from streamglot.messages import ToolCallPart, ToolResultPart
from tools.chat_model import ChatModel


@streamglot.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def test_tools_of_a_client_are_run_and_the_answer_follows(model: ChatModel) -> None:
    with Client(upstreams=[model.upstream()], tools=[weather]) as client:
        answer = collect(client.stream(model="m", messages="What is the weather in Paris and Rome?"))
    assert answer.choices[0].text == "sunny in Paris and sunny in Rome"
    assert answer.usage.input_tokens == 20
    assert [part.text for part in answer.choices[0].parts if isinstance(part, ToolResultPart)] == [
        "sunny in Paris",
        "sunny in Rome",
    ]
    assert len(model.bodies) == 2
    assert [message["role"] for message in model.bodies[1]["messages"]] == ["user", "assistant", "tool", "tool"]


def test_tools_of_a_client_can_be_returned_instead(model: ChatModel) -> None:
    with Client(upstreams=[model.upstream()], tools=[weather], run_tools=False) as client:
        answer = collect(client.stream(model="m", messages="hi"))
        assert [part.kind for part in answer.choices[0].parts if isinstance(part, ToolCallPart)] == ["function", "function"]
        assert answer.choices[0].stop_reason == "tool_calls"
        ran = collect(client.stream(model="m", messages="hi", run_tools=True))
        assert ran.choices[0].stop_reason == "end"


@pytest.mark.anyio
async def test_an_asynchronous_client_runs_tools_too(model: ChatModel) -> None:
    async with Client(upstreams=[model.upstream()], tools=[weather]) as client:
        events = [event async for event in client.stream(model="m", messages="hi")]
    assert collect(events).choices[0].text == "sunny in Paris and sunny in Rome"
