"""Opaque state and foreign ids inside this dialect's own fields.

A client of this dialect keeps and returns the signature of a ``thinking`` block and the data of a ``redacted_thinking`` block.
State in the format of this dialect is written into them unchanged; any other is packed, so that it comes back with the name of
its maker. The wire has no field for the state of a text or a call; it follows the block in a
``redacted_thinking`` block of its own.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from ...events import Echo
from ..echo import is_native, pack, unpack
from .wire import DIALECT

_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ID_MARK = "toolu_sg1_"
_CUSTOM_MARK = "toolu_sgc_"
_BEFORE = "block_before"

LATE_TEXT: Final = Echo("streamglot", {"late_text": True})
"""Signs a thinking block that is really text: text that came after a call (see ``writer.py``)."""


def packed(echo: Echo) -> str:
    """The signature of a thinking block, or the data of a redacted one."""
    if is_native(echo, DIALECT):
        for name in ("signature", "data"):
            if isinstance(echo.data.get(name), str):
                own: str = echo.data[name]
                return own
    return pack(echo)


def unpacked(text: str, field: str) -> Echo | None:
    """The echo in a client's ``signature`` or ``data``; None if that is empty."""
    return unpack(text) or (Echo(DIALECT, {field: text}) if text else None)


def packed_beside(echo: Echo) -> str:
    """The state of the previous block, for a redacted block."""
    return pack(Echo(echo.provider, {_BEFORE: echo.data}))


def beside(echo: Echo | None) -> Echo | None:
    """The state that ``packed_beside`` packed, or None if this echo belongs to the block itself."""
    if echo is not None and set(echo.data) == {_BEFORE} and isinstance(echo.data[_BEFORE], dict):
        return Echo(echo.provider, echo.data[_BEFORE])
    return None


def is_redacted(echo: Echo) -> bool:
    """Whether this is the state of a redacted block of this dialect."""
    return is_native(echo, DIALECT) and "data" in echo.data


def wire_id(call_id: str, custom: bool = False) -> str:
    """The id in a form that this dialect accepts. An id with other characters is encoded reversibly; so is the id of a custom
    tool's call, because the client has no other field to say that it was one."""
    if not custom and _VALID_ID.fullmatch(call_id):
        return call_id
    mark = _CUSTOM_MARK if custom else _ID_MARK
    return mark + urlsafe_b64encode(call_id.encode("utf-8", "replace")).decode().rstrip("=")


def is_custom(wire: str) -> bool:
    return wire.startswith(_CUSTOM_MARK)


def own_id(wire: str) -> str:
    """The id that ``wire_id`` encoded, or the id itself."""
    if wire.startswith((_ID_MARK, _CUSTOM_MARK)):
        inner = wire[len(_ID_MARK) :]
        try:
            return urlsafe_b64decode(inner + "=" * (-len(inner) % 4)).decode()
        except ValueError:
            return wire
    return wire
