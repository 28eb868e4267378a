"""Who asks, by name: a key by its own, all others by one that no key may have."""

from __future__ import annotations

from typing import Final

from .errors import excerpt

COMMAND_LINE: Final = "cli:"
ANONYMOUS: Final = "anonymous:"
"""How callers without a key begin; one who shows nothing at all is the empty name."""
NAME_CHARS: Final = 64
MAX_LIMIT: Final = 2**31 - 1
"""The largest limit of a key: what a column of whole numbers holds."""


def fault_of_key_name(name: str) -> str:
    """Why no key may have this name; empty if it may. Turns belong to a name, so two kinds of callers must never share one."""
    rule = ""
    if not name.strip():
        rule = "it is empty, as that of callers without a key is"
    elif len(name) > NAME_CHARS:
        rule = f"it has {len(name)} characters, and {NAME_CHARS} are the most"
    elif not name.isprintable() or name != name.strip():
        rule = "it has characters that nobody sees, or spaces around it"
    elif name.startswith((COMMAND_LINE, ANONYMOUS)):
        rule = f"names that begin with {COMMAND_LINE} or {ANONYMOUS} are those of callers without a key"
    return f"a key cannot have the name {excerpt(name)}: {rule}; choose another one" if rule else ""
