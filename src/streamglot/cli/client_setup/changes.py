"""What merging settings changed in a file, or why it did not."""

from __future__ import annotations

import re

from msgspec import Struct


class Change(Struct, frozen=True):
    """``old`` is empty where there was nothing."""

    name: str
    old: str
    new: str


class NotMerged(Exception):
    """Why a file is left as it is, in words that go on after its name."""


def unquoted(written: str) -> str:
    """A value on one line, without its quotes and without the comment behind it."""
    found = re.match(r"""(["'])(.*?)\1""", written)
    return found[2] if found else re.sub(r"(?:^|(?<=\s))#.*", "", written).strip()
