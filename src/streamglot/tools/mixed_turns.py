"""Turns in which a model called tools of ours and of the client's at once.

A client's next request has the results of its own calls. Most dialects have no form for a call that the server ran, so the
request lacks ours: they are put back from here, by the ids of the client's calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from ..messages import Message, ToolCallPart, ToolResultPart

MAX_TURNS: Final = 1024
"""Turns that are remembered. A client answers within seconds, so few turns are open at a time. If a turn is forgotten, the
model calls the same tool once more."""


class _Turn(Struct):
    calls: list[ToolCallPart]
    results: list[Message]


class MixedTurns:
    """Remembers turns for each caller (``key``), in this process only."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], _Turn] = OrderedDict()

    def remember(self, key: str, client_calls: Sequence[str], calls: list[ToolCallPart], results: list[Message]) -> None:
        self._turns[key, client_calls[0]] = _Turn(calls, results)
        while len(self._turns) > MAX_TURNS:
            self._turns.popitem(last=False)

    def restore(self, key: str, messages: list[Message]) -> list[Message]:
        """The messages with our calls and results back in their turns."""
        if not self._turns:
            return messages
        known = {part.call_id for message in messages for part in message.parts if isinstance(part, ToolResultPart)}
        restored: list[Message] = []
        for message in messages:
            turn = next(
                (
                    turn
                    for part in message.parts
                    if isinstance(part, ToolCallPart) and (turn := self._turns.get((key, part.call_id))) is not None
                ),
                None,
            )
            if turn is None or any(call.call_id in known for call in turn.calls):
                restored.append(message)
                continue
            restored.append(structs.replace(message, parts=[*message.parts, *turn.calls]))
            restored += turn.results
        return restored
