"""``allow_tools``: refuses calls of tools that are not listed."""

from __future__ import annotations

from typing import ClassVar

from .deny_tools import DenyTools


class AllowTools(DenyTools, frozen=True):
    """The opposite of ``deny_tools``: ``tools`` are those that may be called."""

    use: ClassVar[str] = "allow_tools"
    title: ClassVar[str] = "Refuses calls of all tools except those that are listed (globs)."

    def denied(self, tool: str) -> bool:
        return not super().denied(tool)
