"""Loads objects that a configuration names: stages, observers, policies, tools."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import ConfigError


def load_object(reference: str, setting: str) -> Any:
    """Returns the object that ``module:name`` refers to. ``setting`` is the configuration key, for the error message."""
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{setting} has {reference!r}: name an object as module:name")
    try:
        found: Any = import_module(module)
    except Exception as error:  # the import of a foreign module may raise anything
        raise ConfigError(f"{setting}: the module {module!r} cannot be imported: {type(error).__name__}: {error}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{setting}: the module {module!r} has no {name!r}")
        found = getattr(found, part)
    return found
