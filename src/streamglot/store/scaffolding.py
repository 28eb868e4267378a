"""The text that coding agents put around the words of their users: reminders, contexts, instructions. Pure."""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = re.compile(r"\s*<([A-Za-z]+(?:[_-][A-Za-z]+)+|INSTRUCTIONS)(?:\s[^<>]*)?>")
"""The start of a block that an agent wrote. Their names have two words, such as ``system-reminder`` or ``session_context``;
tags that people write, such as ``<div>`` or ``<b>``, have one."""
_HEADING: Final = re.compile(r"\s*# AGENTS\.md instructions[^\n]*\n")
"""The line that some agents write above the instructions of a project."""


def without_scaffolding(text: str) -> str:
    """The text without the blocks that an agent put at its beginning."""
    place = 0
    while True:
        heading = _HEADING.match(text, place)
        start = heading.end() if heading is not None else place
        found = _OPENING.match(text, start)
        end = text.find(f"</{found[1]}>", found.end()) if found is not None else -1
        if found is None or end < 0:
            return text[place:].lstrip()
        place = end + len(found[1]) + 3
