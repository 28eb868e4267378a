"""The engines, one for each family of notations, and their interface: a grammar that one or more markers open.

Engines have no state, so streams share them.
"""

from __future__ import annotations

import json
from typing import Literal

from msgspec import Struct

from ...json_types import JsonObject
from ..call_reader import CallReader
from ..parameters import Declared
from ..scan import Wait


class WrittenCall(Struct, frozen=True):
    """A complete call, to be written in a notation. ``arguments`` is the JSON text of an object."""

    name: str
    arguments: str
    call_id: str = ""

    def members(self) -> JsonObject:
        try:
            members = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return {"arguments": self.arguments}
        return members if isinstance(members, dict) else {"arguments": members}


def dumped(item: object) -> str:
    """The item as JSON."""
    return json.dumps(item, ensure_ascii=False)


class FormatEngine:
    """``openers`` begin a call in the text; ``closers`` are dropped directly after a call, and at the end of the answer;
    ``inner``, which closes a part of a call, only directly after one.

    ``in_reasoning``: "no" (markup in the reasoning is not a call), "call" (a call ends the reasoning) or "marker" (what the
    opener begins ends it). ``weak``: prose may contain the opener. ``special``: the opener is a special token; at the beginning
    of the answer it is dropped even if no call follows. ``start_openers`` count only at the beginning of the answer; "" means
    that the prompt itself ends with the opener. ``structure``: the engine separates text and reasoning, so it works even if calls
    are switched off. ``restarts``: the ``start_openers`` count again behind the reasoning. ``ends``: openers that end a message.
    ``span``: the drop word that must stand before the opener, as its opening tag.
    """

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    inner: str = ""
    in_reasoning: Literal["no", "call", "marker"] = "no"
    weak: bool = False
    special: bool = False
    structure: bool = False
    start_openers: tuple[str, ...] = ()
    restarts: bool = False
    ends: tuple[str, ...] = ()
    span: str = ""

    def openers_for(self, declared: Declared) -> tuple[str, ...]:
        return self.openers

    def read(self, reader: CallReader, opener: str) -> Wait:
        """Reads what follows the opener. Raises Malformed if it is not in this notation."""
        raise NotImplementedError

    def begin(self, reader: CallReader, opener: str) -> Wait:
        """Reads what follows one of the ``start_openers`` at the beginning of the answer."""
        return self.read(reader, opener)

    def write(self, calls: list[WrittenCall]) -> str | None:
        """The calls in this notation; None if the engine only reads."""
        return None
