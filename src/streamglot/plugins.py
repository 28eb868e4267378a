"""Loads objects that a configuration names: stages, observers, policies, tools."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import FOREIGN_ERRORS, ConfigError


def import_fault(error: BaseException) -> str:
    """Returns why a module could not be imported, and where Python looks for modules."""
    where = "; Python looks in installed packages and in the folders of the variable PYTHONPATH"
    return f"{type(error).__name__}: {error}{where if isinstance(error, ModuleNotFoundError) else ''}"


def load_object(reference: str, setting: str) -> Any:  # Any: the caller checks the type
    """Returns the object that ``module:name`` refers to. ``setting`` is the configuration key, for the error message."""
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{setting} has {reference!r}: name an object as module:name")
    try:
        found: object = import_module(module)
    except FOREIGN_ERRORS as error:  # the import of a foreign module may raise anything
        raise ConfigError(f"{setting}: the module {module!r} cannot be imported: {import_fault(error)}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{setting}: the module {module!r} has no {name!r}")
        found = getattr(found, part)
    return found
