"""Fragments of arguments end at bounds of JSON where ``server.tool_arguments`` says so, in every client's dialect."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import msgspec
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of
from gateway.running import Running, running
from gateway.scenarios import DONE, called, calls, chunk
from gateway.upstream import HostileUpstream, Until, sse, streamed
from streamglot.framing.sse import Sse
from waiting import WAIT_SECONDS

PIECES = ['{"loca', 'tion": "Par', 'is", "da', 'ys": 1', '2, "exact": tr', 'ue, "note": "caf\\', "u00e9", ' \\"x\\""', "}"]
AT_BOUNDS = ["{", '"location": ', '"Paris", ', '"days": ', '12, "exact": ', 'true, "note": ', '"caf\\u00e9 \\"x\\""', "}"]
DELTAS = {
    "openai_chat": lambda event: [
        call["function"]["arguments"] for choice in event["choices"] for call in choice["delta"].get("tool_calls", ())
    ],
    "openai_responses": lambda event: [event["delta"]] if event["type"] == "response.function_call_arguments.delta" else [],
    "anthropic": lambda event: [event["delta"]["partial_json"]] if "partial_json" in event.get("delta", {}) else [],
    "agui": lambda event: [event["delta"]] if event["type"] == "TOOL_CALL_ARGS" else [],
    "vercel_ui": lambda event: [event["inputTextDelta"]] if event["type"] == "tool-input-delta" else [],
}
"""How each dialect that streams arguments writes a fragment. The others give them whole."""


def script(pieces: list[str]) -> bytes:
    first = calls(called(0, "call_a", "weather", ""))
    return sse(first, *(calls(called(0, arguments=piece)) for piece in pieces), chunk({}, "tool_calls"), DONE)


def fragments(client: str, body: bytes) -> list[str]:
    frames = [frame.data for frame in Sse().feed(body) if frame.kind == "data" and frame.data != b"[DONE]"]
    return [text for frame in frames for text in DELTAS[client](msgspec.json.decode(frame)) if text]


@pytest.fixture(scope="module")
def by_bounds(upstream: HostileUpstream) -> Any:
    with running({"server": {"tool_arguments": "json"}, "upstreams": upstreams_at(upstream.url)}) as started:
        yield started


@pytest.mark.parametrize("client", DELTAS)
def test_fragments_end_at_bounds(gateway: Running, by_bounds: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["cut"] = streamed(script(PIECES))
    body, path = body_of(client, "work/cut", True, ("weather",)), path_of(client, "work/cut")
    assert fragments(client, gateway.ask(path, body).body) == PIECES
    assert fragments(client, by_bounds.ask(path, body).body) == AT_BOUNDS


def test_fragments_leave_while_the_call_arrives(by_bounds: Running, upstream: HostileUpstream) -> None:
    """The client has the key before the upstream has sent all values: the chat writer holds one fragment, which may be the last."""
    gate = threading.Event()
    whole = script(PIECES)
    middle = whole.index(b'ys\\"')
    upstream.scripts["slow-call"] = streamed(whole[:middle], Until(gate), whole[middle:])
    body = msgspec.json.encode(body_of("openai_chat", "work/slow-call", True, ("weather",)))
    connection = http.client.HTTPConnection("127.0.0.1", by_bounds.port, timeout=WAIT_SECONDS)
    connection.request("POST", path_of("openai_chat", ""), body)
    response = connection.getresponse()
    received = b""
    while b"location" not in received:
        line = response.readline()
        assert line, received
        received += line
    gate.set()
    received += response.read()
    connection.close()
    assert "".join(fragments("openai_chat", received)) == "".join(PIECES)


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "openai_responses", "gemini", "ollama"])
def test_a_whole_answer_is_the_same(gateway: Running, by_bounds: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["cut-whole"] = streamed(script(PIECES))
    body, path = body_of(client, "work/cut-whole", False, ("weather",)), path_of(client, "work/cut-whole", False)
    answers = [each.ask(path, body).body for each in (gateway, by_bounds)]
    assert all("Paris" in answer.decode() for answer in answers)
