"""What models and tools do to a loop: the script of the model, and what must come of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec import Struct

import streamglot
from streamglot.tools.settings import ToolLimits
from tools.dialect_model import Script, Turn

HUGE = 500
LIMITS = ToolLimits(rounds=3, seconds=1.0, result_chars=HUGE, repeats=2)
"""Small numbers, so that each limit is reached within a few turns. No scenario depends on how long anything takes."""
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
DONE = "All is said."


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def broken(city: str) -> str:
    """Fails."""
    raise streamglot.ToolError(f"the thermometer of {city} is broken")


async def slow(city: str) -> str:
    """Never answers."""
    import asyncio

    await asyncio.Event().wait()
    return city


def huge(city: str) -> str:
    """Says too much."""
    return city * HUGE


TOOLS = (weather, broken, slow, huge)


class Scenario(Struct):
    """``expected`` are words that the last request must have, ``requests`` how many requests there are, ``results`` how many
    results the client sees, and ``reason`` why the exchange ended."""

    script: Script
    expected: tuple[str, ...]
    requests: int
    results: int
    failed: int = 0
    reason: str = "end"


def _turns(*turns: Turn) -> Script:
    return lambda number, _body: turns[number]


def _endless(number: int, _body: str) -> Turn:
    """Calls a tool in every turn, and never answers unless it is told to."""
    return [("weather", f'{{"city": "City {number}"}}')] if number < LIMITS.rounds else DONE


SCENARIOS: dict[str, Scenario] = {
    "two_cities": Scenario(
        _turns([("weather", PARIS), ("weather", ROME)], DONE), ("sunny in Paris", "sunny in Rome"), requests=2, results=2
    ),
    "tool_error": Scenario(_turns([("broken", PARIS)], DONE), ("the thermometer of Paris is broken",), 2, 1, failed=1),
    "timeout": Scenario(_turns([("slow", PARIS)], DONE), ("did not finish within",), 2, 1, failed=1),
    "invalid_arguments": Scenario(
        _turns([("weather", '{"town": "Paris"}')], [("weather", PARIS)], DONE),
        ("Correct the arguments", "sunny in Paris"),
        requests=3,
        results=2,
        failed=1,
    ),
    "endless_caller": Scenario(_endless, ("the limit of 3 rounds", "answer now"), requests=4, results=3),
    "huge_result": Scenario(_turns([("huge", PARIS)], DONE), (f"the result has {5 * HUGE} characters",), 2, 1),
    "unknown_tool": Scenario(_turns([("nothing", PARIS)], DONE), ("does not exist. The tools are",), 2, 1, failed=1),
}


class Hanging:
    """A tool that runs until it is cancelled, and says both."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    def tool(self) -> Callable[..., Any]:
        async def hang(city: str) -> str:
            """Waits."""
            import asyncio

            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return city

        return hang
