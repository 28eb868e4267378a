"""Judges each match of patterns in a complete text, and combines the verdicts into one."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from ...json_types import JsonValue
from ...patterns.scanner import Overflow, PatternMatch, PatternSet, Scanner
from ..arguments import JsonScanner
from ..pieces import Kind, Piece
from ..verdicts import DEFER, FORWARD, Defer, Forward, Refuse, Replace, Rewrite, Verdict, severity

Judge = Callable[[Piece], "Verdict | Defer"]
Note = Callable[[Piece, Verdict], None]


def scanner_for(patterns: PatternSet, kind: Kind, call_kind: str = "function") -> Scanner | JsonScanner:
    """Arguments of a call are JSON, unless the tool takes free text."""
    return JsonScanner(patterns) if kind == "tool_call" and call_kind != "custom" else Scanner(patterns)


def match_piece(piece: Piece, found: PatternMatch) -> Piece:
    """The piece that a policy sees of a match."""
    return structs.replace(piece, unit="pattern", text=found.text, pattern=found.name, label=found.label, data=None)


def overflow_verdict(overflow: Overflow) -> Refuse:
    """Fails closed: text that may still become a match is held, together with everything after it."""
    return Refuse(
        message="[withheld: a possible match of a pattern did not end]",
        reason=f"a possible match grew past the hold limit of {overflow.chars} characters",
    )


def judge_matches(judge: Judge, patterns: PatternSet, piece: Piece, note: Note) -> Verdict | Defer:
    """One verdict for the piece: the most severe one, or the text with all matches rewritten."""
    scanner = scanner_for(patterns, piece.kind, piece.call_kind)
    written: list[str] = []
    changed = False
    worst: Verdict = FORWARD
    for segment in [*scanner.feed(piece.text), *scanner.close()]:
        if isinstance(segment, str):
            written.append(segment)
            continue
        if isinstance(segment, Overflow):
            verdict: Verdict | Defer = overflow_verdict(segment)
            seen = piece
        else:
            seen = match_piece(piece, segment)
            verdict = judge(seen)
        if isinstance(verdict, Defer):
            return DEFER
        if not isinstance(verdict, Forward):
            note(seen, verdict)
        if isinstance(segment, PatternMatch):
            new = replacement(verdict)
            written.append(segment.raw if new is None else segment.written(new))
            changed = changed or new is not None
        if severity(verdict) > severity(worst):
            worst = verdict
    if isinstance(worst, (Forward, Rewrite, Replace)):
        return Rewrite(text="".join(written), reason=worst.reason) if changed else FORWARD
    return worst


def replacement(verdict: Verdict | None) -> str | None:
    """The text that a verdict puts in place of a match; None if the match stays."""
    return verdict.text if isinstance(verdict, (Rewrite, Replace)) else None


def rewritten_strings(judge: Judge, patterns: PatternSet, value: object, piece: Piece, note: Note) -> JsonValue:
    """The value, plain data, with the matches in all its strings rewritten; None if a match in it must not be released."""
    if isinstance(value, str):
        verdict = judge_matches(judge, patterns, structs.replace(piece, text=value), note)
        if isinstance(verdict, Forward):
            return value
        return verdict.text if isinstance(verdict, Rewrite) else None
    if isinstance(value, dict):
        inner = {name: rewritten_strings(judge, patterns, of_name, piece, note) for name, of_name in value.items()}
        return value if all(inner[name] is of_name for name, of_name in value.items()) else inner
    if isinstance(value, (list, tuple)):
        items = [rewritten_strings(judge, patterns, item, piece, note) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
