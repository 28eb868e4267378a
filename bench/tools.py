"""Cost of the tool loop: CPU of one round, and of the stage if no tools of the gateway are used.

The model and the tool are in this process and wait for nothing, so the CPU time of an exchange with N rounds, less that of one
without, is the cost of N rounds of the loop: the stage, the questions, the schema check, and the next request.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from streamglot.tools.settings import ToolLimits
from tools.scripted import Model, call, calls, exchange_of, executor_of, text

ROUNDS = 50
REPEATS = 20
MAX_MICROSECONDS = 150


async def echo(number: int) -> str:
    return str(number)


async def seconds(rounds: int, patterns: list[str]) -> float:
    """The least CPU time of an exchange with this many rounds."""
    executor = executor_of(echo, limits=ToolLimits(rounds=ROUNDS + 1))
    turns = [calls(call(f"c{n}", "echo", f'{{"number":{n}}}')) for n in range(rounds)]
    best = float("inf")
    for _ in range(REPEATS):
        exchange = exchange_of(Model([*turns, text("done")]), executor, patterns=patterns)
        began = time.process_time()
        async for _events in exchange:
            pass
        best = min(best, time.process_time() - began)
    return best


async def main() -> int:
    plain, none, many = await seconds(0, []), await seconds(0, ["*"]), await seconds(ROUNDS, ["*"])
    each = (many - none) / ROUNDS * 1e6
    print(f"an exchange without tools of ours  {plain * 1e6:8.1f} µs")
    print(f"an exchange that calls none        {none * 1e6:8.1f} µs")
    print(f"each round of one call             {each:8.1f} µs  (at most {MAX_MICROSECONDS} µs)")
    return int(each > MAX_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
