"""A tool call that waits for a person's approval, as an Extra that several dialects can express.

The event vocabulary has no event for it, because most wire formats cannot ask for approval. Code that holds a call back emits
``asking(Approval(...))``; the writers of dialects that support approval write it in their own form, the others count it as lost.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from ..events import Extra

APPROVAL: Final = "approval"


class Approval(Struct, omit_defaults=True):
    """A request for approval. ``schema`` describes the expected answer if it is more than yes or no."""

    id: str
    call_id: str
    message: str = ""
    schema: dict[str, Any] | None = None


def asking(approval: Approval) -> Extra:
    return Extra(APPROVAL, msgspec.to_builtins(approval))


def asked(event: Extra) -> Approval | None:
    """The approval that this Extra requests, or None if it requests none."""
    if event.dialect != APPROVAL:
        return None
    try:
        return msgspec.convert(event.data, Approval)
    except msgspec.ValidationError:
        return None
