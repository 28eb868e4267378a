"""A format: one row that says which engines read the calls of a model, and how it marks its reasoning."""

from __future__ import annotations

from msgspec import Struct

from .engines.engine import FormatEngine, WrittenCall, dumped
from .think import TAGS, Think


class Format(Struct, frozen=True):
    """A notation of calls and reasoning inside text: one row of the table of formats. ``name`` is what it is called, ``engines`` read and write its
    calls, ``think`` says how it marks reasoning. ``drop``: tokens and tags that only wrap the answer; in the middle of it they are text.
    ``example``: an answer with a call.

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
