"""Describes a policy from its class: what it does, its options, their types and defaults. For the command line and the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import msgspec

from ..json_types import as_mutable
from .load import find_policy
from .policy import Policy

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
