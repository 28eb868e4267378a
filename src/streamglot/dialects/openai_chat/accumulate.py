"""``accumulate_delta``: any OpenAI-style delta merged into a snapshot, in place.

This file works alone: copied into another project, it needs Python 3.9 and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...json_types import JsonObject, JsonValue

_IDENTITY = frozenset(("id", "index", "type", "role", "name", "object", "created", "model", "call_id", "format", "finish_reason"))
"""Fields that identify something. A repeated value replaces the old one and is never appended to it."""


def accumulate_delta(snapshot: JsonObject, delta: JsonObject) -> JsonObject:
    """Merges ``delta`` into ``snapshot`` and returns the snapshot.

    Strings are joined, numbers added, objects merged, and list entries merged by their ``index``. A null is ignored. A field that
    identifies something (role, id, type, name …) is replaced, so servers may repeat it in every chunk. A list entry without an
    index continues the entry with its id, or the last one if it has neither an id nor a name; otherwise it is a new entry.

    Takes the ``snapshot``, which it changes, and the ``delta`` of a chunk. Gives the snapshot, and raises nothing.
    """
    for key, value in delta.items():
        before = snapshot.get(key)
        if value is None:
            snapshot.setdefault(key, None)
        elif before is None:
            snapshot[key] = _merge_list([], value) if isinstance(value, list) else _copied(value)
        elif key in _IDENTITY:
            if value != "":
                snapshot[key] = value
        elif isinstance(before, str) and isinstance(value, str):
            snapshot[key] = None  # no other reference remains, so the string grows in place without a copy
            before += value
            snapshot[key] = before
        elif isinstance(before, dict) and isinstance(value, dict):
            accumulate_delta(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_list(before, value)
        elif type(before) in (int, float) and type(value) in (int, float):
            snapshot[key] = before + value
        else:
            snapshot[key] = _copied(value)
    return snapshot


def _merge_list(entries: list[JsonValue], delta: list[JsonValue]) -> list[JsonValue]:
    for entry in delta:
        if not isinstance(entry, dict):
            entries.append(entry)
            continue
        place = _place(entries, entry)
        if place is None:
            entries.append(_copied(entry))
        else:
            accumulate_delta(entries[place], entry)
    return entries


def _place(entries: list[JsonValue], entry: JsonObject) -> int | None:
    """The place of this entry in the snapshot; None for a new one."""
    index, ident = entry.get("index"), entry.get("id")
    if isinstance(index, int) and not ident and 0 <= index < len(entries) and entries[index].get("index") == index:
        return index
    known = [(place, other) for place, other in enumerate(entries) if isinstance(other, dict)]
    if ident:
        for place, other in known:
            if other.get("id") == ident:
                return place
    if isinstance(index, int):
        for place, other in reversed(known):
            if other.get("index") == index:
                # Another id and a name under the same index: a second call, not a continuation.
                return None if ident and other.get("id") and _named(entry) else place
        return None
    if ident or _named(entry) or not known:
        return None
    return known[-1][0]


def _named(entry: JsonObject) -> bool:
    function = entry.get("function")
    return bool(entry.get("name") or (isinstance(function, dict) and function.get("name")))


def _copied(value: object) -> JsonValue:
    """A copy that later deltas may change without changing the original chunk."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
