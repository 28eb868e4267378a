"""Compresses what is written often and read seldom. Pure."""

from __future__ import annotations

import zlib
from typing import Final

PACKED: Final = b"\x01"
"""The first byte of compressed data. Neither JSON nor MessagePack arrays begin with it."""


def packed(data: bytes) -> bytes:
    """Compresses with a small window and small tables, which need no setup time; similar data is close together. There is no
    checksum because the database detects damage."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 6)
    return PACKED + packer.compress(data) + packer.flush()


def unpacked(body: bytes) -> bytes:
    return zlib.decompress(body[1:], -zlib.MAX_WBITS) if body.startswith(PACKED) else body
