"""How a format marks its reasoning.

The opening tag may be missing because the chat template wrote it into the prompt (then the answer *starts* in the reasoning), the
closing tag may never come (then everything is reasoning), tags may be repeated (several blocks), and the opening tag may occur
again inside (at the beginning it is dropped, later it is part of the reasoning: the first closing tag ends it, because taking an
answer for reasoning is the worse mistake).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Think(Struct, frozen=True):
    """``starts``: the default if it is not known whether the template wrote the opening tag. ``prefilled``: whether the
    template writes it when reasoning is switched on. ``label``: a word after the opening tag that is not reasoning, if it
    stands on a line of its own or alone; if the opening tag was dropped, the label opens the reasoning at the beginning of the
    answer. ``stray``: what to do with a closing tag in the text: drop it where a template may have written it, drop it at the
    beginning only, or keep it. A tag of plain words opens the reasoning at the beginning of the answer only.
    ``prepend``: the reasoning stays in the text, with this tag before it. ``any_case``: the tags count in capitals too."""

    openers: tuple[str, ...] = ("<think>",)
    closers: tuple[str, ...] = ("</think>",)
    starts: bool = False
    prefilled: bool = False
    label: tuple[str, ...] = ()
    stray: Literal["drop", "start", "keep"] = "drop"
    prepend: str = ""
    any_case: bool = False

    def begins(self, starts_in_reasoning: bool | None, thinking: bool | None) -> bool:
        """Whether the answer begins inside the reasoning."""
        if starts_in_reasoning is not None:
            return starts_in_reasoning
        if thinking is not None:
            return thinking and (self.prefilled or self.starts)
        return self.starts


NO_THINKING = Think((), ())
COMMON = Think(("<think>", "<reasoning>", "<thought>"), ("</think>", "</reasoning>", "</thought>"), prefilled=True, any_case=True)
TAGS = Think()
PREFILLED = Think(starts=True, prefilled=True)
HYBRID = Think(prefilled=True)
