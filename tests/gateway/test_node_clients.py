"""The vendors' clients in Node, against a running gateway, over upstreams of several dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from clients.node import CLIENTS, PATHS, SUMMARIES_ONLY, NodeClients
from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.scenarios import PARIS, SCENARIOS, text_chunk
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Script, sse, streamed, unfinished, whole

WIRES = {
    "openai_chat": "reasoning_text_call",
    "anthropic": "anthropic_all",
    "gemini": "gemini_all",
    "ollama": "ollama_all",
}


@pytest.fixture(scope="module")
def gateways(upstream: HostileUpstream) -> Iterator[dict[str, Running]]:
    """One for each upstream dialect: these clients all ask for the model "m", or for none."""
    with ExitStack() as stack:
        every = upstreams_at(upstream.url)
        settings = {"server": {"default_model": "m"}}
        yield {
            wire: stack.enter_context(running({**settings, "upstreams": {(name := UPSTREAM_NAMES[wire]): every[name]}}))
            for wire in WIRES
        }


def read(node: NodeClients, gateway: Running, client: str) -> dict[str, Any]:
    return node.read(client, gateway.url + PATHS.get(client, ""))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("client", CLIENTS)
def test_tools_and_reasoning(
    node: NodeClients, gateways: dict[str, Running], upstream: HostileUpstream, client: str, wire: str
) -> None:
    scenario = SCENARIOS[WIRES[wire]]
    upstream.scripts["m"] = scenario.script
    answer = read(node, gateways[wire], client)
    assert answer["error"] is None
    assert answer["text"] == scenario.text
    assert answer["reasoning"] == scenario.reasoning or (client in SUMMARIES_ONLY and not answer["reasoning"])
    assert [(call["name"], json.loads(call["arguments"])) for call in answer["toolCalls"]] == [("weather", PARIS)]


FAULTS: dict[str, Script] = {
    "refused": whole({"error": {"message": "no, sorry"}}, 400),
    "busy": whole({"error": {"message": "no, sorry"}}, 503),
    "truncated": unfinished(sse(text_chunk("Hello"))),
    "error": streamed(sse(text_chunk("Hello"), {"error": {"message": "no, sorry"}})),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_faults_are_reported(
    node: NodeClients, gateways: dict[str, Running], upstream: HostileUpstream, client: str, fault: str
) -> None:
    upstream.scripts["m"] = FAULTS[fault]
    answer = read(node, gateways["openai_chat"], client)
    assert not answer["ok"]
    assert ("ended without the end" if fault == "truncated" else "no, sorry") in answer["error"], answer
