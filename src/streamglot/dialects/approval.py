"""A tool call that waits for a person's approval, as an Extra that several dialects can express.

The event vocabulary has no event for it, because most wire formats cannot ask for approval. Code that holds a call back emits
``asking(ApprovalPrompt(...))``; the writers of dialects that support approval write it in their own form, the others count it as lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ..events import Extra
from ..json_types import JsonObject, JsonValue

APPROVAL: Final = "approval"


class ApprovalPrompt(Struct, omit_defaults=True):
    """A request for approval. ``name`` and ``arguments`` are those of the call, if the client has not seen it. ``schema``
    describes the expected answer if it is more than yes or no."""

    id: str
    call_id: str
    message: str = ""
    schema: JsonObject | None = None
    name: str = ""
    arguments: str = ""


class ApprovalAnswer(Struct):
    """What a user decided, as a client's next request has it. ``arguments`` replace those of an approved call."""

    id: str
    approved: bool
    arguments: str | None = None
    reason: str = ""


Answers: TypeAlias = tuple[list[ApprovalAnswer], JsonObject]
"""The decisions in the body of a request, and the body without them."""


def reason_in(fields: Mapping[str, JsonValue]) -> str:
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else ""


def asking(approval: ApprovalPrompt) -> Extra:
    return Extra(APPROVAL, msgspec.to_builtins(approval))


def approval_in(event: Extra) -> ApprovalPrompt | None:
    """The approval that this Extra requests, or None if it requests none."""
    if event.dialect != APPROVAL:
        return None
    try:
        return msgspec.convert(event.data, ApprovalPrompt)
    except msgspec.ValidationError:
        return None
