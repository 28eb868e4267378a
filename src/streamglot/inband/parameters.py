"""The parameters of a call: the names that the declared tools have, the type of each, and the text of a value as JSON.

Types come from the JSON schema of the parameter: ``type`` (a word or a list), ``anyOf``/``oneOf``/``allOf``, ``enum``, ``const``
and ``$ref`` into ``$defs``. Non-standard type names that some callers use are accepted.

A string streams as it arrives. Everything else is read to its end, because only then is it known whether the text has the
declared type; a long object or array starts to stream once it is too long to wait for.

Without a schema the notation decides: ``untyped="string"`` keeps the text as it is, ``untyped="json"`` takes what parses as JSON
(or as a Python literal) and keeps the rest as a string. A value that does not fit its declared type is never dropped or changed:
it becomes a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Mapping
from typing import Protocol

from ..errors import ConfigError, excerpt
from ..json_types import JsonValue
from ..messages import ToolSpec
from .literals import JSON, NUMBER, PYTHON, PYTHON_LITERAL, Notation, escaped, quoted, value, word_as_json
from .scan import MAX_TRAIL_CHARS, Malformed, Sink, Source, Wait

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


# --- values

HOLD_CHARS = 4096
"""Characters after which an open object or array starts to stream."""

TAIL_CHARS = 256
"""Characters of white space at the end of a value that wait until it is known whether they belong to it."""

_CONTAINERS = frozenset(("object", "array"))
_BRACKETS = {"{": "object", "[": "array"}
QUOTED = "quoted"
"""In addition to "string": a value in JSON quotes is the string inside them."""
_NULLABLE = frozenset(("string", "null"))
_LOOSE_STRING = frozenset(("string", QUOTED))
_NULLS = ("null", "none", "nil")


def _whole(text: str, notation: Notation) -> str | None:
    """The text as JSON if all of it is one value of this notation."""
    source = Source()
    source.push(text)
    source.closed = True
    parts: list[str] = []
    steps: Wait = value(source, parts.append, notation)
    try:
        next(steps, None)
    except Malformed:
        return None
    return None if source.text[source.at :].strip() else "".join(parts)


def parsed(text: str) -> str | None:
    """The text as JSON: directly, as a Python literal, or with quotes that were escaped once too often."""
    stripped = text.strip()
    if not stripped:
        return None
    written = _whole(stripped, JSON) or _whole(stripped, PYTHON_LITERAL)
    if written is None and '\\"' in stripped:
        try:
            written = _whole(str(json.loads(f'"{stripped}"')), JSON)
        except ValueError:
            written = None
    return written


def typed(text: str, types: frozenset[str], untyped: str = "string") -> str:
    """The JSON for this raw text, by the rules of this module."""
    stripped = text.strip()
    if not types:
        written = parsed(text) if untyped == "json" else None
        return quoted(text) if written is None else written
    lowered = stripped.lower()
    if "null" in types and lowered in _NULLS:
        return "null"
    if QUOTED in types:
        written = _whole(stripped, JSON) if stripped.startswith('"') else None
        if written is not None:
            return written
    if types <= {"string", "null", QUOTED}:
        return quoted(text)
    if "boolean" in types and lowered in ("true", "false"):
        return lowered
    if types & {"integer", "number"}:
        number = word_as_json(stripped)
        if number is not None and NUMBER.fullmatch(number):
            whole = number[:-2] if number.endswith(".0") else number
            if "number" in types or (NUMBER.fullmatch(whole) and not any(mark in whole for mark in ".eE")):
                return number if "number" in types else whole
    if types & _CONTAINERS:
        written = parsed(text)
        if written is not None and _BRACKETS.get(written[0]) in types:
            return written
    if "string" in types:
        return quoted(text)
    if lowered == "null":
        return "null"
    if types == {"boolean"} and stripped in ("0", "1"):
        return "true" if stripped == "1" else "false"
    return quoted(text)


def feeding(writer: ValueWriter, steps: Generator[None, None, bool]) -> Wait:
    """Runs the steps that feed the writer, and closes it. They return whether the value has its own end tag. If they break, the
    content of the writer is not lost."""
    try:
        writer.close((yield from steps))
    except Malformed as reason:
        reason.rest = (reason.rest or "") + writer.left()
        raise


class ValueWriter:
    """Takes the raw text of one parameter in pieces and passes on its JSON. ``trim`` removes one line break from each side."""

    __slots__ = (
        "_flows", "_held", "_inner", "_lead", "_sink", "_size", "_source", "_tail", "_text", "_trim", "_types", "_untyped",
    )  # fmt: skip

    def __init__(self, sink: Sink, types: frozenset[str], untyped: str, trim: bool) -> None:
        self._sink = sink
        self._types = types
        self._untyped = untyped
        self._trim = trim
        self._lead = trim
        self._tail = ""
        self._held: list[str] = []
        self._size = 0
        self._text = types == {"string"} or (not types and untyped == "string")
        self._flows = self._text and not trim
        """Whether the pieces of a string are passed on as they arrive: nothing waits, and nothing has to be trimmed."""
        self._inner: Generator[None, None, None] | None = None
        self._source = Source()
        if self._text:
            sink('"')

    def feed(self, piece: str) -> None:
        if self._flows and piece[-1:] > " ":
            self._sink(escaped(piece))  # the usual case for a long string
            return
        if self._tail:
            piece = self._tail + piece
            self._tail = ""
            self._flows = self._text and not self._lead
        if self._lead:
            if piece == "\r":
                self._tail = piece
                return
            piece = piece.removeprefix("\r").removeprefix("\n")
            self._lead = False
            self._flows = self._text
        if piece[-1:].isspace():
            kept = max(len(piece.rstrip()), len(piece) - TAIL_CHARS)
            piece, self._tail = piece[:kept], piece[kept:]
            self._flows = False
        if piece:
            self._put(piece)

    def _put(self, piece: str) -> None:
        if self._text:
            self._sink(escaped(piece))
        elif self._inner is not None:
            self._step(piece)
        else:
            self._held.append(piece)
            if not self._size:
                piece = piece.lstrip()
            self._size += len(piece)
            if self._types == _LOOSE_STRING and piece and self._size == len(piece) and piece[0] != '"':
                self._become_text()
                return
            if self._types == _NULLABLE and (self._size <= 64 or self._size == len(piece)):
                start = "".join(self._held).strip().lower()
                if not any(word.startswith(start) for word in _NULLS):
                    self._become_text()
                    return
            if self._size > HOLD_CHARS:
                self._overflow()

    def _become_text(self) -> None:
        self._text = True
        self._flows = not self._tail
        self._sink('"' + escaped("".join(self._held)))
        self._held.clear()

    def _overflow(self) -> None:
        """Too long to wait for: an object or array streams from here on, a text that can only be a string streams as a string."""
        text = "".join(self._held)
        self._held = [text]
        if text.lstrip()[:1] not in ("{", "["):
            self._become_text()
        elif self._types and self._types <= _CONTAINERS:
            head = text.lstrip()[:64]
            self._inner = value(self._source, self._sink, PYTHON if "'" in head and '"' not in head else JSON)
            self._held.clear()
            self._step(text)
        else:
            # A string or an object: only the end decides.
            self._size = -MAX_TRAIL_CHARS

    def _step(self, piece: str) -> None:
        assert self._inner is not None
        self._source.push(piece)
        try:
            next(self._inner)
        except StopIteration:
            if self._source.text[self._source.at :].strip():
                raise Malformed("text after a value") from None
            self._source.skip(len(self._source.text))

    def left(self) -> str:
        """The text that was fed and not passed on."""
        return "".join(self._held) + self._source.text[self._source.at :] + self._tail

    def close(self, has_end: bool = True) -> None:
        """``has_end``: the value has its own end tag. White space before another tag is not part of the value."""
        tail, self._tail = self._tail if has_end else "", ""
        if self._trim:
            tail = tail.removesuffix("\r\n") if tail.endswith("\r\n") else tail.removesuffix("\n")
        if tail:
            self._put(tail)
        if self._text:
            self._sink('"')
        elif self._inner is not None:
            self._source.closed = True
            next(self._inner, None)
        else:
            self._sink(typed("".join(self._held), self._types, self._untyped))
