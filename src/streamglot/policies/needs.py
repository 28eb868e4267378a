"""What a policy must see at once. From this the engine computes how little of a stream it must hold.

A policy declares its needs with the functions here and joins them with ``|``:

    delta("text")                     each piece as it comes; nothing is held
    pattern(patterns, "text")         matches of patterns; what can still become a match is held
    sentence("text")                  whole sentences
    block("tool_call")                whole blocks of these kinds
    answer()                          the whole answer
    request("text", "tool_result")    messages, tool results, tool definitions of the request

The engine holds as little as these needs allow: a kind of block that no policy needs is not held, and every other kind only
until the needed unit is complete.

Some policies take their needs from options: ``apply_to`` names targets, and ``answer_kinds``, ``request_kinds`` and
``judge_needs`` say what these mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from ..errors import ConfigError
from .pieces import Kind, Unit

if TYPE_CHECKING:
    from ..patterns.scanner import PatternSet

UNITS: Final[tuple[Unit, ...]] = ("delta", "pattern", "sentence", "block", "answer")
"""Ordered from the unit that holds the least to the unit that holds the most."""
STREAMED: Final[frozenset[Kind]] = frozenset(("text", "reasoning", "tool_call"))
"""Kinds that arrive in deltas. The others arrive whole."""
IN_ANSWERS: Final[tuple[Kind, ...]] = ("text", "reasoning", "tool_call", "tool_result", "citation", "media")
IN_REQUESTS: Final[tuple[Kind, ...]] = ("text", "reasoning", "tool_call", "tool_result", "tool_definition")
Target: TypeAlias = Literal["text", "reasoning", "tool_arguments", "tool_results", "request"]
JudgedUnit: TypeAlias = Literal["sentence", "block", "answer"]
_ANSWER_KINDS: Final[dict[str, tuple[Kind, ...]]] = {
    "text": ("text", "citation"),
    "reasoning": ("reasoning",),
    "tool_arguments": ("tool_call",),
    "tool_results": ("tool_result",),
    "request": (),
}


class Need(Struct, frozen=True):
    """How a policy wants to see one kind of block. A policy that holds text for ``sentence`` or more may change it."""

    unit: Unit
    patterns: PatternSet | None = None


class Needs(Struct, frozen=True):
    """``answer`` by kind of block, ``whole`` for a policy that judges the answer as a whole. ``request`` are the kinds that are
    checked in requests, with ``request_patterns`` match by match. Without ``history`` only what came since the last answer is
    checked."""

    answer: Mapping[Kind, Need] = {}
    whole: bool = False
    request: frozenset[Kind] = frozenset()
    request_patterns: PatternSet | None = None
    history: bool = False

    def __or__(self, other: Needs) -> Needs:
        if self.answer.keys() & other.answer.keys():
            both = ", ".join(sorted(self.answer.keys() & other.answer.keys()))
            raise ConfigError(f"a policy declares two needs for {both}: one unit for each kind of block")
        return Needs(
            {**self.answer, **other.answer},
            self.whole or other.whole,
            self.request | other.request,
            self.request_patterns or other.request_patterns,
            self.history or other.history,
        )


def delta(*kinds: Kind) -> Needs:
    return _of_kinds(Need("delta"), kinds)


def pattern(patterns: PatternSet, *kinds: Kind) -> Needs:
    return _of_kinds(Need("pattern", patterns), kinds)


def sentence(*kinds: Kind) -> Needs:
    return _of_kinds(Need("sentence"), kinds)


def block(*kinds: Kind) -> Needs:
    return _of_kinds(Need("block"), kinds)


def answer() -> Needs:
    return Needs(whole=True)


def request(*kinds: Kind, patterns: PatternSet | None = None, history: bool = False) -> Needs:
    _known(kinds, IN_REQUESTS, "a request")
    return Needs(request=frozenset(kinds), request_patterns=patterns, history=history)


def _of_kinds(need: Need, kinds: tuple[Kind, ...]) -> Needs:
    _known(kinds, IN_ANSWERS, "an answer")
    return Needs(dict.fromkeys(kinds, need))


def _known(kinds: tuple[Kind, ...], known: tuple[Kind, ...], where: str) -> None:
    for kind in kinds:
        if kind not in known:
            raise ConfigError(f"{where} has no blocks of kind {kind!r}; the kinds are {', '.join(known)}")
    if not kinds:
        raise ConfigError(f"a need names no kind of block; the kinds in {where} are {', '.join(known)}")


def coarser(one: Unit, other: Unit) -> Unit:
    """The unit that holds more."""
    return max(one, other, key=UNITS.index)


def hold_back(needs: Iterable[Needs]) -> dict[Kind, Unit]:
    """How much of each kind of block waits when these policies follow one another. Kinds that are missing flow freely."""
    held: dict[Kind, Unit] = {}
    for each in needs:
        if each.whole:
            return dict.fromkeys(IN_ANSWERS, "answer")
        for kind, need in each.answer.items():
            held[kind] = coarser(held.get(kind, "delta"), need.unit)
    return held


def answer_kinds(apply_to: Sequence[Target]) -> tuple[Kind, ...]:
    """The kinds of blocks of an answer that these targets mean."""
    return tuple(kind for target in apply_to for kind in _ANSWER_KINDS[target])


def request_kinds(apply_to: Sequence[Target]) -> tuple[Kind, ...]:
    return IN_REQUESTS if "request" in apply_to else ()


def judge_needs(apply_to: Sequence[Target], unit: JudgedUnit) -> Needs:
    """The needs of a judge that sees texts by ``unit`` and everything else whole."""
    kinds = answer_kinds(apply_to)
    needs = answer() if kinds and unit == "answer" else Needs()
    if not needs.whole:
        texts = [kind for kind in kinds if kind in ("text", "reasoning") and unit == "sentence"]
        others = [kind for kind in kinds if kind not in texts]
        needs |= sentence(*texts) if texts else Needs()
        needs |= block(*others) if others else Needs()
    in_request = request_kinds(apply_to)
    return needs | (request(*in_request) if in_request else Needs())


def check_targets(name: str, apply_to: Sequence[Target]) -> None:
    if not apply_to:
        raise ConfigError(f"{name}: apply_to is empty; name what the policy applies to: {', '.join(_ANSWER_KINDS)}")
    if len(set(apply_to)) != len(apply_to):
        raise ConfigError(f"{name}: apply_to names {', '.join(apply_to)}; name each target once")
