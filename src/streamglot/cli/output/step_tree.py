"""Shows the steps of a tool loop as a tree: model turns, each with its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...json_types import JsonObject
from .cost import money
from .table import one_line
from .terminal import CYAN, DIM, RED

SHOWN_CHARS: Final = 160
"""Characters of arguments and of results that are shown, so that a step fits on a few lines. ``--json`` has all of them."""

Line = tuple[str, str]


def tree_of(steps: Sequence[JsonObject]) -> Iterator[Line]:
    """Yields the lines of the tree, each with its colour. A turn without steps has no lines."""
    numbers = list(dict.fromkeys(step["step"] for step in steps))
    if numbers:
        yield DIM, "steps"
    for number in numbers:
        last = number == numbers[-1]
        inside = [step for step in steps if step["step"] == number]
        turn = next((step for step in inside if step["kind"] == "model"), None)
        yield "", f"{'└─' if last else '├─'} {number}  {_turn(turn)}"
        calls = [step for step in inside if step["kind"] == "tool"]
        for call in calls:
            for colour, text in _call(call, call is calls[-1]):
                yield colour, f"{'   ' if last else '│  '}{text}"


def _turn(turn: JsonObject | None) -> str:
    if turn is None:
        return "did not end"
    facts = [str(turn.get("reason", ""))]
    if turn.get("upstream"):
        facts.append(str(turn["upstream"]))
    counts = [turn.get("input_tokens"), turn.get("output_tokens")]
    if counts != [None, None]:
        facts.append("/".join("?" if count is None else str(count) for count in counts) + " tokens")
    if turn.get("cost"):
        facts.append(money(turn["cost"]))
    facts.append(f"{turn.get('seconds', 0.0):.2f} s")
    return one_line(", ".join(facts))


def _call(call: JsonObject, last: bool) -> Iterator[Line]:
    given = one_line(_cut(call.get("arguments", "…")))
    took = f"  {call['seconds']:.2f} s" if "seconds" in call else ""
    yield CYAN, f"{'└─' if last else '├─'} {one_line(call['name'])}({given}){took}"
    colour, outcome = DIM, _cut(call.get("result", ""))
    if "seconds" not in call:
        colour, outcome = RED, "did not end"
    elif call.get("is_error"):
        colour, outcome = RED, f"error: {outcome}" if outcome else "error"
    if outcome:
        yield colour, f"{'   ' if last else '│  '}   {one_line(outcome)}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"
