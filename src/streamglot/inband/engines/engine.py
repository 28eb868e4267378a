"""What every engine is: a grammar that one or more markers open. An engine holds no state of a stream; rows share it."""

from __future__ import annotations

import json
from typing import Any, Literal

from msgspec import Struct

from ..declared import Declared
from ..reader import Reader
from ..scan import Wait


class Call(Struct, frozen=True):
    """A call at rest, to be written down in a notation. ``arguments`` is the JSON text of an object."""

    name: str
    arguments: str
    call_id: str = ""

    def members(self) -> dict[str, Any]:
        try:
            members = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return {"arguments": self.arguments}
        return members if isinstance(members, dict) else {"arguments": members}


def dumped(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False)


class Engine:
    """``openers`` begin a call in the text, ``closers`` are dropped where they stand alone.

    ``in_reasoning``: "no" (markup in the thinking is not a call), "call" (a call ends the thinking) or "marker" (the
    opener alone ends it). ``weak``: prose may contain the opener. ``special``: the opener is a special token that
    never belongs to the text, so it is dropped even where no call follows. ``start_openers`` count only as the first
    thing in the answer, "" where the prompt itself ends with the opener. ``structure``: the engine tells text and
    thinking apart, so it works even where calls are not wanted.
    """

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    in_reasoning: Literal["no", "call", "marker"] = "no"
    weak: bool = False
    special: bool = False
    structure: bool = False
    start_openers: tuple[str, ...] = ()

    def openers_for(self, declared: Declared) -> tuple[str, ...]:  # noqa: ARG002
        return self.openers

    def read(self, reader: Reader, opener: str) -> Wait:
        """Reads what follows the opener. Raises Malformed where it is not this notation."""
        raise NotImplementedError

    def begin(self, reader: Reader, opener: str) -> Wait:
        """Reads what follows one of the ``start_openers``, as the first thing in the answer."""
        return self.read(reader, opener)

    def write(self, calls: list[Call]) -> str | None:  # noqa: ARG002
        """The calls in this notation; None where the engine reads only."""
        return None
