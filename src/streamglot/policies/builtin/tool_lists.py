"""``allow_tools`` and ``deny_tools``: refuse calls by the name of the tool, before any part of a call is released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...errors import ConfigError
from ...text import matches_tool
from ..needs import Needs, delta, request
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, Forward, Refuse, Replace


class DenyTools(Policy, frozen=True):
    """``tools`` are globs. ``message`` is sent to the client in place of a call; ``{tool}`` in it is the name of the tool.
    ``hide``: these tools are removed from the request, so that the model does not know them."""

    tools: Sequence[str]
    message: str = "[The call of {tool} was refused: this tool is not allowed.]"
    hide: bool = False

    use: ClassVar[str] = "deny_tools"
    title: ClassVar[str] = "Refuses calls of the tools that are listed (globs)."

    def check(self) -> None:
        if not self.tools:
            raise ConfigError(f"{self.name}: tools is empty; list the tools, as globs")

    def needs(self) -> Needs:
        return delta("tool_call") | (request("tool_definition") if self.hide else Needs())

    def denied(self, tool: str) -> bool:
        return matches_tool(tool, self.tools)

    def judge(self, piece: Piece, context: JudgeContext) -> Forward | Refuse | Replace:
        if not self.denied(piece.name):
            return FORWARD
        if piece.kind == "tool_definition":
            return Replace(reason=f"the tool {piece.name} is hidden from the model")
        return Refuse(message=self.message.replace("{tool}", piece.name), reason=f"the tool {piece.name} is not allowed")


class AllowTools(DenyTools, frozen=True):
    """The opposite of ``deny_tools``: ``tools`` are those that may be called."""

    use: ClassVar[str] = "allow_tools"
    title: ClassVar[str] = "Refuses calls of all tools except those that are listed (globs)."

    def denied(self, tool: str) -> bool:
        return not super().denied(tool)
