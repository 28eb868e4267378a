"""A model on a real socket: it calls each declared tool for two cities, then tells the results."""

from __future__ import annotations

import http.server
import threading
from typing import Any

import msgspec

from streamglot import Upstream


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
