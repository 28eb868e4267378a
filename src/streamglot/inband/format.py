"""A format: one row that says which engines read the calls of a model, and how it marks its reasoning.

The opening tag of reasoning may be missing because the chat template wrote it into the prompt (then the answer *starts* in the
reasoning), the closing tag may never come (then everything is reasoning), tags may be repeated (several blocks), and the opening
tag may occur again inside (at the beginning it is dropped, later it is part of the reasoning: the first closing tag ends it,
because taking an answer for reasoning is the worse mistake).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .engines import FormatEngine, WrittenCall, dumped


class Think(Struct, frozen=True):
    """How a format marks its reasoning. ``starts``: the default if it is not known whether the template wrote the opening tag.
    ``prefilled``: whether the template writes it when reasoning is switched on. ``label``: a word after the opening tag that is
    not reasoning, if it stands on a line of its own or alone; if the opening tag was dropped, the label opens the reasoning at
    the beginning of the answer. ``stray``: what to do with a closing tag in the text: drop it where a template may have written
    it, drop it at the beginning only, or keep it. A tag of plain words opens the reasoning at the beginning of the answer only.
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


class Format(Struct, frozen=True):
    """A notation of calls and reasoning inside text: one row of the table of formats. ``name`` is what it is called, ``engines``
    read and write its calls, ``think`` says how it marks reasoning. ``drop``: tokens and tags that only wrap the answer; in the
    middle of it they are text. ``example``: an answer with a call.

    ``untouched``: the text is passed on unchanged. ``any_name``: undeclared tools may be called too, because the tokens of the
    notation cannot mean anything else: the code that runs the tools can tell the model that there is no such tool, a reader of
    leaked tokens cannot. ``only_declared``: without declared tools nothing is a call.
    """

    name: str
    example: str
    engines: tuple[FormatEngine, ...] = ()
    think: Think = TAGS
    drop: tuple[str, ...] = ()
    untouched: bool = False
    any_name: bool = False
    only_declared: bool = False

    def write(self, calls: list[WrittenCall]) -> str:
        """The calls in this notation, as the model itself would write them."""
        for engine in self.engines:
            written = engine.write(calls)
            if written is not None:
                return written
        return "\n".join(f'{{"name": {dumped(call.name)}, "arguments": {call.arguments or "{}"}}}' for call in calls)
