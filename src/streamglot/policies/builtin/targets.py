"""What a policy applies to, in the words of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from ...errors import ConfigError
from ..needs import Needs, answer, block, request, sentence
from ..pieces import Kind

Target: TypeAlias = Literal["text", "reasoning", "tool_arguments", "tool_results", "request"]
JudgedUnit: TypeAlias = Literal["sentence", "block", "answer"]
_ANSWER_KINDS: Final[dict[str, tuple[Kind, ...]]] = {
    "text": ("text", "citation"),
    "reasoning": ("reasoning",),
    "tool_arguments": ("tool_call",),
    "tool_results": ("tool_result",),
    "request": (),
}
REQUEST_KINDS: Final[tuple[Kind, ...]] = ("text", "reasoning", "tool_call", "tool_result", "tool_definition")


def answer_kinds(apply_to: Sequence[Target]) -> tuple[Kind, ...]:
    """The kinds of blocks of an answer that these targets mean."""
    return tuple(kind for target in apply_to for kind in _ANSWER_KINDS[target])


def request_kinds(apply_to: Sequence[Target]) -> tuple[Kind, ...]:
    return REQUEST_KINDS if "request" in apply_to else ()


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
