"""The real model behind the same path as any other upstream, with a few tokens per test."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import streamglot
from gateway.running import running
from local.model import counter, needed
from streamglot import StreamEnd, TextDelta, ToolCallDelta, UpstreamError, check
from streamglot.messages import ReasoningPart, ToolCallPart
from streamglot.upstream import Upstream
from streamglot.upstream.local import LocalServer, missing, threads
from waiting import WAIT_SECONDS, until

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_it_streams(model: Upstream) -> None:
    with streamglot.Client(upstreams=[model]) as client:
        events = list(client.stream(model="smollm2", messages="Say hello.", max_tokens=5, temperature=0))
    check(events)
    assert sum(isinstance(event, TextDelta) for event in events) >= 2
    answer = streamglot.collect(events)
    assert answer.usage.output_tokens is not None
    assert 1 <= answer.usage.output_tokens <= 5


def test_a_small_model_calls_a_tool(model: Upstream) -> None:
    with streamglot.Client(upstreams=[model]) as client:
        question = [{"role": "user", "content": "What about Paris? Use a tool."}]
        events = list(client.stream(model="local", messages=question, tools=[TOOL], max_tokens=60, temperature=0))
    check(events)
    assert sum(isinstance(event, ToolCallDelta) for event in events) > 2
    choice = streamglot.collect(events).choices[0]
    call = next(part for part in choice.parts if isinstance(part, ToolCallPart))
    assert (call.name, call.arguments, choice.stop_reason) == ("weather", '{"city": "Paris"}', "tool_calls")


def test_it_reasons_on_request(model: Upstream) -> None:
    with streamglot.Client(upstreams=[model]) as client:
        question = [{"role": "user", "content": "What is 2 + 3?"}]
        answer = streamglot.collect(client.stream(model="local", messages=question, reasoning_effort="low", max_tokens=8))
        plain = streamglot.collect(client.stream(model="local", messages=question, max_tokens=8))
    assert isinstance(answer.choices[0].parts[0], ReasoningPart)
    assert not any(isinstance(part, ReasoningPart) for part in plain.choices[0].parts)


# An answer that ends only by its length, which takes the model most of a minute, or by a client that leaves.
LONG_TOKENS = 4000
LONG_ANSWER: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": LONG_TOKENS,
    "ignore_eos": True,
}


def test_closing_the_stream_stops_the_model(model: Upstream) -> None:
    before = counter(model, "tokens_predicted_total")
    with streamglot.Client(upstreams=[model]) as client:
        stream = client.stream(model="local", dialect="openai_chat", **LONG_ANSWER)
        for event in stream:
            if isinstance(event, TextDelta):
                break
        stream.close()
    assert 0 < _settled(model) - before < LONG_TOKENS, "it continued after the client was gone"


def test_a_client_of_the_gateway_that_leaves_stops_the_model(model: Upstream) -> None:
    with running({"upstreams": {"local": _settings(model)}}) as gateway:
        before = counter(model, "tokens_predicted_total")
        body = json.dumps({"model": "local", "stream": True, **LONG_ANSWER}).encode()
        request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            assert answer.readline().startswith(b"data: ")
        assert 0 < _settled(model) - before < LONG_TOKENS


def _settled(model: Upstream) -> float:
    """The server's counter once it no longer changes. The server counts when an answer ends."""
    until(lambda: not counter(model, "requests_processing"), lambda: "the server is still busy")
    return counter(model, "tokens_predicted_total")


def _settings(model: Upstream) -> dict[str, object]:
    return {"base_url": model.base_url, "key": model.key, "models": model.models, "inband": model.inband}


ENDPOINTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, b"chat.completion.chunk"),
    "/v1/responses": ({"input": "Hi", "max_output_tokens": 16}, b"response.output_text.delta"),
    "/v1/messages": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, b"content_block_delta"),
    "/v1beta/models/local:streamGenerateContent?alt=sse": ({"contents": [{"parts": [{"text": "Hi"}]}]}, b'"candidates"'),
    "/api/chat": ({"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 4}}, b'"done":true'),
    "/agui": (
        {
            "threadId": "t",
            "runId": "r",
            "state": {},
            "messages": [{"id": "1", "role": "user", "content": "Hi"}],
            "tools": [],
            "context": [],
            "forwardedProps": {},
        },
        b"TEXT_MESSAGE_CONTENT",
    ),
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_dialect_reaches_it(model: Upstream, path: str) -> None:
    body, mark = ENDPOINTS[path]
    config = {"server": {"default_model": "local"}, "upstreams": {"local": _settings(model)}}
    with running(config) as gateway:
        answer = gateway.ask(path, {**body, "stream": True} if "generateContent" not in path.lower() else body)
    assert answer.status == 200, answer.body
    assert mark in answer.body


def test_the_official_clients_stream_from_it(model: Upstream) -> None:
    import anthropic
    import openai

    with running({"upstreams": {"local": _settings(model)}}) as gateway:
        chat = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
        messages: Any = [{"role": "user", "content": "Hi"}]
        chunks = list(chat.chat.completions.create(model="local", messages=messages, stream=True, max_tokens=4))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        client = anthropic.Anthropic(base_url=gateway.url, api_key="none")
        with client.messages.stream(model="local", max_tokens=4, messages=messages) as stream:
            assert "".join(stream.text_stream)


# --- the process


def test_requests_without_the_key_are_refused(model: Upstream) -> None:
    request = urllib.request.Request(f"{model.base_url}/chat/completions", b"{}", {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=WAIT_SECONDS)
    assert model.base_url.startswith("http://127.0.0.1:")


def test_invalid_weights_are_an_error(tmp_path: Path) -> None:
    needed()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing else")
    server = LocalServer(broken)
    with pytest.raises(UpstreamError, match=r"'broken.gguf' could not be started: \w+Error"):
        server.start()
    assert not server.running
    broken.write_bytes(b"<html>")
    with pytest.raises(UpstreamError, match="damaged: streamglot local pull"):
        server.start()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    words = missing({"STREAMGLOT_CACHE": str(tmp_path)})
    assert "streamglot local pull" in words or "pip install" in words


def test_threads_leave_a_processor_free() -> None:
    assert threads({"STREAMGLOT_LOCAL_THREADS": "3"}) == 3
    there = len(os.sched_getaffinity(0))
    assert threads({}) == max(1, there - 1)
    with pytest.raises(streamglot.ConfigError, match="above 0"):
        threads({"STREAMGLOT_LOCAL_THREADS": "many"})


def test_the_finish_reason_is_that_of_the_model(model: Upstream) -> None:
    with streamglot.Client(upstreams=[model]) as client:
        events = list(client.stream(model="local", messages="Count to a hundred.", max_tokens=3))
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reason == "length"
