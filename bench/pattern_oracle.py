"""An oracle for the scanner: the matches and the held text, by following every possible match character by character.

The scanner asks RE2 about derived expressions. This simulates the states of each pattern's automaton for each place at which a
match may begin, which is slow and simple."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from streamglot.patterns.expressions import Alternation, Assertion, Atom, Concatenation, Expression, Node, Repeat, parse


class State(NamedTuple):
    """The rest of a pattern that must still match, as a chain of trees."""

    node: Node
    rest: State | None


class Oracle:
    """One pattern without a lookbehind on one text. ``alive(s)`` after ``n`` characters: can the text from ``s`` on still grow
    into a match?"""

    def __init__(self, pattern: str, text: str) -> None:
        expression: Expression = parse(pattern)
        assert expression.before is None
        self._root = State(expression.body, None)
        self.text = text

    def run(self, start: int) -> Iterator[tuple[int, bool, bool]]:
        """For each end from ``start`` on: whether the text up to it is a match in any case, and whether the match can still
        grow. Stops when it cannot."""
        states = {self._root}
        for end in range(start, len(self.text) + 1):
            following = self.text[end] if end < len(self.text) else None
            open_states, _ = closure(states, self.text, end, None)
            settled, matched = closure(states, self.text, end, following)
            yield end, matched, bool(open_states)
            if following is None:
                return
            states = {state.rest for state in settled if accepts(state.node.written, following)}  # type: ignore[union-attr,misc]  # only characters are settled
            accepted = None in states
            states.discard(None)
            if accepted:
                states.add(DONE)
            if not states:
                return

    def longest(self, start: int) -> int | None:
        """The end of the longest match that begins here, in the whole text."""
        ends = [end for end, matched, _ in self.run(start) if matched and end > start]
        return ends[-1] if ends else None


DONE = State(Concatenation(()), None)


def closure(states: set[State], text: str, at: int, following: str | None) -> tuple[set[State], bool]:
    """The states that wait for a character, and whether a match may end here. With ``following`` None, at a place where more
    may come, an assertion that depends on the next character waits as well."""
    waiting: set[State] = set()
    matched = False
    todo, seen = list(states), set(states)
    undecided = following is None and at == len(text)
    while todo:
        state = todo.pop()
        node, rest = state
        followers: list[State | None] = []
        match node:
            case Atom():
                waiting.add(state)
                continue
            case Assertion():
                if undecided:
                    waiting.add(state)
                if holds(node.written, text, at):
                    followers = [rest]
            case Concatenation():
                chain = rest
                for item in reversed(node.items):
                    chain = State(item, chain)
                followers = [chain]
            case Alternation():
                followers = [State(option, rest) for option in node.options]
            case Repeat():
                if node.minimum == 0:
                    followers.append(rest)
                if node.maximum is None or node.maximum > 0:
                    less = Repeat(node.item, max(0, node.minimum - 1), None if node.maximum is None else node.maximum - 1)
                    followers.append(State(node.item, State(less, rest)))
        for follower in followers:
            if follower is None:
                matched = True
            elif follower not in seen:
                seen.add(follower)
                todo.append(follower)
    return waiting, matched


@lru_cache(100_000)
def accepts(written: str, char: str) -> bool:
    return (
        re.fullmatch(re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: re.escape(chr(int(found[1], 16))), written), char, re.ASCII)
        is not None
    )


def holds(written: str, text: str, at: int) -> bool:
    def is_word(char: str) -> bool:
        return char.isascii() and (char.isalnum() or char == "_")

    boundary = is_word(text[at - 1 : at]) != is_word(text[at : at + 1])
    match written:
        case r"\b":
            return boundary
        case r"\B":
            return not boundary
        case r"\A":
            return at == 0
        case r"\z":
            return at == len(text)
        case "(?m:^)":
            return at == 0 or text[at - 1] == "\n"
        case "(?m:$)":
            return at == len(text) or text[at] == "\n"
    raise AssertionError(written)


def expected_matches(patterns: dict[str, str], text: str) -> list[tuple[int, int, str]]:
    """The leftmost-longest matches in the whole text; of equal ones, the first in the list."""
    oracles = {name: Oracle(pattern, text) for name, pattern in patterns.items()}
    found: list[tuple[int, int, str]] = []
    at = 0
    while at < len(text):
        ends = [(oracle.longest(at), name) for name, oracle in oracles.items()]
        best = max((end for end, _ in ends if end is not None), default=None)
        if best is None:
            at += 1
            continue
        found.append((at, best, next(name for end, name in ends if end == best)))
        at = best
    return found


def least_hold(patterns: dict[str, str], text: str, start: int) -> int:
    """The first place from ``start`` on from which the rest of the text can still grow into a match: nothing before it must be
    held."""
    for place in range(start, len(text)):
        for pattern in patterns.values():
            steps = list(Oracle(pattern, text).run(place))
            if steps and steps[-1][0] == len(text) and steps[-1][2]:
                return place
    return len(text)
