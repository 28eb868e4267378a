"""Text from outside, made harmless for its reader; the names of callers; the spellings and globs of tool names.

The registry names a tool ``files.delete``. APIs take letters, digits, ``_`` and ``-`` only, so a model knows it as
``files__delete``. Policies, keys, headers, routes and the configuration may use either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from .errors import excerpt

_LINE_BREAKS: Final = {ord("\n"): "\n", ord("\t"): "\t"}
_CONTROLS: Final = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the symbols for control characters
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    # controls of the writing direction
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C), "\ufffd"),
    **_LINE_BREAKS,
}


def neutral(text: str) -> str:
    """The text with every control character made visible: no escape sequence survives. Characters are replaced one by one, so
    the result does not depend on how a stream is split."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """The same on one line, with single spaces: for a row of a table."""
    return " ".join(neutral(text).split())


# --- callers

COMMAND_LINE: Final = "cli:"
"""The prefix of people at a command line."""
ANONYMOUS: Final = "anonymous:"
"""The prefix of callers without a key. A request without any credential has the empty name."""
CALLER_CHARS: Final = 64
"""Characters of the longest name of a key."""
MAX_KEY_LIMIT: Final = 2**31 - 1
"""The largest limit of a key: the maximum of an integer column."""


def fault_of_key_name(name: str) -> str:
    """The reason why a key may not have this name; empty if it may. Turns belong to a name, so two kinds of callers must never
    share one."""
    rule = ""
    if not name.strip():
        rule = "it is empty, like the name of callers without a key"
    elif len(name) > CALLER_CHARS:
        rule = f"it has {len(name)} characters; the maximum is {CALLER_CHARS}"
    elif not name.isprintable() or name != name.strip():
        rule = "it has invisible characters, or spaces around it"
    elif name.startswith((COMMAND_LINE, ANONYMOUS)):
        rule = f"names that begin with {COMMAND_LINE} or {ANONYMOUS} belong to callers without a key"
    return f"a key cannot have the name {excerpt(name)}: {rule}; choose another one" if rule else ""


# --- tools

TOOL_NAME_CHARS: Final = 64
"""Characters of the longest tool name that all APIs take."""
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


def model_name(name: str) -> str:
    """The name under which a model knows a tool."""
    return _NOT_IN_A_NAME.sub("_", name.replace(".", "__"))[:TOOL_NAME_CHARS]


def matches_tool(name: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs matches this tool, in either spelling of both. Upper and lower case differ."""
    spelled = model_name(name)
    return any(fnmatchcase(name, glob) or fnmatchcase(spelled, glob) or fnmatchcase(spelled, _spelled(glob)) for glob in globs)


def _spelled(glob: str) -> str:
    """A glob as it matches the names that models know. A name without marks is cut like the name of a tool."""
    return glob.replace(".", "__") if any(mark in glob for mark in "*?[") else model_name(glob)


# --- globs

_GLOB_TOKEN: Final = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
"""A star, a question mark, a set of characters, or a character."""


def overlap(one: str, other: str) -> bool:
    """Whether some name matches both globs. A set of characters counts as any character, so the answer may be True too often."""
    first, second = _glob_tokens(one), _glob_tokens(other)
    waiting, seen = [(0, 0)], {(0, 0)}
    while waiting:
        i, j = waiting.pop()
        if (i, j) == (len(first), len(second)):
            return True
        for step in _glob_steps(first[i : i + 1], second[j : j + 1]):
            place = i + step[0], j + step[1]
            if place not in seen:
                seen.add(place)
                waiting.append(place)
    return False


def _glob_steps(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """How many tokens of each glob may be passed: a star matches nothing more, or the next token of the other glob."""
    steps = []
    if a == ["*"]:
        steps += [(1, 0), *([(0, 1)] if b else [])]
    if b == ["*"]:
        steps += [(0, 1), *([(1, 0)] if a else [])]
    if a and b and (a == b or "?" in (*a, *b)) and "*" not in (*a, *b):
        steps.append((1, 1))
    return steps


def _glob_tokens(glob: str) -> list[str]:
    found = _GLOB_TOKEN.findall(glob)
    return ["*" if token[0] == "*" else "?" if len(token) > 1 else token for token in found]
