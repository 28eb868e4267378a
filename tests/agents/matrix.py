"""The cells of the matrix: which agent meets which upstream in which scenario, and what was found."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

DIRECT = "direct"
"""The control among the upstreams: no gateway."""
ONLY_FOR = {"patch": ("codex", "codex-ws")}
"""Scenarios that need a tool which only these agents have."""
WITHOUT = {"image": ("qwen-code",)}
"""Agents that do not show images to a model they do not know."""
ONLY = {"codex-ws": ("file", "reasoning", "patch", "cut-call", "interrupt", "long")}
"""Agents that are another one over another transport: what the transport does not touch is not run twice."""
MODELS = {("codex", "patch"): "gpt-5.5", ("codex-ws", "patch"): "gpt-5.5"}
"""Agents choose their tools by the name of the model."""


class Cell(Struct, frozen=True):
    agent: str
    upstream: str
    scenario: str


class Found(Struct):
    """``again``: the first run of this cell went wrong, and this is the second."""

    cell: Cell
    faults: list[str]
    seconds: float
    again: bool = False

    def explained_by(self, results: Mapping[Cell, Found]) -> bool:
        """Does the control go wrong too?"""
        control = results.get(Cell(self.cell.agent, DIRECT, self.cell.scenario))
        return control is not None and control is not self and bool(control.faults)


def cells(agents: list[str], upstreams: list[str], scenarios: list[str]) -> list[Cell]:
    return [
        Cell(agent, upstream, scenario)
        for scenario in scenarios
        for agent in agents
        for upstream in upstreams
        if agent in ONLY_FOR.get(scenario, (agent,))
        and agent not in WITHOUT.get(scenario, ())
        and scenario in ONLY.get(agent, (scenario,))
    ]
