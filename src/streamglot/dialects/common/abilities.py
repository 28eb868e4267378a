"""What an upstream accepts of what its dialect can express, as data.

A ``Dialect`` has the abilities that servers of the dialect have unless more is known. The provider table and the configuration of
an upstream change single ones. ``adapt`` reduces a request to them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from .fields import PARAMETERS


class Abilities(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an upstream accepts. None means: as the dialect says.

    - ``custom_tools``: tools that take free text; without it, functions emulate them.
    - ``namespaces``: tools in namespaces, and tools that a search loads; without it, all are plain functions.
    - ``developer_role``: developer messages; without it, they become system messages.
    - ``inner_system``: system messages anywhere; without it, there is one at the beginning and later ones become user messages.
    - ``cache_control``: marks in the prompt up to which it is cached.
    - ``user_chars``: the maximum length of ``user``; 0 if it is not accepted.
    - ``call_id_chars``: the maximum length of a call id; with ``call_id_fixed`` an id has exactly this many letters and digits.
    - ``reasoning_object``: the object ``reasoning`` of routers, with the effort or a number of tokens; without it, the effort is a
      field of its own.
    - ``refused``: parameters of the dialect that the server refuses, by their names in docs/parameters.md.
    """

    custom_tools: bool | None = None
    namespaces: bool | None = None
    developer_role: bool | None = None
    inner_system: bool | None = None
    cache_control: bool | None = None
    user_chars: int | None = None
    call_id_chars: int | None = None
    call_id_fixed: bool | None = None
    reasoning_object: bool | None = None
    refused: tuple[str, ...] | None = None

    def over(self, base: Abilities) -> Abilities:
        """These abilities, completed by those of ``base`` where these are None."""
        if self is UNSPECIFIED:
            return base
        known = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return structs.replace(base, **known) if known else base

    def fault(self) -> str:
        """What is wrong with these abilities; empty if nothing is."""
        unknown = [name for name in self.refused or () if name not in PARAMETERS]
        if unknown:
            return f"refused names {unknown[0]!r}, which is not a parameter; parameters: {', '.join(PARAMETERS)}"
        for name in ("user_chars", "call_id_chars"):
            if (getattr(self, name) or 0) < 0:
                return f"{name} is {getattr(self, name)}; it must be 0 or more"
        return ""


UNSPECIFIED: Final = Abilities()
PLAIN: Final = Abilities(
    custom_tools=False,
    namespaces=False,
    developer_role=True,
    inner_system=True,
    cache_control=False,
    call_id_fixed=False,
    refused=(),
)
"""The abilities of a dialect whose builder handles developer messages and inner system messages itself."""
