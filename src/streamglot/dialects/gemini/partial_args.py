"""Converts arguments that arrive value by value, each with its JSON path, to JSON text while they stream.

``$.list[0].name = "Eg"``, ``$.list[0].name = "g"`` gives ``{"list":[{"name":"Eg``, then ``g``, then ``"}]}``. Paths normally
arrive in document order, and then every value is written at once. A path into a part that is closed already cannot be written in
its place: the top-level argument is then written again, complete, under the same key at the end. Every JSON parser in use takes
the last value of a repeated key.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Final

from ...errors import UpstreamProtocolError, excerpt
from ...json_types import JsonValue
from ...limits import DEFAULT_LIMITS, Limits

Path = tuple[str | int, ...]
_STEP: Final = re.compile(r"""\.([^.\[\]'"\s]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
MAX_DEPTH: Final = 256
"""Maximum steps of one path: deeper arguments would overflow the clients' parsers."""
MAX_GAP: Final = 1000
"""Maximum empty places in a list: a single index must not create a list of millions."""


def parse_path(text: str) -> Path:
    """The keys and indexes of a JSON path. Only plain steps are allowed, because the path must name one place."""
    position, steps = (1 if text[:1] == "$" else 0), list[str | int]()
    while position < len(text) and len(steps) < MAX_DEPTH:
        found = _STEP.match(text, position)
        if found is None:
            break
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        steps.append(name if name is not None else int(index) if index is not None else _ESCAPE.sub(r"\1", quoted))
        position = found.end()
    if position < len(text) or not steps or isinstance(steps[0], int):
        raise UpstreamProtocolError(f"an argument has the invalid path {excerpt(text)}", code="bad_json_path")
    return tuple(steps)


class _Container:
    """An object or a list that is being written. ``keys`` are its keys so far, ``size`` is the length of the list."""

    __slots__ = ("is_list", "keys", "size")

    def __init__(self, is_list: bool) -> None:
        self.is_list = is_list
        self.size = 0
        self.keys: set[str] = set()

    def takes(self, step: str | int) -> bool:
        """Whether this step can still be written after what is there."""
        if isinstance(step, int):
            return self.is_list and step >= self.size
        return not self.is_list and step not in self.keys


class PartialArgs:
    """The arguments of one call. ``add`` and ``close`` return the next piece of their JSON text."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._size = 0
        self._values: list[tuple[Path, JsonValue]] = []
        self._stack = [_Container(False)]
        self._path: Path = ()
        self._string = False
        self._again: dict[str, None] = {}

    def add(self, path: Path, value: object) -> str:
        self._count((len(value) if isinstance(value, str) else 0) + len(path))
        self._values.append((path, value))
        key = str(path[0])
        if key in self._again:
            return ""
        if path == self._path and self._string and isinstance(value, str):
            return _inner(value)
        shared = 0
        while shared < min(len(path), len(self._path)) and path[shared] == self._path[shared]:
            shared += 1
        if (shared in (len(path), len(self._path)) and self._path) or not self._stack[shared].takes(path[shared]):
            self._again[key] = None
            return ""
        return self._close_to(shared) + self._open(path, shared) + self._value(value)

    def close(self) -> str:
        """The rest of the text: closes every open string, list and object."""
        if not self._values:
            return ""
        again: dict[str, list[tuple[Path, JsonValue]]] = {key: [] for key in self._again}
        for path, value in self._values if again else ():
            if path[0] in again:
                again[str(path[0])].append((path, value))
        written = [f",{_quoted(key)}:{json.dumps(_built(values))}" for key, values in again.items()]
        return "".join((self._close_to(0), *written, "}"))

    def _close_to(self, shared: int) -> str:
        text = '"' if self._string else ""
        self._string = False
        while len(self._stack) > shared + 1:
            text += "]" if self._stack.pop().is_list else "}"
        return text

    def _open(self, path: Path, shared: int) -> str:
        pieces = [] if self._path else ["{"]
        for depth in range(shared, len(path)):
            step, container = path[depth], self._stack[depth]
            if isinstance(step, int):
                self._count(5 * (step - container.size))
                pieces.append("," * (container.size > 0) + "null," * (step - container.size))
                container.size = step + 1
            else:
                pieces.append("," * (len(container.keys) > 0) + _quoted(step) + ":")
                container.keys.add(step)
            if depth + 1 < len(path):
                is_list = isinstance(path[depth + 1], int)
                self._stack.append(_Container(is_list))
                pieces.append("[" if is_list else "{")
        self._path = path
        return "".join(pieces)

    def _value(self, value: JsonValue) -> str:
        self._string = isinstance(value, str)
        if self._string:
            return '"' + _inner(value)
        return json.dumps(value) if not isinstance(value, float) or isfinite(value) else "null"

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limits.block_chars:
            raise self._limits.exceeded("block_chars")


def _built(values: list[tuple[Path, JsonValue]]) -> JsonValue:
    """The value of these pieces, from the first step of their paths on. Later pieces win."""
    root: dict[JsonValue, JsonValue] = {}
    for path, value in values:
        place = root
        for step in path[:-1]:
            inner = place.get(step)
            if not isinstance(inner, dict):
                inner = place[step] = {}
            place = inner
        before = place.get(path[-1])
        if isinstance(value, str):
            if isinstance(before, list):
                before.append(value)
                continue
            value = [value]
        place[path[-1]] = value
    return _plain(root[values[0][0][0]])


def _plain(value: object) -> JsonValue:
    """Objects with numeric steps become lists; lists of pieces become strings."""
    if isinstance(value, list):
        return "".join(value)
    if not isinstance(value, dict):
        return value
    if all(isinstance(step, int) for step in value):
        if max(value) > 2 * len(value) + MAX_GAP:
            raise UpstreamProtocolError(f"the list of an argument has a gap up to index {max(value)}", code="bad_json_path")
        return [_plain(value.get(index)) for index in range(max(value) + 1)]
    return {str(step): _plain(inner) for step, inner in value.items()}


def _quoted(text: str) -> str:
    return f'"{_inner(text)}"'


def _inner(text: str) -> str:
    """The inside of a JSON string. Half a surrogate pair stays an escape, which its other half completes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]
