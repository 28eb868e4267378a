"""What a policy is shown: one piece of an answer or of a request."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from ..events import CallKind, StopReason
from ..json_types import JsonValue

Kind: TypeAlias = Literal["text", "reasoning", "tool_call", "tool_result", "citation", "media", "tool_definition", "answer"]
Direction: TypeAlias = Literal["request", "answer"]
Unit: TypeAlias = Literal["delta", "pattern", "sentence", "block", "answer"]


class Piece(Struct, frozen=True):
    """``text`` is the text of the piece: of a tool call its arguments, of a tool result its content, of a citation the cited
    text, of a tool definition its description, of a match what matched.

    ``unit`` says how much of the block this is. ``pattern`` is the name of the pattern that matched. ``name`` is the name of
    the tool, where it is known. ``role`` is that of the message, in a request. ``complete`` is False where the stream broke off
    inside the piece: such a call is never run. ``parts`` are the blocks of a whole answer, ``stop`` is its stop reason."""

    kind: Kind
    text: str = ""
    unit: Unit = "block"
    direction: Direction = "answer"
    name: str = ""
    call_id: str = ""
    call_kind: CallKind = "function"
    pattern: str = ""
    label: str = ""
    role: str = ""
    is_error: bool = False
    complete: bool = True
    parts: tuple[Piece, ...] = ()
    stop: StopReason | None = None
    data: JsonValue = None  # of a tool definition: its schema, as JSON has it

    def arguments(self) -> JsonValue:
        """The decoded arguments of a call. Raises ValueError if they are not valid JSON."""
        return msgspec.json.decode(self.text or "{}")

    def can_run(self) -> bool:
        """Whether a client may run this call. A call that broke off after its last argument looks complete to clients whose
        dialect cannot mark it as incomplete. A call with free text always looks complete."""
        if self.complete or self.call_kind == "custom":
            return True
        try:
            self.arguments()
        except ValueError:
            return False
        return True
