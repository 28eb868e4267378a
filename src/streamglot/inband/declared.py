"""The declared tools: which names open a call, and the type of each parameter.

Types come from the JSON schema of the parameter: ``type`` (a word or a list), ``anyOf``/``oneOf``/``allOf``, ``enum``, ``const``
and ``$ref`` into ``$defs``. Non-standard type names that some callers use are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from ..errors import ConfigError, excerpt
from ..json_types import JsonValue
from ..messages import ToolSpec

Schema = Mapping[str, JsonValue]

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string", "date": "string",
    "int": "integer", "int32": "integer", "int64": "integer", "uint": "integer", "long": "integer", "short": "integer",
    "unsigned": "integer", "float": "number", "double": "number", "decimal": "number", "float32": "number",
    "float64": "number", "num": "number", "bool": "boolean", "binary": "boolean", "dict": "object", "map": "object",
    "list": "array", "arr": "array", "tuple": "array", "sequence": "array", "none": "null", "nil": "null",
}  # fmt: skip
_KNOWN = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
_NAME = re.compile(r"[^\s<>{}()\[\]\"'=|]{1,256}")


class Declared:
    """The declared tools. If there are none, or with ``any_name``, every well-formed name may open a call."""

    def __init__(self, tools: Iterable[ToolSpec | Mapping[str, JsonValue]] | None = None, any_name: bool = False) -> None:
        self.schemas: dict[str, Schema] = {}
        self._any_name = any_name
        for tool in tools or ():
            name, parameters = _name_and_schema(tool)
            self.schemas[name] = parameters

    def resolve(self, name: str) -> str | None:
        """The declared name that a written name means; None if there is none. Models add a namespace: ``functions.f``,
        ``f.f``."""
        name = name.strip()
        if name in self.schemas:
            return name
        if _NAME.fullmatch(name) is None:
            return None
        for cut in (".", ":", "/"):
            short = name.rsplit(cut, 1)[-1]
            if short in self.schemas:
                return short
        return name if self._any_name or not self.schemas else None

    def only(self) -> str | None:
        """The declared tool, if there is exactly one."""
        return next(iter(self.schemas)) if len(self.schemas) == 1 else None

    def properties(self, name: str) -> Schema:
        schema = self.schemas.get(name) or {}
        schema = follow(schema, schema)
        properties = schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def needs_arguments(self, name: str) -> bool:
        """Whether the schema of this tool requires a parameter. Then a call without arguments is incomplete."""
        schema = self.schemas.get(name) or {}
        return bool(follow(schema, schema).get("required"))

    def is_loose(self, name: str, parameter: str) -> bool:
        """Whether this is a string whose schema uses a non-standard type name (``str``). Models write strings for such tools as
        in JSON."""
        schema = follow(self.properties(name).get(parameter), self.schemas.get(name) or {})
        kind = schema.get("type")
        return isinstance(kind, str) and kind != "string" and _ALIASES.get(kind.lower(), kind.lower()) == "string"

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """The JSON types that the schema allows for this parameter; empty if it does not say."""
        schema = self.properties(name).get(parameter)
        return schema_types(schema, self.schemas.get(name) or {})


class Declares(Protocol):
    """A tool that declares itself, such as ``@tool`` makes."""

    def spec(self) -> ToolSpec: ...


def spec_of(tool: ToolSpec | Mapping[str, JsonValue] | Declares) -> ToolSpec:
    """The declaration of a tool as a ``ToolSpec``."""
    if isinstance(tool, ToolSpec):
        return tool
    if not isinstance(tool, Mapping) and hasattr(tool, "spec"):
        return tool.spec()
    name, parameters = _name_and_schema(tool)  # type: ignore[arg-type]  # it refuses what is neither
    assert isinstance(tool, Mapping)
    inner = tool.get("function")
    about = (inner if isinstance(inner, Mapping) else tool).get("description")
    return ToolSpec(name, about if isinstance(about, str) else "", dict(parameters) or None)


def _name_and_schema(tool: ToolSpec | Mapping[str, JsonValue]) -> tuple[str, Schema]:
    if isinstance(tool, ToolSpec):
        return tool.name, tool.parameters or {}
    if not isinstance(tool, Mapping):
        raise ConfigError(f"a tool must be an OpenAI-style definition or a ToolSpec, not {excerpt(tool)}")
    inner = tool.get("function")
    if not isinstance(inner, Mapping):
        inner = tool
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a tool definition has no name: {excerpt(tool)}")
    parameters = inner.get("parameters", inner.get("input_schema"))
    return name, parameters if isinstance(parameters, Mapping) else {}


def follow(schema: object, root: Schema) -> Schema:
    """The schema that this one refers to; an empty one if it does not exist."""
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        place: object = root
        for step in reference[2:].split("/"):
            place = place.get(step) if isinstance(place, Mapping) else None
        schema = place
    return {}


def schema_types(schema: object, root: Schema, depth: int = 0) -> frozenset[str]:
    schema = follow(schema, root)
    if not schema or depth > 8:
        return frozenset()
    found: set[str] = set()
    kinds = schema.get("type")
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, (list, tuple)) else ():
        word = str(kind).lower()
        word = _ALIASES.get(word, word)
        if word in _KNOWN:
            found.add(word)
    if found:
        return frozenset(found)
    for joint in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(joint)
        if isinstance(branches, (list, tuple)):
            for branch in branches:
                found |= schema_types(branch, root, depth + 1)
    if not found:
        values = list(schema.get("enum") or ()) + ([schema["const"]] if "const" in schema else [])
        found |= {json_type(item) for item in values}
    if not found and isinstance(schema.get("properties"), Mapping):
        found.add("object")
    if not found and "items" in schema:
        found.add("array")
    return frozenset(found)


def json_type(item: object) -> str:
    """The name of this value's type in a JSON schema."""
    if item is None:
        return "null"
    for kind, word in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(item, kind):
            return word
    return "object"
