"""Drives the real agents against the scripted upstream, through the gateway and directly.

    cd tests && python -m agents.run [--agents codex,…] [--upstreams anthropic,…] [--scenarios file,…] [--modules DIR]

Every cell is a run of its own: an agent with an empty home, a gateway process, a scripted upstream. ``direct`` among the
upstreams is the control: the agent asks the scripted upstream itself, in the dialect that it speaks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from agents import wires
from agents.drivers import DRIVERS, HERE, MODEL, Place, Ran, installed, run
from agents.gateway_process import gateway
from agents.scenarios import SCENARIOS
from agents.scripted import scripted

DIRECT = "direct"
ONLY_FOR = {"patch": ("codex",)}
"""Scenarios that need a tool which only these agents have."""
MODELS = {("codex", "patch"): "gpt-5.5"}
"""Agents choose their tools by the name of the model."""
AT_ONCE = 2


class Cell(Struct, frozen=True):
    agent: str
    upstream: str
    scenario: str


class Outcome(Struct):
    cell: Cell
    faults: list[str]
    seconds: float
    ran: Ran
    seen: list[str]


def drive(cell: Cell, modules: Path, folder: Path) -> Outcome:
    driver = DRIVERS[cell.agent]
    work = folder / "work"
    work.mkdir(parents=True)
    script = SCENARIOS[cell.scenario](work)
    began = time.monotonic()
    with ExitStack() as stack:
        upstream = stack.enter_context(scripted(script))
        url = upstream.url
        if cell.upstream != DIRECT:
            url = stack.enter_context(gateway(folder / "gateway", cell.upstream, upstream.url))
        model = MODELS.get((cell.agent, cell.scenario), MODEL)
        ran = run(driver, Place(folder / "home", work, url + driver.base_path, model), modules)
    faults = script.verify(ran.output)
    if ran.code is None:
        faults.append("it did not end")
    elif ran.code:
        faults.append(f"it ended with {ran.code}")
    return Outcome(cell, faults, time.monotonic() - began, ran, upstream.seen)


def cells(agents: list[str], upstreams: list[str], scenarios: list[str]) -> list[Cell]:
    return [
        Cell(agent, upstream, scenario)
        for scenario in scenarios
        for agent in agents
        for upstream in upstreams
        if agent in ONLY_FOR.get(scenario, (agent,))
    ]


def _tell(outcome: Outcome, verbose: bool) -> None:
    cell = outcome.cell
    state = "ok" if not outcome.faults else "; ".join(outcome.faults)
    print(f"{cell.scenario:10} {cell.agent:12} {cell.upstream:17} {outcome.seconds:5.1f} s  {state}", flush=True)
    if verbose and outcome.faults:
        for line in outcome.seen:
            print(f"      {line}")
        print("      --- printed\n" + outcome.ran.output[-1500:])
        print("      --- errors\n" + outcome.ran.errors[-1500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="agents.run")
    parser.add_argument("--agents", default=",".join(DRIVERS))
    parser.add_argument("--upstreams", default=",".join((DIRECT, *wires.DIALECTS)))
    parser.add_argument("--scenarios", default="file")
    parser.add_argument("--modules", type=Path, default=HERE / "node_modules")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    if not installed(given.modules):
        sys.exit(f"the agents are not installed in {given.modules}: run `npm ci` in {HERE}")
    wanted = cells(given.agents.split(","), given.upstreams.split(","), given.scenarios.split(","))
    with tempfile.TemporaryDirectory(prefix="streamglot-agents-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(drive, cell, given.modules, Path(folder) / str(number)) for number, cell in enumerate(wanted)]
        outcomes = []
        for one in runs:
            outcomes.append(one.result())
            _tell(outcomes[-1], given.verbose)
    failed = [outcome for outcome in outcomes if outcome.faults]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} runs were right")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
