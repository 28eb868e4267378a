"""Restores opaque provider state that a client dropped. Pure.

A provider signs its reasoning and its calls and requires the signatures in the next request; many clients drop them. The store
has the original answers. Each assistant message of a request is matched with the stored answer that it repeats, and gets back
what is missing: the ``echo`` of a part, and whole reasoning parts that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from ..events import Echo
from ..messages import Message, Part, ReasoningPart, Request, TextPart, ToolCallPart
from .conversation import alike, normal

EDIT_WINDOW: Final = 4
"""How many of the next stored answers are compared with an edited message."""


def restore_echoes(request: Request, stored_messages: Sequence[Message], *, provider: str = "") -> Request:
    """Returns the request with the state of ``stored_messages``, the session's answers with the oldest first. With a
    ``provider``, only the state of that provider is restored: pass the upstream that is about to be called. The client's messages
    are kept, except that unsigned reasoning is replaced by the signed original."""
    if not stored_messages:
        return request
    answers = _Answers([_Answer(message, provider) for message in stored_messages if carries_echo(message, provider)])
    messages = [answers.restored(message) if message.role == "assistant" else message for message in request.messages]
    same = all(new is old for new, old in zip(messages, request.messages, strict=True))
    return request if same else structs.replace(request, messages=messages)


def carries_echo(message: Message, provider: str = "") -> bool:
    return any(_belongs_to(echo, provider) for echo in (message.echo, *map(_echo, message.parts), *map(_native, message.parts)))


class _Answer:
    """One stored answer. Each of its parts is restored once, even if the client split the answer into two messages."""

    def __init__(self, message: Message, provider: str) -> None:
        self.message = message
        self.calls = {part.call_id for part in message.parts if isinstance(part, ToolCallPart) and part.call_id}
        self.normal = normal(message.parts)
        self._provider = provider
        self.left = list(range(len(message.parts)))

    def restored(self, message: Message) -> Message:
        stored, parts = self.message.parts, list(message.parts)
        matched = self._matches(parts)
        out: list[Part] = []
        given = 0
        last = max(matched, default=-1)
        taken: set[int] = set()
        for place in self.left:
            if place in matched:
                out += parts[given : matched[place]]
                out.append(_with_echo(parts[matched[place]], stored[place], self._provider))
                given = matched[place] + 1
                taken.add(place)
            elif self._is_restored(place, last):
                out.append(stored[place])
                taken.add(place)
        out += parts[given:]
        self.left = [place for place in self.left if place not in taken]
        echo = message.echo or (self.message.echo if _belongs_to(self.message.echo, self._provider) else None)
        same = len(out) == len(parts) and all(new is old for new, old in zip(out, parts, strict=True))
        return message if same and echo is message.echo else Message(message.role, out, message.name, echo)

    def _is_restored(self, place: int, last: int) -> bool:
        """Whether dropped reasoning is restored: only if it stood before a part that the message has, or at the end of the
        answer."""
        part = self.message.parts[place]
        if not isinstance(part, ReasoningPart) or not _belongs_to(part.echo, self._provider):
            return False
        return place < last or last < 0 or all(isinstance(behind, ReasoningPart) for behind in self.message.parts[place:])

    def _matches(self, parts: list[Part]) -> dict[int, int]:
        """Maps places in the answer to places in the message, both ascending: first text and calls, then the reasoning between
        them."""
        found: dict[int, int] = {}
        for reasoning in (False, True):
            begin = 0
            for place in self.left:
                if place in found:
                    begin = found[place] + 1
                elif isinstance(self.message.parts[place], ReasoningPart) is reasoning:
                    end = min((at for behind, at in found.items() if behind > place), default=len(parts))
                    here = next((at for at in range(begin, end) if _same(self.message.parts[place], parts[at])), None)
                    if here is not None:
                        found[place] = here
                        begin = here + 1
        return found


class _Answers:
    """Finds the answer that a message repeats: by a call id, else by equal content, else by similar content. Answers are matched
    in order; an answer before the last match is the second choice."""

    def __init__(self, answers: list[_Answer]) -> None:
        self._answers = answers
        self._begin = 0
        self._places: dict[str | bytes, list[int]] = {}
        for place, answer in enumerate(answers):
            marks: list[str | bytes] = [*answer.calls, answer.normal]
            for mark in marks:
                if mark:
                    self._places.setdefault(mark, []).append(place)

    def restored(self, message: Message) -> Message:
        place = self._find(message) if self._answers else None
        if place is None:
            return message
        self._begin = place
        return self._answers[place].restored(message)

    def _find(self, message: Message) -> int | None:
        answer = normal(message.parts)
        marks: list[str | bytes] = [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
        for mark in [*marks, answer]:
            places = [place for place in self._places.get(mark, ()) if self._answers[place].left]
            if mark and places:
                return next((place for place in places if place >= self._begin), places[0])
        near = range(self._begin, min(self._begin + EDIT_WINDOW, len(self._answers)))
        return next((place for place in near if self._answers[place].left and alike(self._answers[place].normal, answer)), None)


def _same(stored: Part, part: Part) -> bool:
    match stored, part:
        case ToolCallPart(), ToolCallPart():
            return (bool(stored.call_id) and stored.call_id == part.call_id) or normal([stored]) == normal([part])
        case TextPart(), TextPart():
            return normal([stored]) == normal([part]) or (bool(part.text) and alike(normal([stored]), normal([part])))
        case ReasoningPart(), ReasoningPart():
            return part.echo is None or _own(part, stored)
    return False


def _own(part: ReasoningPart, stored: ReasoningPart) -> bool:
    return part.echo is not None and stored.echo is not None and part.echo.data == stored.echo.data


def _with_echo(part: Part, stored: Part, provider: str) -> Part:
    echo, native = _echo(stored), _native(stored)
    if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) and part.echo is None and _belongs_to(echo, provider):
        part = structs.replace(part, echo=echo)
        if isinstance(part, ReasoningPart) and isinstance(stored, ReasoningPart):
            part = structs.replace(part, text=stored.text, summary=stored.summary, redacted=stored.redacted)
    if isinstance(part, ToolCallPart) and part.native is None and _belongs_to(native, provider):
        part = structs.replace(part, native=native)
    return part


def _echo(part: Part) -> Echo | None:
    return part.echo if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) else None


def _native(part: Part) -> Echo | None:
    return part.native if isinstance(part, ToolCallPart) else None


def _belongs_to(echo: Echo | None, provider: str) -> bool:
    return echo is not None and (not provider or echo.provider == provider)
