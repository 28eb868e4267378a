"""``allow_tools``: refuses calls of tools that are not listed.

``deny_tools``: refuses calls of listed tools, before any part of a call is released.

What a policy applies to, in the words of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, TypeAlias

from ...errors import ConfigError
from ...text import matches_tool
from ..needs import Needs, answer, block, delta, request, sentence
from ..pieces import Kind, Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, Forward, Refuse, Replace


class DenyTools(Policy, frozen=True):
    """``tools`` are globs. ``message`` is sent to the client in place of a call; ``{tool}`` in it is the name of the tool.
    ``hide``: these tools are removed from the request, so that the model does not know them."""

    tools: Sequence[str]
    message: str = "[The call of {tool} was refused: this tool is not allowed.]"
    hide: bool = False

    use: ClassVar[str] = "deny_tools"
    title: ClassVar[str] = "Refuses calls of the tools that are listed (globs)."

    def check(self) -> None:
        if not self.tools:
            raise ConfigError(f"{self.name}: tools is empty; list the tools, as globs")

    def needs(self) -> Needs:
        return delta("tool_call") | (request("tool_definition") if self.hide else Needs())

    def denied(self, tool: str) -> bool:
        return matches_tool(tool, self.tools)

    def judge(self, piece: Piece, context: JudgeContext) -> Forward | Refuse | Replace:
        if not self.denied(piece.name):
            return FORWARD
        if piece.kind == "tool_definition":
            return Replace(reason=f"the tool {piece.name} is hidden from the model")
        return Refuse(message=self.message.replace("{tool}", piece.name), reason=f"the tool {piece.name} is not allowed")


class AllowTools(DenyTools, frozen=True):
    """The opposite of ``deny_tools``: ``tools`` are those that may be called."""

    use: ClassVar[str] = "allow_tools"
    title: ClassVar[str] = "Refuses calls of all tools except those that are listed (globs)."

    def denied(self, tool: str) -> bool:
        return not super().denied(tool)


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
