"""The vendor's own client, over a socket, and our own reader read what the writer writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dialects.anthropic_events import START, call, text, write
from streamglot import check, collect, reader
from streamglot.dialects.common.state import pack
from vocabulary import *


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic")
    served: dict[str, bytes] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(served[body["model"]])

        def log_message(self, format: str, *args: Any) -> None:
            """Suppresses the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="x", max_retries=0)

    def read(data: bytes) -> Any:
        served["m"] = data
        with made.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "q"}]) as stream:
            return stream.get_final_message()

    yield read
    server.shutdown()
    server.server_close()


EVERYTHING: list[Event] = [
    START,
    Usage(20, 1, 8),
    KeepAlive(),
    Extra("anthropic", {"content_block": {"type": "container_upload", "file_id": "f"}}),
    ReasoningStart(),
    ReasoningDelta("hm"),
    ReasoningEnd(Echo("another", {"state": 1})),
    ReasoningStart(),
    ReasoningEnd(Echo("anthropic", {"data": "XYZ"}), redacted=True),
    TextStart(),
    TextDelta("\n"),
    TextDelta("Zwölf 🌍"),
    Citation("https://a.example", "A"),
    TextEnd(),
    *call('{"city":', '"Köln"}'),
    *call('a "b"', kind="custom", call_id="x:1"),
    *call("", call_id="toolu_3"),
    *text("late"),
    Usage(20, 9, 8, None, 4),
    StreamEnd("end"),
]


def test_the_client_reads_everything(client: Any) -> None:
    message = client(write(*EVERYTHING)[0])
    assert [block.type for block in message.content] == [
        "container_upload",
        "thinking",
        "redacted_thinking",
        "text",
        "tool_use",
        "tool_use",
        "tool_use",
        "thinking",
    ]
    thought, text_read = message.content[1], message.content[3]
    assert (thought.thinking, thought.signature) == ("hm", pack(Echo("another", {"state": 1})))
    assert (text_read.text, text_read.citations[0].url) == ("\nZwölf 🌍", "https://a.example")
    calls = [block.input for block in message.content if block.type == "tool_use"]
    assert calls == [{"city": "Köln"}, {"input": 'a "b"'}, {}]
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (12, 8, 9)
    assert message.usage.output_tokens_details.thinking_tokens == 4


@pytest.mark.parametrize("args", ['{"a": "b\\u00', '{"a": tr', "{", '{"a": -', ""])
def test_the_client_gets_the_error_and_not_a_broken_call(client: Any, args: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    half = call(*([args] if args else []), end=ToolCallEnd(complete=False))
    with pytest.raises(anthropic.APIStatusError) as raised:
        client(write(START, *half, StreamError("overloaded_error", "busy", status=529))[0])
    assert raised.value.type == "overloaded_error"


def test_our_own_reader_reads_it_back() -> None:
    read = reader("anthropic")
    given = read.feed(write(*EVERYTHING)[0]) + read.close()
    check(given)
    response = collect(given)
    assert response.choices[0].text == "\nZwölf 🌍"
    assert response.usage.input_tokens == 20
