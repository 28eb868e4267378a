"""A request from what a program has at hand: a text, messages of ours, or the fields of a dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from ..dialects import dialect
from ..messages import Message, Request, TextPart
from ..upstream import Upstream

DIALECT = Upstream().dialect
"""The dialect in which requests are written unless another is named: the one that an upstream speaks unless told."""
FIELDS = frozenset(Request.__struct_fields__)


def make_request(
    request: Request | None,
    model: str,
    messages: str | Iterable[Message | dict[str, Any]],
    system: str,
    written_in: str,
    fields: dict[str, Any],
) -> Request:
    """``messages`` may be one text. With dicts, they and the other fields are read as a body of the dialect ``written_in``."""
    if request is not None:
        return structs.replace(request, stream=True)
    if isinstance(messages, str):
        messages = [Message("user", [TextPart(messages)])]
    listed = list(messages)
    ours = [message for message in listed if isinstance(message, Message)]
    if ours and len(ours) == len(listed):
        unknown = set(fields) - FIELDS
        if unknown:
            raise TypeError(f"a request has no {', '.join(sorted(unknown))}")
        made = Request(model=model, messages=ours, **fields)
    else:
        made = dialect(written_in or DIALECT).parse_request({"model": model, "messages": listed, **fields})
    if system:
        made.messages = [Message("system", [TextPart(system)]), *made.messages]
    made.stream = True
    return made
