"""What an upstream takes of what its dialect can say, as data.

A dialect's ``request.py`` has the ABILITIES that servers of this dialect have unless more is known. The table of providers
and the configuration of an upstream change single ones. ``adapt.py`` brings a request into the form that they allow.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from .parameters import PARAMETERS


class Abilities(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """None: as the dialect says.

    ``custom_tools``: tools that take free text; otherwise functions emulate them. ``namespaces``: tools in namespaces, and
    tools that a search loads; otherwise all are plain functions. ``developer_role``: otherwise such messages become system
    messages. ``inner_system``: system messages anywhere; otherwise one stands at the beginning and later ones become the
    user's. ``cache_control``: marks up to where a prompt is cached. ``user_chars``: the longest ``user``, 0 where none is
    taken. ``call_id_chars``: the longest id of a call; with ``call_id_fixed`` an id has exactly so many letters and digits.
    ``refused``: parameters that the dialect has and the server refuses, by their names in docs/parameters.md.
    """

    custom_tools: bool | None = None
    namespaces: bool | None = None
    developer_role: bool | None = None
    inner_system: bool | None = None
    cache_control: bool | None = None
    user_chars: int | None = None
    call_id_chars: int | None = None
    call_id_fixed: bool | None = None
    refused: tuple[str, ...] | None = None

    def over(self, base: Abilities) -> Abilities:
        """These abilities, and those of ``base`` where these say nothing."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return structs.replace(base, **said) if said else base

    def fault(self) -> str:
        """What is wrong with these abilities, in words; empty where nothing is."""
        unknown = [name for name in self.refused or () if name not in PARAMETERS]
        if unknown:
            return f"refused names {unknown[0]!r}, which is no parameter; there are {', '.join(PARAMETERS)}"
        for name in ("user_chars", "call_id_chars"):
            if (getattr(self, name) or 0) < 0:
                return f"{name} is {getattr(self, name)}; it must be 0 or more"
        return ""


NONE_SAID: Final = Abilities()
PLAIN: Final = Abilities(
    custom_tools=False,
    namespaces=False,
    developer_role=True,
    inner_system=True,
    cache_control=False,
    call_id_fixed=False,
    refused=(),
)
"""For a dialect whose builder says developers' and inner system messages in a way of its own."""
