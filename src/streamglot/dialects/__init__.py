"""Wire formats: frames to events and back, one package for each. A dialect knows its own wire format and the events, and no other
dialect.

``Dialect``, ``lazy``, ``Fields``, ``take``, ``give`` and ``give_extra`` are also for the dialects of other packages.
"""

from __future__ import annotations

from ..errors import ConfigError, did_you_mean
from ..names import DialectName
from .common.fields import Fields, give, give_extra, take
from .interface import DIALECTS, Dialect, lazy

__all__ = ["DIALECTS", "Dialect", "Fields", "dialect", "give", "give_extra", "lazy", "take"]

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
