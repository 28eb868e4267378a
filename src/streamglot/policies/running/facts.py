"""The record of verdicts: facts on the exchange that observers store with the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...json_types import JsonObject
from ...stages.stage import ExchangeContext
from ..pieces import Piece
from ..policy import Policy
from ..verdicts import End, Refuse, Replace, Retry, Rewrite, Verdict, verdict_name

SUBJECT: Final = "policies"
"""The subject of annotations under which verdicts are stored."""
MAX_RECORDS: Final = 1000
"""Verdicts recorded for one exchange. A policy that rewrites each sentence of a long answer needs fewer."""
MAX_RECORDED_CHARS: Final = 65_536
"""Characters of an original or changed text in a record. The stored turn has the changed text as a whole."""


class Recorder:
    """Records verdicts of one exchange. Repeated verdicts without text (the same detector in the same kind of block) are
    counted."""

    def __init__(self, context: ExchangeContext, clock: Callable[[], float]) -> None:
        self._context = context
        self.clock = clock

    def record(
        self,
        policy: Policy,
        piece: Piece,
        verdict: Verdict,
        *,
        held_seconds: float = 0.0,
        choice: int = 0,
        dry_run: bool = False,
    ) -> None:
        fact: JsonObject = {
            "policy": policy.name,
            "version": policy.version,
            "verdict": verdict_name(verdict),
            "direction": piece.direction,
            "kind": piece.kind,
        }
        more: JsonObject = {
            "pattern": piece.pattern,
            "label": piece.label,
            "tool": piece.name,
            "call_id": piece.call_id,
            "reason": verdict.reason,
            "choice": choice,
            "held_seconds": round(held_seconds, 6),
            "cost": verdict.cost,
            "dry_run": dry_run,
        }
        if policy.store_original:
            more["original"] = _cut(piece.text)
            more["changed"] = _cut(_changed(verdict))
        fact.update({name: value for name, value in more.items() if value not in ("", None, False, 0)})
        self._add(fact)

    def _add(self, fact: JsonObject) -> None:
        known = self._context.annotations.get(SUBJECT)
        if known:
            last = known[-1]
            if "original" not in fact and {**last, "count": 1} == {**fact, "count": 1}:
                last["count"] = last.get("count", 1) + 1
                return
            if len(known) >= MAX_RECORDS:
                last["more"] = last.get("more", 0) + 1
                return
        self._context.annotate(SUBJECT, fact)


def header_value(context: ExchangeContext) -> str:
    """The verdicts on an exchange so far in one line, for a response header: ``deny_tools=refuse, redact=rewrite;count=3``."""
    counts: dict[str, int] = {}
    for fact in context.annotations.get(SUBJECT, []):
        name = f"{fact['policy']}={fact['verdict']}" + (";dry_run" if fact.get("dry_run") else "")
        counts[name] = counts.get(name, 0) + fact.get("count", 1)
    written = ", ".join(name if count == 1 else f"{name};count={count}" for name, count in counts.items())
    return "".join(char if " " <= char <= "~" else "?" for char in written)


def _changed(verdict: Verdict) -> str:
    match verdict:
        case Rewrite():
            return verdict.text if verdict.text is not None else verdict.name or ""
        case Replace():
            return verdict.text
        case Refuse() | Retry() | End():
            return verdict.message
        case _:
            return ""


def _cut(text: str) -> str:
    if len(text) <= MAX_RECORDED_CHARS:
        return text
    return f"{text[:MAX_RECORDED_CHARS]}… ({len(text)} characters in all)"
