"""A turn as text: its facts, the steps of a tool loop as a tree, its messages and its ending, without control characters."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ...json_types import JsonObject
from ...messages import MediaPart, Message, NativePart, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from ...store import TurnDetail
from .table import one_line
from .terminal import BOLD, CYAN, DIM, GREEN, RED, RESET, coloured, neutral
from .units import money, shown_time, tokens

SHOWN_CHARS: Final = 160
"""Characters of arguments and of results that are shown, so that a step fits on a few lines. ``--json`` has all of them."""

Line = tuple[str, str]


def tree_of(steps: Sequence[JsonObject]) -> Iterator[Line]:
    """The lines of the tree, each with its colour. A turn without steps has no lines."""
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


class Transcript:
    def __init__(self, turn: TurnDetail) -> None:
        self._turn = turn
        self._colours = coloured(sys.stdout)

    def print(self) -> None:
        for name, value in self._facts():
            print(f"{self._in(DIM, name.ljust(9))} {one_line(value)}")
        error = self._turn.error
        if error is not None:
            print(f"{self._in(DIM, 'error'.ljust(9))} {self._in(RED, one_line(f'{error.code}: {error.message}'))}")
        for colour, line in tree_of(self._turn.steps):
            print(self._in(colour, neutral(line)))
        if self._turn.request is None:
            print("\nthe contents were not stored")
        else:
            self._print_differences()
            self.print_messages()

    def _print_differences(self) -> None:
        """Prints what policies changed: the original text and its replacement."""
        for verdict in self._turn.verdicts:
            before, after = str(verdict.get("original", "")), str(verdict.get("changed", ""))
            if not before and not after:
                continue
            print(f"\n{self._in(BOLD, one_line(_verdict(verdict)))}")
            for colour, mark, text in ((RED, "- ", before), (GREEN, "+ ", after)):
                for line in neutral(text).splitlines():
                    print(self._in(colour, mark + line))

    def print_messages(self) -> None:
        """Prints the whole conversation up to and including this turn."""
        messages = self._turn.request.messages if self._turn.request is not None else []
        for message in (*messages, *self._answers()):
            print(f"\n{self._in(BOLD, one_line(message.name or message.role))}")
            for part in message.parts:
                for colour, text in _shown(part):
                    print(self._in(colour, neutral(text).rstrip("\n")))

    def _facts(self) -> Iterator[tuple[str, str]]:
        turn, timings = self._turn, self._turn.timings
        yield "turn", turn.id
        yield "session", turn.session_id
        if turn.caller:
            yield "caller", turn.caller
        target = f" → {turn.upstream} {turn.upstream_model}" if turn.upstream else ""
        yield "model", f"{turn.model}{target}"
        yield "dialects", " → ".join(name for name in (turn.dialects["client"], turn.dialects["upstream"]) if name)
        took = "" if turn.duration is None else f", {turn.duration:.2f} s"
        first = f", the first word after {timings['first_event']:.2f} s" if timings.get("first_event") else ""
        gap = f", the longest gap {timings['longest_gap']:.2f} s" if timings.get("longest_gap") else ""
        yield "started", f"{shown_time(turn.started)}{took}{first}{gap}"
        yield "ending", turn.ending or "running"
        if turn.usage is not None:
            yield "usage", f"{tokens(turn.usage)}; cost: {money(turn.cost)}"
        for verdict in turn.verdicts:
            yield "verdict", _verdict(verdict)
        if turn.more:
            yield "more", msgspec.json.encode(turn.more).decode()

    def _answers(self) -> Iterator[Message]:
        for choice in self._turn.response.choices if self._turn.response is not None else ():
            if choice.parts:
                yield Message("assistant", choice.parts, name=f"assistant, choice {choice.index}" if choice.index else "")

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{RESET}" if self._colours and colour else text


def _verdict(fact: JsonObject) -> str:
    """A verdict of a policy as one line."""
    what = " ".join(str(fact[name]) for name in ("direction", "kind", "tool", "pattern") if fact.get(name))
    would = "would " if fact.get("dry_run") else ""
    more = [f"{fact['count']} times"] if fact.get("count", 1) > 1 else []
    more += [str(fact["reason"])] if fact.get("reason") else []
    more += [f"held for {fact['held_seconds']:.2f} s"] if fact.get("held_seconds") else []
    more += [f"cost {money(fact['cost'])}"] if fact.get("cost") else []
    return f"{fact.get('policy')}: {would}{fact.get('verdict')} {what}{''.join(f', {one}' for one in more)}"


def _shown(part: Part) -> Iterator[tuple[str, str]]:
    """The pieces of a part, each with its colour."""
    match part:
        case TextPart() | RefusalPart():
            yield "", part.text
        case ReasoningPart():
            yield DIM, part.text or "(hidden reasoning)"
        case ToolCallPart():
            yield CYAN, f"→ {part.name}({part.arguments}){'' if part.complete else '  (cut off)'}"
        case ToolResultPart():
            yield RED if part.is_error else DIM, f"← {part.text}"
        case MediaPart():
            size = f"{len(part.data) * 3 // 4} bytes"
            yield DIM, f"[{part.mime or 'medium'} {part.filename} {part.url or part.file_id or size}]"
        case NativePart():
            yield DIM, f"[{part.dialect}] {msgspec.json.encode(part.data).decode()}"
