"""Builds a policy from functions that are called with the blocks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..errors import ConfigError
from .needs import IN_ANSWERS, Need, Needs
from .pieces import Kind, Piece
from .policy import JudgeContext, Policy
from .verdicts import FORWARD, SEVERITY, Rewrite, Verdict

Callback: TypeAlias = Callable[[Piece], "Verdict | str | None"]


class Callbacks(Policy, frozen=True, kw_only=True):
    """``on_text_delta`` is called with each piece of text as it comes. ``on_tool_call_complete`` is called as soon as a call is
    whole, ``on_block_complete`` with whole blocks of ``kinds`` (all kinds that have no callback of their own, if left out).

    A callback returns a verdict, a text in place of the piece, or None to release it as it is. A piece that a callback may
    change is held until the callback has returned; with ``observe`` nothing is held, and return values are ignored."""

    on_text_delta: Callback | None = None
    on_block_complete: Callback | None = None
    on_tool_call_complete: Callback | None = None
    kinds: Sequence[Kind] = ()
    observe: bool = False

    @property
    def shadow(self) -> bool:
        return self.observe

    @property
    def recorded(self) -> bool:
        return not self.observe

    def check(self) -> None:
        if not (self.on_text_delta or self.on_block_complete or self.on_tool_call_complete):
            raise ConfigError("Callbacks: give at least one of on_text_delta, on_block_complete, on_tool_call_complete")
        if self.on_text_delta and self.on_block_complete and "text" in self.kinds:
            raise ConfigError("Callbacks: text can be seen in deltas or in whole blocks, not both; use two policies")

    def needs(self) -> Needs:
        needs: dict[Kind, Need] = {}
        if self.on_text_delta:
            needs["text"] = Need("delta")
        if self.on_tool_call_complete:
            needs["tool_call"] = Need("block")
        if self.on_block_complete:
            for kind in self.kinds or IN_ANSWERS:
                needs.setdefault(kind, Need("block"))
        return Needs(needs)

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        if piece.unit == "delta":
            callback = self.on_text_delta
        elif piece.kind == "tool_call" and self.on_tool_call_complete:
            callback = self.on_tool_call_complete
        else:
            callback = self.on_block_complete
        returned = callback(piece) if callback is not None else None
        if returned is None:
            return FORWARD
        if isinstance(returned, str):
            return FORWARD if returned == piece.text else Rewrite(text=returned)
        if type(returned) in SEVERITY:
            return returned
        raise TypeError(f"a callback returned {returned!r}: it must return a verdict, a text or None")
