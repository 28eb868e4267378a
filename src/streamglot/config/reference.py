"""The JSON Schema of ``streamglot.toml``, made from the structs that read it. Editors complete and check the file with it."""

from __future__ import annotations

import inspect
from typing import Final

import msgspec

from ..json_types import JsonObject
from ..policies.builtin import BUILT_IN
from . import Config
from .checks import LARGEST_NUMBER

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
TITLE: Final = "The configuration of streamglot"
_NUMBERS: Final = ("integer", "number")
_INTERNAL: Final = {"Upstream": ("name",)}
"""Fields that the program fills in."""


def config_schema() -> JsonObject:
    """The schema. Every setting has its type and default; tables refuse settings that do not exist."""
    (root,), tables = msgspec.json.schema_components([Config], schema_hook=_any_value, ref_template="#/$defs/{name}")
    main = tables.pop(root["$ref"].rpartition("/")[2])
    for name, table in tables.items():
        for setting in _INTERNAL.get(name, ()):
            del table["properties"][setting]
    for table in (main, *tables.values()):
        _tidy(table)
    main["properties"]["policies"] = _policies(main["properties"]["policies"])
    return {"$schema": DRAFT, **main, "title": TITLE, "$defs": dict(sorted(tables.items()))}


def schema_text() -> str:
    """The schema as a file."""
    return msgspec.json.format(msgspec.json.encode(config_schema()), indent=2).decode() + "\n"


def _any_value(kind: type) -> JsonObject:
    """The schema of a type that msgspec has none for. A schema hook of msgspec raises NotImplementedError for unknown types."""
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError(f"{kind.__name__} has no JSON Schema; give its setting a type of the configuration")


def _tidy(schema: object) -> None:
    """Gives numbers the range that every setting has, and descriptions in one line."""
    if isinstance(schema, list):
        for inner in schema:
            _tidy(inner)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _NUMBERS:
        schema.setdefault("minimum", 0)
        schema.setdefault("maximum", LARGEST_NUMBER)
    if isinstance(schema.get("description"), str):
        schema["description"] = " ".join(inspect.cleandoc(schema["description"]).split())
    for inner in schema.values():
        _tidy(inner)


def _policies(schema: JsonObject) -> JsonObject:
    """A policy is a table in which ``use`` names the policy. Each policy has its own options, which ``streamglot policies``
    shows."""
    policy = {
        "type": "object",
        "required": ["use"],
        "properties": {"use": {"type": "string", "examples": sorted(BUILT_IN)}},
        "additionalProperties": True,
    }
    return {**schema, "items": policy}
