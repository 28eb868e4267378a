"""Keeps the opaque state of a conversation that one upstream may get, and names what it must not get.

This is the only place that decides about it: a builder sends every state that is left in its messages.
"""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec import structs

from ..events import Echo
from ..messages import Built, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from .echo import belongs_to, is_native

_REASONING: Final = "messages.reasoning"
_ADDRESS: Final = frozenset(("type", "id", "status"))
"""Fields that only say which item this was. Nothing is lost without them."""


_Stateful = TypeVar("_Stateful", TextPart, ToolCallPart)


class StateFilter:
    """``provider`` is the maker that is asked, in the format of its ``dialect``."""

    def __init__(self, dialect: str, provider: str, built: Built) -> None:
        self._dialect = dialect
        self._provider = provider
        self._built = built

    def kept(self, parts: list[Part]) -> list[Part]:
        """The parts with the state that the upstream may get, without those that are nothing without their state."""
        left: list[Part] = []
        waiting = False
        for part in parts:
            if isinstance(part, ReasoningPart) and part.summary and part.echo is None:
                waiting = True  # one of several summaries: the last one has the state of them all
                continue
            kept = self._part(part)
            if waiting and not isinstance(kept, ReasoningPart):
                self._built.drop(_REASONING)
            waiting = False
            if kept is not None:
                left.append(kept)
        if waiting:
            self._built.drop(_REASONING)
        return left

    def _part(self, part: Part) -> Part | None:
        match part:
            case TextPart():
                return part if part.echo is None else self._text(part)
            case ReasoningPart():
                return self._reasoning(part)
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart() if part.native is not None:
                return self._result(part)
        return part

    def _reasoning(self, part: ReasoningPart) -> ReasoningPart | None:
        echo = part.echo
        if echo is not None and is_native(echo, self._dialect):
            if belongs_to(echo, self._provider):
                return part
            if "field" in echo.data:  # plain text, which nobody signed; its writer's name of the field is not this upstream's
                return structs.replace(part, echo=Echo(self._provider, {"field": ""}))
        self._built.drop(_REASONING)
        return None

    def _call(self, part: ToolCallPart) -> ToolCallPart | None:
        if part.kind == "server":
            state = part.native or part.echo
            if state is not None and is_native(state, self._dialect) and belongs_to(state, self._provider):
                return part
            self._built.drop(f"messages.{part.name if state is None else _name(state)}")
            return None
        if part.native is not None and not is_native(part.native, self._dialect):
            part = structs.replace(part, native=None)
        return part if part.echo is None else self._without_foreign(part, "messages.tool_calls.state")

    def _result(self, part: ToolResultPart) -> ToolResultPart | None:
        assert part.native is not None
        if not is_native(part.native, self._dialect):
            if part.kind == "server":
                self._built.drop(f"messages.{_name(part.native)}")
                return None
            return structs.replace(part, native=None)
        if part.kind == "server" and not belongs_to(part.native, self._provider):
            self._built.drop(f"messages.{_name(part.native)}")
            return None
        return part

    def _text(self, part: TextPart) -> TextPart | None:
        kept = self._without_foreign(part, "messages.text.state")
        return kept if kept.text or kept.echo is not None else None

    def _without_foreign(self, part: _Stateful, name: str) -> _Stateful:
        echo = part.echo
        assert echo is not None
        if is_native(echo, self._dialect) and belongs_to(echo, self._provider):
            return part
        if not _ADDRESS.issuperset(echo.data):
            self._built.drop(name)
        return structs.replace(part, echo=None)


def _name(state: Echo) -> str:
    """The name of an item that only its maker knows: its type, else its first field."""
    kind = state.data.get("type")
    return kind if isinstance(kind, str) else next(iter(state.data), "state")
