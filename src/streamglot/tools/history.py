"""Calls that our loop ran, in the history that a client brings back.

``with_own_calls`` puts them into the form in which a provider knows them. ``MixedTurns`` remembers turns in which a model
called tools of ours and of the client's at once: the client's next request has the results of its own calls only, because most
dialects have no form for a call that the server ran. Ours are put back by the ids of the client's calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from ..dialects.common.server_tools import is_own_id
from ..messages import Message, Part, Request, Response, ResponseChoice, ToolCallPart, ToolResultPart
from ..stages import messages_of


def with_own_calls(request: Request) -> Request:
    """The request as a provider knows its conversation: calls that a loop ran are calls of functions, followed by their
    results. A request that declares no tools loses them, because some providers refuse calls without declared tools."""
    if not _has_calls(request.messages):
        return request
    request = _without_hosted(request)
    if not any(_of_loop(part) for message in request.messages for part in message.parts):
        return request
    messages: list[Message] = []
    for message in request.messages:
        ours = {part.call_id for part in message.parts if isinstance(part, ToolCallPart) and _of_loop(part)}
        if not ours:
            messages.append(message)
        elif request.tools:
            messages += messages_of(Response(choices=[ResponseChoice(0, message.parts)]))
        else:
            rest = [
                part for part in message.parts if not (isinstance(part, (ToolCallPart, ToolResultPart)) and part.call_id in ours)
            ]
            messages += [structs.replace(message, parts=rest)] if rest else []
    return structs.replace(request, messages=messages)


def _without_hosted(request: Request) -> Request:
    """Calls that were shown in the form of a provider's own tools are left out: no provider knows them. The text of the answer
    that used them stays."""
    if not any(_is_hosted(part) for message in request.messages for part in message.parts):
        return request
    left = [
        structs.replace(message, parts=[part for part in message.parts if not _is_hosted(part)]) for message in request.messages
    ]
    return structs.replace(request, messages=[message for message in left if message.parts])


def _has_calls(messages: list[Message]) -> bool:
    for message in messages:
        for part in message.parts:
            if isinstance(part, (ToolCallPart, ToolResultPart)):
                return True
    return False


def _is_hosted(part: Part) -> bool:
    return isinstance(part, (ToolCallPart, ToolResultPart)) and is_own_id(part.call_id)


def _of_loop(part: Part) -> bool:
    return isinstance(part, ToolCallPart) and part.kind == "server" and part.native is None


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
