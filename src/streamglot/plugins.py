"""What other packages add: by entry points, each in the group of its kind, and by names ``module:object`` in a configuration.

``streamglot.dialects``, ``streamglot.formats``, ``streamglot.providers``: an object of the name of its entry point, in ``Plugins``.
``streamglot.policies``: a class. ``streamglot.tools``: a tool, a list of tools, or a module with tools.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from .errors import FOREIGN_ERRORS, ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_PREFIX: Final = "streamglot."
"""The beginning of the names of our groups."""


class Plugins(Mapping[str, T], Generic[T]):
    """The objects of one kind by name: first our own, then those of installed packages.

    The metadata of installed packages is read when a name is asked for that is not one of ours, or all names are. A package is
    imported when its own name is asked for. Raises ``ConfigError`` for a package that cannot be imported, that offers something else,
    or that takes a name of ours or of another package.

    ``own`` gives our own objects; it is called when one of them is needed. ``check`` looks at an object of a package, and may raise
    anything.
    """

    def __init__(
        self, kind: str, type: type[T], own: Callable[[], Mapping[str, T]], check: Callable[[T], object] = lambda found: None
    ) -> None:
        self.group = f"{_PREFIX}{kind}s"
        self.loaded: dict[str, T] = {}
        """The objects that have been asked for."""
        self._kind, self._type, self._own_objects, self._check = kind, type, own, check

    @cached_property
    def own(self) -> Mapping[str, T]:
        """Our own objects."""
        return self._own_objects()

    @property
    def offered(self) -> Mapping[str, EntryPoint]:
        """The entry points of installed packages."""
        return offered(self.group, self._kind, self.own)

    def __getitem__(self, name: str) -> T:
        found = self.loaded.get(name)
        if found is None:
            found = self.loaded[name] = self.own[name] if name in self.own else self._load(name)
        return found

    def _load(self, name: str) -> T:
        if not name:
            raise KeyError(name)
        entry = self.offered[name]

        def check(found: T) -> None:
            if not isinstance(found, self._type):
                kind = type(found).__name__
                raise TypeError(f"it is of the type {kind}, and must be a {self._type.__module__}.{self._type.__name__}")
            own = getattr(found, "name", name)
            if own != name:
                raise ValueError(f"the {self._kind} has another name, {own!r}: give both the same name")
            self._check(found)

        loaded: T = load_entry_point(entry, check)
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self.loaded or name in self.own or (bool(name) and name in self.offered)

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self.offered

    def __len__(self) -> int:
        return len(self.own) + len(self.offered)

    def usable(self) -> Iterator[T]:
        """All objects but those of packages that are broken, for lists and for searches. ``faults`` has the others."""
        yield from self.own.values()
        for name in self.offered:
            try:
                yield self[name]
            except ConfigError:
                continue

    def check_names(self) -> None:
        """Raises ``ConfigError`` for a package that takes a name. Nothing is imported."""
        _ = self.offered

    def faults(self) -> list[str]:
        """What is wrong with installed packages."""
        faults = []
        try:
            names = list(self.offered)
        except ConfigError as error:
            return [error.message]
        for name in names:
            try:
                self[name]
            except ConfigError as error:
                faults.append(error.message)
        return faults


def offered(group: str, kind: str, own: Container[str]) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name. ``own`` has our names, which are taken."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group):
        if entry.name in own:
            raise _fault(entry, f"has the name of a {kind} of streamglot: use another name, or uninstall the package")
        if entry.name in found:
            raise _fault(entry, f"has a name that is taken by {_package(found[entry.name])}: uninstall one of them")
        found[entry.name] = entry
    return found


def load_entry_point(entry: EntryPoint, check: Callable[[Any], object] = lambda found: None) -> Any:  # Any: ``check`` has looked
    """The object of an entry point. ``check`` looks at it, and may raise anything."""
    try:
        found: object = entry.load()
        check(found)
        return found
    except FOREIGN_ERRORS as error:  # anything may happen while somebody else's package is imported
        raise _fault(entry, f"cannot be loaded: {import_fault(error)}") from error


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group in installed packages, sorted by name. Nothing is imported."""
    return _entry_points(tuple(sys.path)).get(group, ())


@lru_cache(4)
def _entry_points(_path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Of two versions of a package, the one that Python imports counts: the first in its path."""
    from importlib.metadata import distributions  # 15 ms, for processes that look for packages

    packages: dict[str, Iterable[EntryPoint]] = {}
    for package in distributions():
        if _PREFIX in (package.read_text("entry_points.txt") or ""):
            packages.setdefault(package.name, package.entry_points)
    groups: dict[str, list[EntryPoint]] = {}
    for entry in chain.from_iterable(packages.values()):
        groups.setdefault(entry.group, []).append(entry)
    return {group: tuple(sorted(entries, key=lambda entry: entry.name)) for group, entries in groups.items()}


def _fault(entry: EntryPoint, what: str) -> ConfigError:
    return ConfigError(f"the entry point {entry.name!r} of {entry.group} {what}; {_package(entry)} offers it as {entry.value}")


def _package(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package"


def import_fault(error: BaseException) -> str:
    """Why a module could not be imported, and where Python looks for modules."""
    where = "; Python looks in installed packages and in the folders of the variable PYTHONPATH"
    return f"{type(error).__name__}: {error}{where if isinstance(error, ModuleNotFoundError) else ''}"


def load_object(reference: str, setting: str) -> Any:  # Any: the caller checks the type
    """The object that ``module:name`` refers to. ``setting`` is the configuration key, for the error message."""
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
