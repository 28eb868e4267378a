"""A format: one row that says which engines read the calls of a model, and how it marks its thinking."""

from __future__ import annotations

from msgspec import Struct

from .engines.engine import Call, Engine, dumped
from .think import TAGS, Think


class Format(Struct, frozen=True):
    """``drop``: tokens and tags that only wrap the answer. ``example``: one answer with a call in it.

    ``untouched``: the text is handed on as it is. ``any_name``: a tool that was not declared may be called too, because
    the tokens of the notation can say nothing but a call: whoever runs the tools can tell the model that there is no
    such tool, and a reader of leaked tokens can not."""

    name: str
    example: str
    engines: tuple[Engine, ...] = ()
    think: Think = TAGS
    drop: tuple[str, ...] = ()
    untouched: bool = False
    any_name: bool = False

    def write(self, calls: list[Call]) -> str:
        """The calls in this notation, as the model itself would have written them."""
        for engine in self.engines:
            written = engine.write(calls)
            if written is not None:
                return written
        return "\n".join(f'{{"name": {dumped(call.name)}, "arguments": {call.arguments or "{}"}}}' for call in calls)
