"""``thoughtSignature``: opaque base64 on any part, which must be returned on the same part.

An echo has the signature and its place in the block: ``offset`` is where the signed part begins, if unsigned text of the same
block came before it; ``thought`` is set if the signed part was of the other kind than its block (an empty answer part after
reasoning); ``next`` means that it belongs to the following medium.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from ...events import Echo
from ...json_types import JsonObject
from ..echo import is_native, pack, unpack

DIALECT: Final = "gemini"
FIELD: Final = "thoughtSignature"
_MARK: Final = b"sglot1."
_STANDARD: Final = str.maketrans("-_", "+/")


def sign(echo: Echo) -> str:
    """The signature to write for a client: our own state as it came, any other packed as base64."""
    own = echo.data.get(FIELD)
    if is_native(echo, DIALECT) and isinstance(own, str):
        return own
    return base64.b64encode(pack(echo).encode()).decode()


def own_place(echo: Echo) -> JsonObject:
    """The place of a signature of this dialect; empty for any other."""
    return {name: echo.data[name] for name in ("offset", "thought", "next") if name in echo.data} if FIELD in echo.data else {}


def read_signature(text: str, **place: object) -> Echo:
    """The echo that a client returned. Clients decode the bytes and encode them again, often in the other alphabet."""
    standard = text.translate(_STANDARD)
    try:
        content = base64.b64decode(standard + "=" * (-len(standard) % 4))
    except (ValueError, binascii.Error):
        return Echo(DIALECT, {FIELD: text, **place})
    foreign = unpack(content.decode("ascii", "replace")) if content.startswith(_MARK) else None
    return foreign or Echo(DIALECT, {FIELD: standard, **place})
