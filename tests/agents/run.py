"""Drives the real agents against the scripted upstream, through the gateway and directly.

    cd tests && python -m agents.run [--agents codex,…] [--upstreams anthropic,…] [--scenarios file,…] [--modules DIR]
                                     [--results FILE] [--page FILE]

Every cell is a run of its own: an agent with an empty home, a gateway process, a scripted upstream. ``direct`` among the
upstreams is the control: the agent asks the scripted upstream itself, in the dialect that it speaks. A cell that goes wrong is
run a second time, because a busy machine can make an agent give up; the page says so. A failed control run is not repeated.
``--results`` keeps what was found, and cells that went well there are not run again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from agents import wires
from agents.drivers import DRIVERS, HERE, MODEL, Place, Ran, installed, run
from agents.gateway_process import gateway
from agents.matrix import DIRECT, MODELS, Cell, Found, cells
from agents.page import page
from agents.scenarios import SCENARIOS
from agents.scripted import scripted
from waiting import WAIT_SECONDS


class Outcome(Struct):
    found: Found
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
        ran = run(driver, Place(folder / "home", work, url + driver.base_path, model), modules, script.hangs.is_set)
        if script.interrupts and script.hangs.is_set():
            script.hung_up.wait(WAIT_SECONDS)
    faults = script.verify(ran.output)
    if ran.code is None:
        faults.append("it did not end")
    elif ran.code and not script.interrupts:
        faults.append(f"it ended with {ran.code}")
    return Outcome(Found(cell, faults, round(time.monotonic() - began, 1)), ran, upstream.seen)


def drive_twice(cell: Cell, modules: Path, folder: Path) -> Outcome:
    first = drive(cell, modules, folder / "first")
    if not first.found.faults:
        return first
    second = drive(cell, modules, folder / "second")
    second.found.again = True
    return second


def _print_outcome(outcome: Outcome, verbose: bool) -> None:
    found = outcome.found
    cell = found.cell
    state = ("ok" if not found.faults else "; ".join(found.faults)) + (" (second run)" if found.again else "")
    print(f"{cell.scenario:13} {cell.agent:12} {cell.upstream:17} {found.seconds:5.1f} s  {state}", flush=True)
    if verbose and found.faults:
        for line in outcome.seen:
            print(f"      {line}")
        print("      --- printed\n" + outcome.ran.output[-1500:])
        print("      --- errors\n" + outcome.ran.errors[-1500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="agents.run")
    parser.add_argument("--agents", default=",".join(DRIVERS))
    parser.add_argument("--upstreams", default=",".join((DIRECT, *wires.DIALECTS)))
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--modules", type=Path, default=HERE / "node_modules")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    if not installed(given.modules):
        sys.exit(f"the agents are not installed in {given.modules}: run `npm ci` in {HERE}")
    wanted = cells(given.agents.split(","), given.upstreams.split(","), given.scenarios.split(","))
    results: dict[Cell, Found] = {}
    if given.results is not None and given.results.exists():
        results = {found.cell: found for found in msgspec.json.decode(given.results.read_bytes(), type=list[Found])}
    with tempfile.TemporaryDirectory(prefix="streamglot-agents-") as folder:
        for number, cell in enumerate(wanted):
            if cell in results and not results[cell].faults:
                continue
            control = results.get(Cell(cell.agent, DIRECT, cell.scenario))
            drive_cell = (
                drive if control is not None and control.faults else drive_twice
            )  # what the control explains is enough once
            outcome = drive_cell(cell, given.modules, Path(folder) / str(number))
            results[cell] = outcome.found
            _print_outcome(outcome, given.verbose)
            if given.results is not None:
                given.results.write_bytes(msgspec.json.encode(list(results.values())))
    found = [results[cell] for cell in wanted]
    if given.page is not None:
        given.page.write_text(page(found, given.modules))
    unexplained = [one for one in found if one.faults and one.cell.upstream != DIRECT and not one.explained_by(results)]
    print(f"{sum(not one.faults for one in found)} of {len(found)} runs were right, {len(unexplained)} faults are not explained")
    sys.exit(bool(unexplained))


if __name__ == "__main__":
    main()
