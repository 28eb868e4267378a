"""``block_patterns``: refuses content that has a forbidden pattern, or ends the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from ...patterns.scanner import HOLD_CHARS, PatternSet
from ..needs import Needs, Target, answer_kinds, block, check_targets, pattern, request, request_kinds
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..running.judging import judge_matches
from ..verdicts import Defer, End, Refuse, Verdict
from .redact import pattern_set


class BlockPatterns(Policy, frozen=True):
    """Looks for the same things as ``redact``. In text and reasoning what follows a match is withheld up to the end of the
    block (``action = "refuse"``), or the whole answer ends there (``"end"``). A tool call is held until its arguments are
    whole, because a call that was begun cannot be taken back."""

    detectors: Sequence[str] = ()
    patterns: Mapping[str, str] = {}
    words: Sequence[str] = ()
    apply_to: Sequence[Target] = ("text", "reasoning", "tool_arguments", "tool_results")
    action: Literal["refuse", "end"] = "refuse"
    message: str = "[withheld: {name}]"
    hold_chars: int = HOLD_CHARS
    store_original: bool = False

    use: ClassVar[str] = "block_patterns"
    title: ClassVar[str] = "Refuses what matches a detector, a pattern or a word."

    def check(self) -> None:
        check_targets(self.name, self.apply_to)

    def compile(self) -> PatternSet:
        return pattern_set(self.detectors, self.patterns, self.words, self.hold_chars)

    def needs(self) -> Needs:
        patterns = self.compile()
        kinds = answer_kinds(self.apply_to)
        needs = Needs()
        flowing = [kind for kind in kinds if kind != "tool_call"]
        if flowing:
            needs |= pattern(patterns, *flowing)
        if "tool_call" in kinds:
            needs |= block("tool_call")
        in_request = request_kinds(self.apply_to)
        return needs | request(*in_request, patterns=patterns) if in_request else needs

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        if piece.kind == "tool_call" and piece.unit == "block" and piece.direction == "answer":
            return judge_matches(lambda match: self.judge(match, context), context.compiled, piece, lambda match, verdict: None)
        message = self.message.replace("{name}", piece.pattern)
        if self.action == "end":
            return End(message=message, reason=piece.pattern)
        return Refuse(message=message, reason=piece.pattern)
