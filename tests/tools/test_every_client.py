"""The loop behind the gateway, seen by the vendors' own clients of every dialect, in Python and in Node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from clients.node import CLIENTS, PATHS, NodeClients
from gateway.official import OFFICIAL
from gateway.running import Running, running
from streamglot.tools.settings import ToolLimits
from tools.dialect_model import DialectModel
from tools.scenarios import DONE, HANG, LIMITS, PARIS, SCENARIOS, SHORT_LIMITS
from waiting import WAIT_SECONDS


@pytest.fixture(scope="module")
def model() -> Iterator[DialectModel]:
    model = DialectModel("openai_chat", lambda _number, _body: DONE)
    yield model
    model.close()


@pytest.fixture(scope="module")
def gateways(model: DialectModel) -> Iterator[dict[float, Running]]:
    """One for each time limit of a tool."""
    with gateway_of(model, LIMITS) as long, gateway_of(model, SHORT_LIMITS) as short:
        yield {LIMITS.seconds: long, SHORT_LIMITS.seconds: short}


@contextmanager
def gateway_of(model: DialectModel, limits: ToolLimits) -> Iterator[Running]:
    """Offers the tools of the scenarios with every request: most clients cannot ask for them."""
    config: dict[str, Any] = {
        "server": {"default_model": "m"},
        "upstreams": {"scripted": {"base_url": f"{model.url}/v1", "models": ["m"], "attempts": 1}},
        "routes": [{"models": ["*"], "to": [{"upstream": "scripted", "model": "m"}], "tools": ["*"]}],
        "tools": {"enabled": ["*"], "disabled": ["time"], "python": ["tools.scenarios"], "limits": msgspec.to_builtins(limits)},
    }
    with running(config) as gateway:
        yield gateway


def played(model: DialectModel, name: str) -> None:
    """Checks the number of requests to the model and their content."""
    scenario = SCENARIOS[name]
    assert len(model.texts) == scenario.requests
    for words in scenario.expected:
        assert words in model.texts[-1], model.bodies[-1]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("client", OFFICIAL)
@pytest.mark.parametrize("name", SCENARIOS)
def test_clients_in_python(model: DialectModel, gateways: dict[float, Running], name: str, client: str, stream: bool) -> None:
    model.plays(SCENARIOS[name].script)
    reading = OFFICIAL[client](gateways[SCENARIOS[name].limits.seconds].url, "m", stream)
    assert reading.error is None
    assert reading.text.endswith(DONE)
    assert reading.calls == []
    assert reading.finish in ("stop", "completed", "end_turn", "STOP")
    played(model, name)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_clients_in_node(model: DialectModel, gateways: dict[float, Running], node: NodeClients, name: str, client: str) -> None:
    model.plays(SCENARIOS[name].script)
    answer = node.read(client, gateways[SCENARIOS[name].limits.seconds].url + PATHS.get(client, ""))
    assert (answer["error"], answer["rejected"]) == (None, False)
    assert answer["text"].endswith(DONE)
    played(model, name)


def test_hanging_up_while_a_tool_runs_cancels_it(model: DialectModel, gateways: dict[float, Running]) -> None:
    HANG.clear()
    model.plays(lambda _number, _body: [("hang", PARIS)])
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateways[LIMITS.seconds].port)) as line:
        line.sendall(head.encode() + body)
        assert HANG.started.wait(WAIT_SECONDS)
    assert HANG.cancelled.wait(WAIT_SECONDS)
    assert len(model.texts) == 1
