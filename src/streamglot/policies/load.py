"""Loads policies from the ``[[policies]]`` tables of a configuration, all of them or none, and describes a policy from its class
(what it does, its options, their types and defaults) for the command line and the docs.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MemberDescriptorType
from typing import Final

import msgspec
from msgspec import structs

from ..errors import FOREIGN_ERRORS, ConfigError, excerpt
from ..json_types import JsonObject, JsonValue, as_mutable
from ..plugins import import_fault, load_entry_point, offered
from .builtin import BUILT_IN
from .policy import Policy
from .running.members import prepare

ENTRY_POINTS: Final = "streamglot.policies"
"""The group of entry points in which packages offer policies."""
_IMMUTABLE: Final = (
    *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), tuple, frozenset, range, MappingProxyType, type, Enum),
    *(FunctionType, BuiltinFunctionType, MemberDescriptorType, property, classmethod, staticmethod),
)


def load_policies(tables: Sequence[Mapping[str, JsonValue]]) -> tuple[Policy, ...]:
    """The policies of a configuration. One invalid policy makes the whole configuration invalid; the error names all faults at
    once."""
    loaded: list[Policy] = []
    faults: list[str] = []
    for number, table in enumerate(tables):
        place = f"policies[{number}]"
        try:
            policy = load_policy(table, place)
            prepare([policy])
            loaded.append(policy)
        except ConfigError as error:
            faults.append(error.message if error.message.startswith(place) else f"{place}: {error.message}")
    if faults:
        raise ConfigError("; ".join(faults))
    return tuple(loaded)


def load_policy(table: Mapping[str, JsonValue], place: str = "policy") -> Policy:
    """One policy from its table: ``use`` names it, all other keys are its options."""
    options = dict(table)
    use = options.pop("use", "")
    if not isinstance(use, str) or not use:
        raise ConfigError(f'{place}: there is no use = "NAME" that says which policy this is')
    kind = find_policy(use, place)
    nested: JsonObject = {}
    for name in kind.nested:
        inner = options.pop(name, None)
        if isinstance(inner, Mapping):
            nested[name] = load_policy(inner, f"{place}.{name}")
        elif isinstance(inner, Sequence) and not isinstance(inner, str):
            nested[name] = tuple(load_policy(each, f"{place}.{name}[{number}]") for number, each in enumerate(inner))
        elif inner is not None:
            raise ConfigError(f"{place}.{name} is {excerpt(inner)}, and must be a policy or a list of policies")
    try:
        policy = msgspec.convert(options, kind, strict=False)
    except msgspec.ValidationError as error:
        message = str(error).replace("`", "'").replace("$.", "").replace("Object contains unknown field", "there is no option")
        raise ConfigError(f"{place} ({use}): {message}") from None
    for name, value in nested.items():
        structs.force_setattr(policy, name, value)
    return policy


def find_policy(use: str, place: str = "policy") -> type[Policy]:
    """The class that a name stands for: built in, ``module:Class``, or an entry point."""
    if ":" in use:
        found = _imported(use, place)
    elif use in BUILT_IN:
        module, _, name = BUILT_IN[use].partition(":")
        found = getattr(import_module(f"{__package__}.builtin.{module}"), name)
    else:
        others = offered(ENTRY_POINTS, "policy", BUILT_IN)
        if use not in others:
            known = sorted({*BUILT_IN, *others})
            close = difflib.get_close_matches(use, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}, or module:Class"
            raise ConfigError(f"{place}: there is no policy {excerpt(use)}; {hint}")
        try:
            found = load_entry_point(others[use])
        except ConfigError as error:
            raise ConfigError(f"{place}: {error.message}") from None
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise ConfigError(f"{place}: {use} is not a policy: derive it from streamglot.policies.Policy")
    refuse_shared_state(found)
    return found


def _imported(name: str, place: str) -> object:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except FOREIGN_ERRORS as error:  # anything may happen while somebody else's module is imported
        raise ConfigError(f"{place}: {name} cannot be imported: {import_fault(error)}") from None


def refuse_shared_state(kind: type[Policy]) -> None:
    """Raises ConfigError for a class whose objects could carry state from one stream to the next."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    advice = "keep what one answer needs in new_state(), and what must live longer in the store"
    if not kind.__struct_config__.frozen or kind.__struct_config__.dict:
        raise ConfigError(
            f"{name} can be changed while streams share it: declare it with frozen=True and without dict=True; {advice}"
        )
    for base in kind.__mro__[: kind.__mro__.index(Policy)]:
        for attribute, value in vars(base).items():
            if isinstance(value, cached_property) or (not attribute.startswith("__") and not _is_immutable(value)):
                raise ConfigError(f"{name} has the mutable attribute {attribute}, which all streams would share: {advice}")


def _is_immutable(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_immutable, value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    return isinstance(value, _IMMUTABLE) or type(value).__module__ == "re"


_COMMON = frozenset(field.name for field in msgspec.structs.fields(Policy))


def description(use: str) -> Iterator[str]:
    """Lines of text about a policy."""
    kind = find_policy(use)
    yield f"{use} (version {kind.version})"
    yield f"  {kind.title}"
    yield ""
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        yield f"  {line}".rstrip()
    yield ""
    for name, type_name, default in options_of(kind):
        yield f"  {name}: {type_name}" + (f" = {default}" if default else "  (required)")


def options_of(kind: type[Policy]) -> list[tuple[str, str, str]]:
    """Name, type and default of each option: its own first, then those that every policy has. A required one has no default."""
    fields = msgspec.structs.fields(kind)
    ordered = sorted(fields, key=lambda field: field.name in _COMMON)
    return [(field.name, type_name(field.type), _default(field)) for field in ordered]


def type_name(annotation: object) -> str:
    """A type in the words of a configuration."""
    text = annotation.__name__ if isinstance(annotation, type) else re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(annotation))
    text = re.sub(r"Literal\[([^]]*)\]", lambda found: found[1].replace("'", '"').replace(", ", " or "), text)
    return text.replace("Sequence", "list").replace("Mapping", "table").replace(" | None", "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "none" if default is None else msgspec.json.encode(as_mutable(default)).decode()
