"""The changes that a merge of settings made to a file, or the reason why it made none."""

from __future__ import annotations

import re

from msgspec import Struct


class Change(Struct, frozen=True):
    """One changed setting. ``old`` is empty if the setting is new."""

    name: str
    old: str
    new: str


class NotMerged(Exception):
    """The file is not changed. The message is the reason, worded to follow the name of the file."""


def unquoted(written: str) -> str:
    """Returns a value of one line without its quotes and without the comment after it."""
    found = re.match(r"""(["'])(.*?)\1""", written)
    return found[2] if found else re.sub(r"(?:^|(?<=\s))#.*", "", written).strip()
