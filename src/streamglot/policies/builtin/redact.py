"""``redact``: replaces secrets and personal data in all parts of a stream, however the stream is cut."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from msgspec import Struct, field

from ...errors import ConfigError
from ...patterns.detectors import patterns_of
from ...patterns.scanner import HOLD_CHARS, Pattern, PatternSet
from ..needs import Needs, Target, answer_kinds, check_targets, pattern, request, request_kinds
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, Forward, Rewrite

_HASH_CHARS: Final = 12
"""Hexadecimal characters of a hash: enough to tell values apart in one conversation."""
_SUBJECT: Final = "redact"


class Placeholders(Struct):
    """The originals behind placeholders, for one exchange."""

    by_placeholder: dict[str, str] = field(default_factory=dict)
    by_original: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Redact(Policy, frozen=True):
    """``detectors`` are named sets of patterns, ``patterns`` your own, ``words`` are words to find. ``mode``:

    - ``replace``: by ``replacement``, in which ``{name}`` is the name of the detector;
    - ``hash``: the same, with ``{hash}``, a hash keyed with ``salt``, so that equal values stay equal;
    - ``restore``: requests get a placeholder with a ``{number}``, and where the answer repeats the placeholder, the client gets
      the original back. The upstream never sees it."""

    detectors: Sequence[str] = ()
    patterns: Mapping[str, str] = {}
    words: Sequence[str] = ()
    apply_to: Sequence[Target] = ("text", "reasoning", "tool_arguments", "tool_results", "request")
    mode: Literal["replace", "hash", "restore"] = "replace"
    replacement: str = ""
    salt: str = ""
    hold_chars: int = HOLD_CHARS
    store_original: bool = False

    use: ClassVar[str] = "redact"
    title: ClassVar[str] = "Replaces secrets and personal data: named detectors, patterns, words."

    def check(self) -> None:
        check_targets(self.name, self.apply_to)
        if self.mode == "hash" and len(self.salt) < 8:
            raise ConfigError("redact: mode hash needs a salt of at least 8 characters: without one, short values can be guessed")
        if self.mode == "restore" and ("{number}" not in self._template or "{name}" not in self._template):
            raise ConfigError(
                "redact: in mode restore the replacement must have {name} and {number}, so that placeholders differ"
            )
        if self.mode == "restore" and "request" not in self.apply_to:
            raise ConfigError("redact: mode restore replaces in requests; add request to apply_to")

    @property
    def _template(self) -> str:
        defaults = {"replace": "[{name}]", "hash": "[{name}:{hash}]", "restore": "[{name}_{number}]"}
        return self.replacement or defaults[self.mode]

    def members(self) -> Sequence[Policy]:
        if self.mode != "restore":
            return (self,)
        names = [*self.detectors, *self.patterns, *(["word"] if self.words else [])]
        restore = _Restore(template=self._template, names=tuple(names), when=self.when, hold_chars=self.hold_chars)
        return (_Hide(**{name: getattr(self, name) for name in self.__struct_fields__}), restore)

    def needs(self) -> Needs:
        patterns = pattern_set(self.detectors, self.patterns, self.words, self.hold_chars)
        kinds, in_request = answer_kinds(self.apply_to), request_kinds(self.apply_to)
        needs = pattern(patterns, *kinds) if kinds else Needs()
        return needs | (request(*in_request, patterns=patterns, history=True) if in_request else Needs())

    def judge(self, piece: Piece, context: JudgeContext) -> Rewrite:
        written = self._template.replace("{name}", piece.pattern)
        if self.mode == "hash":
            digest = hmac.new(
                self.salt.encode(), f"{piece.pattern}\0{piece.text}".encode("utf-8", "surrogatepass"), hashlib.sha256
            )
            written = written.replace("{hash}", digest.hexdigest()[:_HASH_CHARS])
        return Rewrite(text=written, reason=piece.pattern)


class _Hide(Redact, frozen=True):
    """The half of mode ``restore`` that hides: placeholders in requests, plain replacements in what the model writes by
    itself."""

    def members(self) -> Sequence[Policy]:
        return (self,)

    def judge(self, piece: Piece, context: JudgeContext) -> Rewrite:
        if piece.direction == "answer":
            return Rewrite(text=f"[{piece.pattern}]", reason=piece.pattern)
        known = _placeholders(context)
        key = piece.pattern, piece.text
        if key not in known.by_original:
            known.counts[piece.pattern] = number = known.counts.get(piece.pattern, 0) + 1
            written = self._template.replace("{name}", piece.pattern).replace("{number}", str(number))
            known.by_original[key] = written
            known.by_placeholder[written] = piece.text
        return Rewrite(text=known.by_original[key], reason=piece.pattern)


class _Restore(Policy, frozen=True, kw_only=True):
    """The half of mode ``restore`` that gives the originals back to the client."""

    template: str
    names: Sequence[str]
    hold_chars: int = HOLD_CHARS
    store_original: bool = False

    use: ClassVar[str] = "redact"

    def needs(self) -> Needs:
        written = re.escape(self.template).replace(r"\{name\}", f"(?:{'|'.join(map(re.escape, self.names))})")
        written = written.replace(r"\{number\}", "[0-9]{1,9}")
        placeholders = PatternSet([Pattern("placeholder", written)], hold_chars=self.hold_chars)
        return pattern(placeholders, "text", "reasoning", "tool_call", "tool_result", "citation")

    def judge(self, piece: Piece, context: JudgeContext) -> Forward | Rewrite:
        if piece.role:  # of a tool's result that goes to the model too, which must not see the original
            return FORWARD
        original = _placeholders(context).by_placeholder.get(piece.text)
        return FORWARD if original is None else Rewrite(text=original, reason="placeholder")


def _placeholders(context: JudgeContext) -> Placeholders:
    known: Placeholders = context.exchange.state.setdefault(_SUBJECT, Placeholders())
    return known


def pattern_set(
    detectors: Sequence[str], patterns: Mapping[str, str], words: Sequence[str], hold_chars: int = HOLD_CHARS
) -> PatternSet:
    """Detectors, patterns and words of a configuration, compiled together."""
    own = [Pattern(name, expression) for name, expression in patterns.items()]
    return PatternSet([*patterns_of(detectors), *own], {"word": words} if words else None, hold_chars)
