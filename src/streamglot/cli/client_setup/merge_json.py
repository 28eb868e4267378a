"""Merges settings into a JSON file by editing its text. All other text stays the same, character by character.

Parsing and rewriting the file would change what JSON parsers treat differently: numbers that no float can hold, repeated names,
lone surrogates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ...json_types import JsonObject, JsonValue
from .changes import Change, NotMerged

INDENT: Final = "  "
"""The indentation of one level, for a file without any."""
_INDENTED: Final = re.compile(r"\n([ \t]+)[^ \t\n]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_LONGEST_INTEGER: Final = 4300
"""Digits of an integer that Python converts. A longer one stays text; it is never written again."""


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _LONGEST_INTEGER else digits


_DECODER: Final = json.JSONDecoder(parse_int=_integer)


class _Member(NamedTuple):
    """A name and its value in an object, with their positions in the text."""

    name: str
    start: int
    value_start: int
    end: int
    value: JsonValue  # any JSON value


def merged_json(old: str, new: str) -> tuple[str, list[Change]]:
    """``new`` is an object of objects; its plain values are put into ``old`` one by one."""
    settings = list(_plain_values(json.loads(new)))
    if not old.strip():
        return new, [Change(".".join(path), "", str(value)) for path, value in settings]
    text = old
    changes = []
    try:
        if not isinstance(_DECODER.decode(text), dict):
            raise NotMerged("it does not contain a JSON object")
        for path, value in settings:
            text, change = _put(text, path, value)
            changes += [change] if change is not None else []
    except json.JSONDecodeError as error:
        raise NotMerged(f"it is not plain JSON, without comments (line {error.lineno}: {error.msg})") from None
    except RecursionError:
        raise NotMerged("its JSON is nested too deeply to be read") from None
    return text, changes


def _plain_values(settings: JsonObject, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _plain_values(value, (*path, name))
        else:
            yield (*path, name), value


def _put(text: str, path: tuple[str, ...], value: object) -> tuple[str, Change | None]:
    """Returns the text with this value at this path, and the change; None instead of a change if the value was there."""
    place = _after_space(text, 0)
    for depth, name in enumerate(path, 1):
        members, end = _members(text, place)
        shown = ".".join(path[:depth])
        found = [member for member in members if member.name == name]
        if len(found) > 1:
            raise NotMerged(f"`{shown}` occurs there twice")
        if not found:
            for inner in reversed(path[depth:]):
                value = {inner: value}
            return _inserted(text, place, end, members, name, value), Change(".".join(path), "", str(_innermost(value)))
        (member,) = found
        if depth < len(path):
            if not isinstance(member.value, dict):
                raise NotMerged(f"`{shown}` is not a table of settings there")
            place = member.value_start
    if type(member.value) is type(value) and member.value == value:
        return text, None
    written = json.dumps(value, ensure_ascii=False)
    return f"{text[: member.value_start]}{written}{text[member.end :]}", Change(shown, str(member.value), str(value))


def _members(text: str, place: int) -> tuple[list[_Member], int]:
    """Returns the members of the object that begins here and the position of its closing brace. The text must be valid JSON."""
    members: list[_Member] = []
    place = _after_space(text, place + 1)
    while text[place] != "}":
        if text[place] == ",":
            place = _after_space(text, place + 1)
        name, end = _DECODER.raw_decode(text, place)
        value_start = _after_space(text, _after_space(text, end) + 1)  # after the colon
        value, end = _DECODER.raw_decode(text, value_start)
        members.append(_Member(name, place, value_start, end, value))
        place = _after_space(text, end)
    return members, place


def _inserted(text: str, start: int, end: int, members: list[_Member], name: str, value: object) -> str:
    """Returns the text with a member added at the end of an object, in the layout of the members before it."""
    found = _INDENTED.search(text)
    step = found[1] if found else INDENT
    if members:
        last = members[-1]
        before = text[: last.start].rstrip(" \t\n\r")
        gap = text[len(before) : last.start]
        return f"{text[: last.end]},{gap}{_written(name, value, gap, step)}{text[last.end :]}"
    line = text[text.rfind("\n", 0, start) + 1 : start]
    margin = line[: len(line) - len(line.lstrip(" \t"))]
    gap = f"\n{margin}{step}"
    return f"{text[: start + 1]}{gap}{_written(name, value, gap, step)}\n{margin}{text[end:]}"


def _written(name: str, value: object, gap: str, step: str) -> str:
    """Returns a member after this white space. It takes several lines only if it begins a line."""
    _, newline, margin = gap.rpartition("\n")
    written = json.dumps(value, indent=step if newline else None, ensure_ascii=False).replace("\n", f"\n{margin}")
    return f"{json.dumps(name, ensure_ascii=False)}: {written}"


def _innermost(value: object) -> JsonValue:
    while isinstance(value, dict):
        (value,) = value.values()
    return value


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None  # the pattern also matches the empty text
    return found.end()
