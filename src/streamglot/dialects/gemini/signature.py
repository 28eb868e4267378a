"""``thoughtSignature``: opaque bytes in base64 on any part, which must come back on the part on which they came.

An echo holds the signature and where in its block it stood: ``offset`` is where the signed part begins, when unsigned text
of the same block came before it; ``thought`` tells where the signed part was of the other kind than its block (an empty
answer part behind thoughts); ``next`` says that it belongs to the medium that follows.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from ...events import Echo
from ..echo import pack, unpack

DIALECT: Final = "gemini"
FIELD: Final = "thoughtSignature"
_MARK: Final = b"sglot1."
_STANDARD: Final = str.maketrans("-_", "+/")


def sign(echo: Echo) -> str:
    """The signature to write for a client: our own state as it came, that of any other provider packed into base64."""
    own = echo.data.get(FIELD)
    if echo.provider == DIALECT and isinstance(own, str):
        return own
    return base64.b64encode(pack(echo).encode()).decode()


def own_place(echo: Echo) -> dict[str, Any]:
    """Where a signature of this dialect stood; nothing is known of any other."""
    return {name: echo.data[name] for name in ("offset", "thought", "next") if name in echo.data} if FIELD in echo.data else {}


def read_signature(text: str, **place: Any) -> Echo:
    """The echo that a client returned. Clients decode the bytes and encode them again, often in the other alphabet."""
    standard = text.translate(_STANDARD)
    try:
        content = base64.b64decode(standard + "=" * (-len(standard) % 4))
    except (ValueError, binascii.Error):
        return Echo(DIALECT, {FIELD: text, **place})
    foreign = unpack(content.decode()) if content.startswith(_MARK) and content.isascii() else None
    return foreign or Echo(DIALECT, {FIELD: standard, **place})
