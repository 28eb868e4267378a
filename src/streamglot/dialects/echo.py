"""Opaque state inside another dialect's opaque field.

A client of dialect A keeps and returns A's opaque fields (a signature, encrypted reasoning) and nothing else. State of a
provider that speaks B is therefore packed into A's field under a mark of ours, and unpacked when the client sends the
conversation back. It goes to the provider that made it, and to no other.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from ..events import Echo

_MARK = "sglot1."
_decoder = msgspec.json.Decoder(Echo)


def pack(echo: Echo) -> str:
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(echo)).decode()


def unpack(text: str) -> Echo | None:
    """The echo that ``pack`` made, or None if this is not one."""
    if not text.startswith(_MARK):
        return None
    try:
        return _decoder.decode(base64.urlsafe_b64decode(text[len(_MARK) :]))
    except (ValueError, binascii.Error):
        return None
