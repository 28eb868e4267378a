"""How a format marks its thinking.

The opening tag may be missing because the chat template wrote it into the prompt (then the answer *starts* in the
thinking), the closing tag may never come (then all of it is thinking), tags may be repeated (several blocks), and the
opening tag may be written once more inside (at the beginning it is dropped, later it is part of the thinking: the
first closing tag ends it, because an answer that is taken for thinking is the worse mistake).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Think(Struct, frozen=True):
    """``starts``: what is assumed if nobody says whether the template wrote the opening tag. ``prefilled``: does the
    template write it when thinking is switched on? ``label``: a word behind the opening tag that is not thinking,
    if it stands on a line of its own or alone. Where the opening tag was dropped, it opens the thinking as the very first
    thing of the answer. ``stray``: what becomes of a closing
    tag in the text: dropped, dropped at the beginning only, or kept. ``prepend``: the thinking stays in the text, with
    this tag before it."""

    openers: tuple[str, ...] = ("<think>",)
    closers: tuple[str, ...] = ("</think>",)
    starts: bool = False
    prefilled: bool = False
    label: tuple[str, ...] = ()
    stray: Literal["drop", "start", "keep"] = "drop"
    prepend: str = ""

    def begins(self, starts_in_reasoning: bool | None, thinking: bool | None) -> bool:
        """Does the answer begin inside the thinking?"""
        if starts_in_reasoning is not None:
            return starts_in_reasoning
        if thinking is not None:
            return thinking and (self.prefilled or self.starts)
        return self.starts


NO_THINKING = Think((), ())
TAGS = Think()
PREFILLED = Think(starts=True, prefilled=True)
HYBRID = Think(prefilled=True)
