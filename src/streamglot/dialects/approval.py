"""A call that waits for the decision of a person, as an Extra that more than one dialect can write.

There is no event for it, because most wires cannot ask. Whoever holds a call back emits ``asking(Approval(...))``. The writers of
dialects that can ask write it in their own form; the others count it as lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from ..events import Extra

APPROVAL: Final = "approval"


class Approval(Struct, omit_defaults=True):
    """``name`` and ``arguments`` are those of the call, where the client was not told of it. ``schema`` is the shape of the answer that is
    wanted, where it is more than yes or no."""

    id: str
    call_id: str
    message: str = ""
    schema: dict[str, Any] | None = None
    name: str = ""
    arguments: str = ""


class ApprovalAnswer(Struct):
    """What a user decided, as a client's next request has it. ``arguments`` replace those of an approved call."""

    id: str
    approved: bool
    arguments: str | None = None
    reason: str = ""


Answers: TypeAlias = tuple[list[ApprovalAnswer], dict[str, Any]]
"""The decisions in the body of a request, and the body without them."""


def reason_in(fields: Mapping[str, Any]) -> str:
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else ""


def asking(approval: Approval) -> Extra:
    return Extra(APPROVAL, msgspec.to_builtins(approval))


def asked(event: Extra) -> Approval | None:
    """The question that this Extra asks, or None if it is no question."""
    if event.dialect != APPROVAL:
        return None
    try:
        return msgspec.convert(event.data, Approval)
    except msgspec.ValidationError:
        return None
