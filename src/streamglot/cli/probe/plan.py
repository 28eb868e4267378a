"""The four requests of a probe: plain, with reasoning, with tools, with both."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...messages import Message, Reasoning, Request, TextPart, ToolSpec

WEATHER: Final = ToolSpec(
    "weather",
    "The weather in a city",
    {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}}, "required": ["city"]},
)


class Case(Struct, frozen=True):
    name: str
    title: str
    question: str
    reasoning: bool = False
    tools: bool = False

    def request(self, model: str, max_tokens: int) -> Request:
        return Request(
            model=model,
            messages=[Message("user", [TextPart(self.question)])],
            stream=True,
            max_tokens=max_tokens,
            temperature=0.0,
            tools=[WEATHER] if self.tools else [],
            reasoning=Reasoning(effort="low") if self.reasoning else None,
        )


CASES: Final = (
    Case("plain", "plain", "Say hello in five words."),
    Case("reasoning", "with reasoning", "What is 2 + 3? Think first.", reasoning=True),
    Case("tools", "with tools", "What is the weather in Paris? Use a tool.", tools=True),
    Case("tools_reasoning", "with tools and reasoning", "What is the weather in Rome? Use a tool.", reasoning=True, tools=True),
)
