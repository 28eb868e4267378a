"""Behaviour of models and tools in a loop: the script of the model, and the expected result."""

from __future__ import annotations

import asyncio
import threading

from msgspec import Struct, field, structs

import streamglot
from streamglot.tools.settings import ToolLimits
from tools.dialect_model import Script, Turn

HUGE = 500
LIMITS = ToolLimits(rounds=3, seconds=60.0, result_chars=HUGE, repeats=2)
"""Small numbers, so that each limit is reached within a few turns; but tools have more time than a busy machine takes."""
SHORT_LIMITS = structs.replace(LIMITS, seconds=0.2)
"""For a tool that never answers. No other tool runs with these limits."""
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
DONE = "All is said."


@streamglot.tool
def forecast(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@streamglot.tool
def broken(city: str) -> str:
    """Fails."""
    raise streamglot.ToolError(f"the thermometer of {city} is broken")


@streamglot.tool
async def slow(city: str) -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return city


@streamglot.tool
def huge(city: str) -> str:
    """Says too much."""
    return city * HUGE


TOOLS = (forecast, broken, slow, huge)


class Scenario(Struct):
    """``expected`` are words that the last request must have, ``requests`` how many requests there are, ``results`` how many
    results the client sees, and ``reason`` why the exchange ended."""

    script: Script
    expected: tuple[str, ...]
    requests: int
    results: int
    failed: int = 0
    reason: str = "end"
    limits: ToolLimits = field(default_factory=lambda: LIMITS)


def _turns(*turns: Turn) -> Script:
    return lambda number, _body: turns[number]


def _endless(number: int, _body: str) -> Turn:
    """Calls a tool in every turn until the request demands an answer."""
    return [("forecast", f'{{"city": "City {number}"}}')] if number < LIMITS.rounds else DONE


SCENARIOS: dict[str, Scenario] = {
    "two_cities": Scenario(
        _turns([("forecast", PARIS), ("forecast", ROME)], DONE), ("sunny in Paris", "sunny in Rome"), requests=2, results=2
    ),
    "tool_error": Scenario(_turns([("broken", PARIS)], DONE), ("the thermometer of Paris is broken",), 2, 1, failed=1),
    "timeout": Scenario(_turns([("slow", PARIS)], DONE), ("did not finish within",), 2, 1, failed=1, limits=SHORT_LIMITS),
    "invalid_arguments": Scenario(
        _turns([("forecast", '{"town": "Paris"}')], [("forecast", PARIS)], DONE),
        ("Correct the arguments", "sunny in Paris"),
        requests=3,
        results=2,
        failed=1,
    ),
    "endless_caller": Scenario(_endless, ("the limit of 3 rounds", "answer now"), requests=4, results=3),
    "huge_result": Scenario(_turns([("huge", PARIS)], DONE), (f"the result has {5 * HUGE} characters",), 2, 1),
    "unknown_tool": Scenario(_turns([("nothing", PARIS)], DONE), ("does not exist. The tools are",), 2, 1, failed=1),
}


class Hang(Struct):
    """Whether the tool ``hang`` was started, and whether it was cancelled."""

    started: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def clear(self) -> None:
        self.started.clear()
        self.cancelled.clear()


HANG = Hang()


@streamglot.tool
async def hang(city: str) -> str:
    """Waits until it is cancelled."""
    HANG.started.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        HANG.cancelled.set()
        raise
    return city
