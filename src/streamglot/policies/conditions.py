"""When a policy applies: globs on the model, the key, the endpoint and the tool, and the direction."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..stages.stage import ExchangeContext
from ..tool_names import matches_tool
from .options import Options
from .pieces import Direction, Piece


class When(Options, frozen=True, kw_only=True):
    """All conditions that are given must hold. ``endpoints`` are the dialects of clients. With ``tools`` the policy sees only
    the calls, results and definitions of these tools."""

    models: Sequence[str] = ()
    keys: Sequence[str] = ()
    endpoints: Sequence[str] = ()
    tools: Sequence[str] = ()
    directions: Sequence[Direction] = ()

    def allows_exchange(self, context: ExchangeContext) -> bool:
        given = ((self.models, context.model), (self.keys, context.key), (self.endpoints, context.endpoint))
        return all(not globs or any_matches(globs, value) for globs, value in given)

    def allows_direction(self, direction: Direction) -> bool:
        return not self.directions or direction in self.directions

    def allows_piece(self, piece: Piece) -> bool:
        return not self.tools or (
            piece.kind in ("tool_call", "tool_result", "tool_definition") and matches_tool(piece.name, self.tools)
        )


def any_matches(globs: Sequence[str], value: str) -> bool:
    """Whether one of the globs matches the value. Upper and lower case differ."""
    return any(fnmatchcase(value, glob) for glob in globs)
