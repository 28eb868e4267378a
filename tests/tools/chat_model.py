"""A model on a real socket: it calls each declared tool for two cities, then tells the results."""

from __future__ import annotations

from typing import Any

from gateway.upstream import HostileUpstream, Script, Seen, sse, whole
from streamglot import Upstream


class ChatModel(HostileUpstream):
    """Calls each declared tool for two cities, then tells the results. It speaks openai_chat."""

    def __init__(self) -> None:
        super().__init__()
        self.start()

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def upstream(self) -> Upstream:
        return Upstream(name="scripted", base_url=self.url, models=["m"])

    def close(self) -> None:
        self.stop()

    def script_for(self, seen: Seen) -> Script:
        return whole(sse(*self.answer(seen.body), "[DONE]"), media_type="text/event-stream")

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
