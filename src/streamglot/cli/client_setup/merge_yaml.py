"""Merges settings into simple YAML files: names at the left margin, each with a value on its line or a list below it.

Any other layout is refused, because a full YAML parser is too much for three lines of settings.
"""

from __future__ import annotations

import re
from typing import Final

from .changes import Change, NotMerged, unquoted

_NAMED: Final = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s(.*))?$")
_OF_THE_FILE: Final = frozenset(("name", "version", "schema"))
"""Settings about the file itself. They are added only if the file lacks them."""
_BEYOND_ONE_LINE: Final = tuple("|>&*!{[")
_OURS: Final = "streamglot"
"""The name of our item in a list."""


class _Setting:
    """A name at the margin and the lines up to the next name."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.lines = lines

    @property
    def value(self) -> str:
        found = _NAMED.match(self.lines[0])
        return ((found and found[2]) or "").strip()

    @property
    def below(self) -> bool:
        return any(_has_content(line) for line in self.lines[1:])


def merged_yaml(old: str, new: str) -> tuple[str, list[Change]]:
    top, there = _settings(old)
    changes: list[Change] = []
    for ours in _settings(new)[1]:
        found = [setting for setting in there if setting.name == ours.name]
        if len(found) > 1:
            raise NotMerged(f"`{ours.name}` occurs there twice")
        if not found:
            there.append(ours)
            changes += [Change(ours.name, "", unquoted(ours.value))] if not ours.below else _added(ours)
        elif ours.below:
            changes += _put_item(found[0], ours)
        elif ours.name not in _OF_THE_FILE:
            changes += _put_value(found[0], ours)
    return "\n".join((*top, *(line for setting in there for line in setting.lines))) + "\n", changes


def _settings(text: str) -> tuple[list[str], list[_Setting]]:
    """The lines before the first name, and the settings."""
    top: list[str] = []
    settings: list[_Setting] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _NAMED.match(line)
        if found:
            settings.append(_Setting(found[1], [line]))
        elif not _has_content(line) or (settings and (line.startswith((" ", "- ")) or line == "-")):
            (settings[-1].lines if settings else top).append(line)
        elif line.rstrip() == "---" and not any(map(_has_content, top)) and not settings:
            top.append(line)
        else:
            raise NotMerged(f"line {number} is not `name: value` or an item of a list")
    return top, settings


def _has_content(line: str) -> bool:
    """Does the line have more than white space and a comment?"""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _put_value(there: _Setting, ours: _Setting) -> list[Change]:
    if there.below or there.value.startswith(_BEYOND_ONE_LINE):
        raise NotMerged(f"the value of `{there.name}` is not a plain value on the same line")
    old, new = unquoted(there.value), unquoted(ours.value)
    if old == new:
        return []
    there.lines[0] = ours.lines[0]
    return [Change(there.name, old, new)]


# --- lists


def _fields(ours: _Setting) -> dict[str, str]:
    """Returns the fields of the only item of our list as text."""
    pairs = (line.strip().removeprefix("- ").partition(": ") for line in ours.lines[1:])
    return {name: value for name, _, value in pairs}


def _added(ours: _Setting) -> list[Change]:
    return [Change(f"{ours.name}[{_OURS}].{name}", "", unquoted(value)) for name, value in _fields(ours).items()]


def _put_item(there: _Setting, ours: _Setting) -> list[Change]:
    """Puts our item into an existing list. An item with our name keeps its other fields."""
    value = unquoted(there.value)
    if value not in ("", "[]") or (value and there.below):
        raise NotMerged(f"`{there.name}` is not a list of items on lines of their own")
    if not there.below:
        there.lines[:1] = ours.lines
        return _added(ours)
    first = next(line for line in there.lines[1:] if _has_content(line))
    margin = first[: len(first) - len(first.lstrip())]
    if not first.startswith(f"{margin}- "):
        raise NotMerged(f"`{there.name}` is not a list of items on lines of their own")
    starts = [number for number, line in enumerate(there.lines) if number and line.startswith(f"{margin}- ")]
    for start, end in zip(starts, [*starts[1:], len(there.lines)], strict=True):
        while not _has_content(there.lines[end - 1]):
            end -= 1
        item = there.lines[start:end]
        if any(found == _OURS for found in (unquoted(_field(line, margin, "name") or "") for line in item)):
            there.lines[start:end], changes = _put_fields(item, margin, ours)
            return changes
    there.lines[end:end] = [f"{margin}{line.removeprefix('  ')}" for line in ours.lines[1:]]
    return _added(ours)


def _field(line: str, margin: str, name: str) -> str | None:
    """Returns the value that a line gives to this field of an item; None if the line is about another field."""
    for start in (f"{margin}- {name}:", f"{margin}  {name}:"):
        if line.startswith(start):
            return line.removeprefix(start).strip()
    return None


def _put_fields(item: list[str], margin: str, ours: _Setting) -> tuple[list[str], list[Change]]:
    changes = []
    for name, written in _fields(ours).items():
        new = unquoted(written)
        place = next((number for number, line in enumerate(item) if _field(line, margin, name) is not None), None)
        old = "" if place is None else unquoted(_field(item[place], margin, name) or "")
        if place is None:
            item.append(f"{margin}  {name}: {written}")
        elif old != new:
            item[place] = f"{item[place].partition(':')[0]}: {written}"
        if old != new:
            changes.append(Change(f"{ours.name}[{_OURS}].{name}", old, new))
    return item, changes
