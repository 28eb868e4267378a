"""The two spellings of a tool's name, and the globs that match both.

The registry names a tool ``files.delete``. APIs take letters, digits, ``_`` and ``-`` only, so a model knows it as
``files__delete``. Policies, keys, headers, routes and the configuration may use either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

NAME_CHARS: Final = 64
"""Characters of the longest tool name that all APIs take."""
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


def model_name(name: str) -> str:
    """The name under which a model knows a tool."""
    return _NOT_IN_A_NAME.sub("_", name.replace(".", "__"))[:NAME_CHARS]


def matches_tool(name: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs matches this tool, in either spelling of both. Upper and lower case differ."""
    spelled = model_name(name)
    return any(fnmatchcase(name, glob) or fnmatchcase(spelled, glob) or fnmatchcase(spelled, _spelled(glob)) for glob in globs)


def _spelled(glob: str) -> str:
    """A glob as it matches the names that models know. A name without marks is cut like the name of a tool."""
    return glob.replace(".", "__") if any(mark in glob for mark in "*?[") else model_name(glob)
