"""The results of the runs, and the page about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from agents.drivers import DRIVERS
from agents.matrix import DIRECT, Cell, Found, cells
from agents.scenarios import SCENARIOS

_TITLES = {
    "file": "writes a file and reads it back",
    "parallel": "two calls in one turn",
    "reasoning": "reasoning with opaque state, over two turns",
    "patch": "a custom tool that takes free text",
    "cut-text": "the upstream is cut in the middle of a text",
    "cut-reasoning": "the upstream is cut in the middle of a thought",
    "cut-call": "the upstream is cut in the middle of a call",
    "429": "the upstream is busy once",
    "image": "an image in the result of a tool",
    "interrupt": "Ctrl-C in the middle of an answer reaches the upstream",
    "long": "an answer of 6,000 lines",
}
_HEAD = """\
# Coding agents

`make agents` writes this page. It drives the real agents, each against a scripted upstream that speaks six dialects, through
`streamglot serve`. Every cell is one run: an agent with an empty home, a gateway, an upstream. **direct** is the control: the
agent asks the scripted upstream itself, in its own dialect and without a gateway.

A run is right (**ok**) if the agent did the work, printed the answer and ended by itself with status 0; after Ctrl-C, if the
upstream noticed it. **²** marks a run that was right the second time: on a busy machine an agent may give up early. **as direct** is a
run that goes wrong without a gateway too. Agents that lack a tool for a scenario are left out of its table; codex-ws is Codex over
WebSockets and runs what the transport can touch.
"""


def page(found: list[Found], modules: Path) -> str:
    results = {one.cell: one for one in found}
    agents = list(dict.fromkeys(one.cell.agent for one in found))
    upstreams = list(dict.fromkeys(one.cell.upstream for one in found))
    lines = [_HEAD, f"Run on {datetime.now(UTC):%Y-%m-%d} with", ""]
    lines += [f"- {DRIVERS[agent].package} {version(modules, DRIVERS[agent].package)} ({agent})" for agent in agents]
    right = sum(not one.faults for one in found)
    explained = sum(bool(one.faults) and (one.explained_by(results) or one.cell.upstream == DIRECT) for one in found)
    again = sum(one.again and not one.faults for one in found)
    lines += [
        "",
        f"{right} of {len(found)} runs are right ({again} of them the second time), {explained} go wrong without a gateway too.",
    ]
    for scenario in (name for name in SCENARIOS if any(one.cell.scenario == name for one in found)):
        lines += [
            "",
            f"## {scenario}: {_TITLES[scenario]}",
            "",
            f"| agent | {' | '.join(upstreams)} |",
            f"|---|{'---|' * len(upstreams)}",
        ]
        for agent in agents:
            possible = cells([agent], upstreams, [scenario])
            shown = [_shown(Cell(agent, upstream, scenario), possible, results) for upstream in upstreams]
            if possible:
                lines.append(f"| {agent} | {' | '.join(shown)} |")
        lines += _notes(scenario, found, results)
    return "\n".join(lines) + "\n"


def _shown(cell: Cell, possible: list[Cell], results: Mapping[Cell, Found]) -> str:
    one = results.get(cell)
    if one is None:
        return "not run" if cell in possible else "–"
    if not one.faults:
        return "ok ²" if one.again else "ok"
    return "as direct" if one.explained_by(results) else "wrong"


def _notes(scenario: str, found: list[Found], results: Mapping[Cell, Found]) -> list[str]:
    wrong = [one for one in found if one.cell.scenario == scenario and one.faults and not one.explained_by(results)]
    return ["", *(f"- {one.cell.agent}, {one.cell.upstream}: {'; '.join(one.faults)}" for one in wrong)] if wrong else []


def version(modules: Path, package: str) -> str:
    return str(json.loads((modules / package / "package.json").read_text())["version"])
