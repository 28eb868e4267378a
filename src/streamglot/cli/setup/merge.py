"""Settings merged into a file of another program. Other settings stay, and a file that cannot be parsed is not changed.

The function of each format takes the text of the file and our settings in the same format, and returns the new text and the
changes. It edits the text and never rewrites it, so comments and layout stay. Rewriting would also change what JSON parsers treat
differently: numbers that no float can hold, repeated names, lone surrogates. Of YAML it knows only names at the left margin, each
with a value on its line or a list below it; any other layout is refused, because a full YAML parser is too much for three lines.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final, NamedTuple

from msgspec import Struct

from ...json_types import JsonObject, JsonValue
from .recipes import Form


class Change(Struct, frozen=True):
    """One changed setting. ``old`` is empty if the setting is new."""

    name: str
    old: str
    new: str


class NotMerged(Exception):
    """The file is not changed. The message is the reason, worded to follow the name of the file."""


def unquoted(written: str) -> str:
    """A value of one line without its quotes and without the comment after it."""
    found = re.match(r"""(["'])(.*?)\1""", written)
    return found[2] if found else re.sub(r"(?:^|(?<=\s))#.*", "", written).strip()


# --- JSON

INDENT: Final = "  "
"""The indentation of one level, for a file without any."""
_INDENTED: Final = re.compile(r"\n([ \t]+)[^ \t\n]")
_JSON_SPACE: Final = re.compile(r"[ \t\n\r]*")
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
            text, change = _put_json(text, path, value)
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


def _put_json(text: str, path: tuple[str, ...], value: object) -> tuple[str, Change | None]:
    """The text with this value at this path, and the change; None instead of a change if the value was there."""
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
    """The members of the object that begins here and the position of its closing brace. The text must be valid JSON."""
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
    """The text with a member added at the end of an object, in the layout of the members before it."""
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
    """A member after this white space. It takes several lines only if it begins a line."""
    _, newline, margin = gap.rpartition("\n")
    written = json.dumps(value, indent=step if newline else None, ensure_ascii=False).replace("\n", f"\n{margin}")
    return f"{json.dumps(name, ensure_ascii=False)}: {written}"


def _innermost(value: object) -> JsonValue:
    while isinstance(value, dict):
        (value,) = value.values()
    return value


def _after_space(text: str, place: int) -> int:
    found = _JSON_SPACE.match(text, place)
    assert found is not None  # the pattern also matches the empty text
    return found.end()


# --- YAML

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
            changes += [Change(ours.name, "", unquoted(ours.value))] if not ours.below else _item_added(ours)
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


# --- a list in YAML


def _item_fields(ours: _Setting) -> dict[str, str]:
    """The fields of the only item of our list as text."""
    pairs = (line.strip().removeprefix("- ").partition(": ") for line in ours.lines[1:])
    return {name: value for name, _, value in pairs}


def _item_added(ours: _Setting) -> list[Change]:
    return [Change(f"{ours.name}[{_OURS}].{name}", "", unquoted(value)) for name, value in _item_fields(ours).items()]


def _put_item(there: _Setting, ours: _Setting) -> list[Change]:
    """Puts our item into an existing list. An item with our name keeps its other fields."""
    value = unquoted(there.value)
    if value not in ("", "[]") or (value and there.below):
        raise NotMerged(f"`{there.name}` is not a list of items on lines of their own")
    if not there.below:
        there.lines[:1] = ours.lines
        return _item_added(ours)
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
    return _item_added(ours)


def _field(line: str, margin: str, name: str) -> str | None:
    """The value that a line gives to this field of an item; None if the line is about another field."""
    for start in (f"{margin}- {name}:", f"{margin}  {name}:"):
        if line.startswith(start):
            return line.removeprefix(start).strip()
    return None


def _put_fields(item: list[str], margin: str, ours: _Setting) -> tuple[list[str], list[Change]]:
    changes = []
    for name, written in _item_fields(ours).items():
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


# --- all formats

_TABLE: Final = re.compile(r"\[{1,2}([^\[\]]+)\]{1,2}\s*(#.*)?$")
_VARIABLE: Final = re.compile(r"\s*(export\s+)?([A-Za-z_]\w*)\s*=(.*)$")


def merged(form: Form, old: str, new: str) -> tuple[str, list[Change]]:
    """The file with our settings and the changes. The file is returned unchanged if it has the settings already."""
    if not old.strip():
        old = ""
    text, changes = FORMS[form](old, new)
    return (text, changes) if changes else (old, [])


def _put_tree(there: JsonObject, wanted: JsonObject, path: str = "") -> Iterator[Change]:
    """Puts values into a tree and yields those that are new."""
    for name, value in wanted.items():
        place = f"{path}{name}"
        if isinstance(value, dict):
            inner = there.setdefault(name, {})
            if not isinstance(inner, dict):
                raise NotMerged(f"`{place}` is not a table of settings there")
            yield from _put_tree(inner, value, f"{place}.")
        elif there.get(name) != value:
            yield Change(place, str(there.get(name, "")), str(value))
            there[name] = value


# --- TOML


def merged_toml(old: str, new: str) -> tuple[str, list[Change]]:
    """Changes and adds lines, then parses the result to check that it has the wanted values."""
    try:
        expected = tomllib.loads(old)
        before, wanted = deepcopy(expected), tomllib.loads(new)
    except ValueError as error:  # also an integer with too many digits
        raise NotMerged(f"it is not valid TOML ({error})") from None
    except RecursionError:
        raise NotMerged("its TOML is nested too deeply to be read") from None
    changes = list(_put_tree(expected, wanted))
    lines = old.splitlines()
    for path, values in _tables(wanted):
        there = before
        for name in path:
            there = there.get(name, {})
        _put_lines(lines, ".".join(path), {name: value for name, value in values.items() if there.get(name) != value})
    text = "\n".join(lines) + "\n"
    try:
        right = tomllib.loads(text) == expected
    except ValueError:
        right = False
    if not right:
        raise NotMerged("its layout has no place where a setting can be added as a line")
    return text, changes


def _tables(values: JsonObject, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonObject]]:
    yield path, {name: value for name, value in values.items() if not isinstance(value, dict)}
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, name))


def _put_lines(lines: list[str], table: str, values: JsonObject) -> None:
    if not values:
        return
    heads = [(number, found[1].strip()) for number, line in enumerate(lines) if (found := _TABLE.match(line))]
    start = next((number + 1 for number, name in heads if name == table), 0 if not table else -1)
    if start < 0:
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        start = len(lines)
    for name, value in values.items():
        end = next((number for number, line in enumerate(lines) if number >= start and _TABLE.match(line)), len(lines))
        written = f"{name} = {json.dumps(value, ensure_ascii=False)}"
        place = next((number for number in range(start, end) if re.match(rf'\s*"?{re.escape(name)}"?\s*=', lines[number])), None)
        if place is not None:
            lines[place] = written
            continue
        while end > start and not lines[end - 1].strip():
            end -= 1
        lines[end:end] = [written, ""] if end < len(lines) and lines[end].strip() else [written]


# --- variables


def merged_env(old: str, new: str) -> tuple[str, list[Change]]:
    wanted = {found[2]: found[3].strip() for line in new.splitlines() if (found := _VARIABLE.match(line))}
    changes: dict[str, Change] = {}
    missing = dict(wanted)
    lines = old.splitlines()
    for number, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _VARIABLE.match(line)
        written = found[3].strip() if found is not None else ""
        if found is None or (written[:1] in ("'", '"') and written.count(written[0]) < 2):
            raise NotMerged(f"line {number + 1} is not NAME=value on one line")
        exported, name, value = found[1] or "", found[2], unquoted(written)
        missing.pop(name, None)
        if name in wanted and value != wanted[name]:
            lines[number] = f"{exported}{name}={wanted[name]}"
            changes[name] = Change(name, value, wanted[name])
    lines += [f"{name}={value}" for name, value in missing.items()]
    added = [Change(name, "", value) for name, value in missing.items()]
    return "\n".join(lines) + "\n", [*changes.values(), *added]


FORMS: Final[dict[Form, Callable[[str, str], tuple[str, list[Change]]]]] = {
    "json": merged_json,
    "toml": merged_toml,
    "yaml": merged_yaml,
    "env": merged_env,
}
