"""``Client(tools=[…])`` against a real socket."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import streamglot
from streamglot import Client, Upstream, collect
from streamglot.messages import ToolCallPart, ToolResultPart


@streamglot.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class ChatModel:
    """Calls each declared tool for two cities, then tells the results. It speaks openai_chat."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
                model.bodies.append(body)
                data = (
                    b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in model.answer(body))
                    + b"data: [DONE]\n\n"
                )
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def upstream(self) -> Upstream:
        return Upstream(name="scripted", base_url=self.url, models=["m"])

    def close(self) -> None:
        self._server.shutdown()

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        if results:
            return [self.chunk({"content": " and ".join(results)}), self.chunk({}, "stop", usage=True)]
        calls = [
            {
                "index": n,
                "id": f"call_{n}",
                "type": "function",
                "function": {"name": tool["function"]["name"], "arguments": arguments},
            }
            for n, (tool, arguments) in enumerate(
                (tool, f'{{"city":"{city}"}}') for tool in body.get("tools", []) for city in ("Paris", "Rome")
            )
        ]
        return [self.chunk({"tool_calls": calls}), self.chunk({}, "tool_calls", usage=True)]

    def chunk(self, delta: dict[str, Any], reason: str | None = None, usage: bool = False) -> dict[str, Any]:
        counts = {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}} if usage else {}
        return {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            **counts,
        }


@pytest.fixture
def model() -> Iterator[ChatModel]:
    model = ChatModel()
    yield model
    model.close()


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
