"""Wire formats: frames to events and back, one package for each. A dialect knows its own wire format and the events, and no other
dialect.

``Dialect``, ``lazy``, ``Fields``, ``take``, ``give`` and ``give_extra`` are also for the dialects of other packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, get_args

from ..errors import ConfigError, did_you_mean
from ..names import DialectName
from ..plugins import Plugins
from .fields import Fields
from .interface import Dialect, lazy, load_parts
from .parameters import give, give_extra, take

__all__ = ["DIALECTS", "Dialect", "Fields", "dialect", "give", "give_extra", "lazy", "take"]


class _OwnDialects(Mapping[str, Dialect]):
    """Our own dialects. A package is imported when its dialect is looked up: twelve packages take 3 ms of CPU, and most processes use
    two. The package ``NAME`` has the object ``NAME`` in capital letters."""

    def __init__(self, *names: str) -> None:
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Dialect:
        found: Dialect = getattr(import_module(f".{name}", __name__), name.upper())
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


DIALECTS: Final = Plugins("dialect", Dialect, lambda: _OwnDialects(*get_args(DialectName)), check=load_parts)
"""The dialects by name: ours, and those of installed packages."""
_loaded = DIALECTS.loaded


def dialect(name: DialectName | str) -> Dialect:
    """The dialect of this ``name``: one object with everything that one wire format can do.

        streamglot.dialect("anthropic").parse_request(body)

    Gives the same ``Dialect`` for the same name. Raises ``ConfigError`` for a name that is not in ``DIALECTS``, and for the dialect
    of an installed package that is broken.
    """
    found = _loaded.get(name)
    if found is not None:
        return found
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigError(
            f"there is no dialect {name!r}{did_you_mean(name, DIALECTS)}; there are {', '.join(DIALECTS)}"
        ) from None
