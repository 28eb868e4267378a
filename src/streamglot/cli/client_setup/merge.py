"""Merges settings into a file of another program. Other settings stay, and a file that cannot be parsed is not changed.

The function of each format takes the text of the file and our settings in the same format, and returns the new text and the
changes. It edits the text and never rewrites it, so comments and layout stay.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final

from ...json_types import JsonObject
from .changes import Change, NotMerged, unquoted
from .merge_json import merged_json
from .merge_yaml import merged_yaml
from .recipes import Form

_TABLE: Final = re.compile(r"\[{1,2}([^\[\]]+)\]{1,2}\s*(#.*)?$")
_VARIABLE: Final = re.compile(r"\s*(export\s+)?([A-Za-z_]\w*)\s*=(.*)$")


def merged(form: Form, old: str, new: str) -> tuple[str, list[Change]]:
    """Returns the file with our settings and the changes. The file is returned unchanged if it has the settings already."""
    if not old.strip():
        old = ""
    text, changes = FORMS[form](old, new)
    return (text, changes) if changes else (old, [])


def _put(there: JsonObject, wanted: JsonObject, path: str = "") -> Iterator[Change]:
    """Puts values into a tree and yields those that are new."""
    for name, value in wanted.items():
        place = f"{path}{name}"
        if isinstance(value, dict):
            inner = there.setdefault(name, {})
            if not isinstance(inner, dict):
                raise NotMerged(f"`{place}` is not a table of settings there")
            yield from _put(inner, value, f"{place}.")
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
    changes = list(_put(expected, wanted))
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
