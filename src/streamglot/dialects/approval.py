"""A call that waits for a person's word, as an Extra that more than one dialect can say.

The events have no word of their own for it, because most wires cannot ask. Whoever holds a call back says
``asking(Approval(...))``; the writers of dialects that can ask say it in their own form, the others count it as lost.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from ..events import Extra

APPROVAL: Final = "approval"


class Approval(Struct, omit_defaults=True):
    """``schema`` is the shape of the answer that is wanted, where it is more than yes or no."""

    id: str
    call_id: str
    message: str = ""
    schema: dict[str, Any] | None = None


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
