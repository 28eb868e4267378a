"""The names of callers: a key has its own name, all others have one that no key may have."""

from __future__ import annotations

from typing import Final

from .errors import excerpt

COMMAND_LINE: Final = "cli:"
ANONYMOUS: Final = "anonymous:"
"""The prefix of callers without a key. A request without any credential has the empty name."""
NAME_CHARS: Final = 64
MAX_LIMIT: Final = 2**31 - 1
"""The largest limit of a key: the maximum of an integer column."""


def fault_of_key_name(name: str) -> str:
    """The reason why a key may not have this name; empty if it may. Turns belong to a name, so two kinds of callers must never
    share one."""
    rule = ""
    if not name.strip():
        rule = "it is empty, like the name of callers without a key"
    elif len(name) > NAME_CHARS:
        rule = f"it has {len(name)} characters; the maximum is {NAME_CHARS}"
    elif not name.isprintable() or name != name.strip():
        rule = "it has invisible characters, or spaces around it"
    elif name.startswith((COMMAND_LINE, ANONYMOUS)):
        rule = f"names that begin with {COMMAND_LINE} or {ANONYMOUS} belong to callers without a key"
    return f"a key cannot have the name {excerpt(name)}: {rule}; choose another one" if rule else ""
