"""Opaque state that a client dropped, put back. Pure.

A provider signs its reasoning and its calls and wants the signatures back; many clients do not keep them. The answers as they
were are in the store, so an assistant's message in a request is matched with the answer that it is an echo of, and gets
back what is missing: the ``echo`` of a part, and whole parts of reasoning that carry one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from ..events import Echo
from ..messages import Message, Part, ReasoningPart, Request, TextPart, ToolCallPart
from .conversation import alike, normal

NEAR: Final = 4
"""An edited echo is looked for among so many answers: it is one of the next, or it is lost."""


def restore_echoes(request: Request, stored_messages: Sequence[Message], *, provider: str = "") -> Request:
    """The request with what ``stored_messages`` (the session's answers, oldest first) know of it. With a ``provider`` only
    its own state is put back: pass the one that is about to be asked. What the client sent stays, but for reasoning
    without its signature: that becomes the signed one."""
    if not stored_messages:
        return request
    answers = _Answers([_Answer(message, provider) for message in stored_messages if carries_echo(message, provider)])
    messages = [answers.restored(message) if message.role == "assistant" else message for message in request.messages]
    same = all(new is old for new, old in zip(messages, request.messages, strict=True))
    return request if same else structs.replace(request, messages=messages)


def carries_echo(message: Message, provider: str = "") -> bool:
    return any(_kept(echo, provider) for echo in (message.echo, *map(_echo, message.parts), *map(_native, message.parts)))


class _Answer:
    """One answer as it was given. A part of it goes back once, even if the client made two messages of it."""

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
            elif self._goes_back(place, last):
                out.append(stored[place])
                taken.add(place)
        out += parts[given:]
        self.left = [place for place in self.left if place not in taken]
        echo = message.echo or (self.message.echo if _kept(self.message.echo, self._provider) else None)
        same = len(out) == len(parts) and all(new is old for new, old in zip(out, parts, strict=True))
        return message if same and echo is message.echo else Message(message.role, out, message.name, echo)

    def _goes_back(self, place: int, last: int) -> bool:
        """Reasoning that the client dropped stood before something that is here, or at the end of all."""
        part = self.message.parts[place]
        if not isinstance(part, ReasoningPart) or not _kept(part.echo, self._provider):
            return False
        return place < last or last < 0 or all(isinstance(behind, ReasoningPart) for behind in self.message.parts[place:])

    def _matches(self, parts: list[Part]) -> dict[int, int]:
        """Place in the answer to place in the message, both rising: first what was said, then the reasoning in between."""
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
    """Finds the answer that a message is an echo of: by the id of a call, else by what it says, else by what it nearly says.
    Answers are met in their order; one before the last that was met is the second choice."""

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
        said = normal(message.parts)
        marks: list[str | bytes] = [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
        for mark in [*marks, said]:
            places = [place for place in self._places.get(mark, ()) if self._answers[place].left]
            if mark and places:
                return next((place for place in places if place >= self._begin), places[0])
        near = range(self._begin, min(self._begin + NEAR, len(self._answers)))
        return next((place for place in near if self._answers[place].left and alike(self._answers[place].normal, said)), None)


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
    if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) and part.echo is None and _kept(echo, provider):
        part = structs.replace(part, echo=echo)
        if isinstance(part, ReasoningPart) and isinstance(stored, ReasoningPart):
            part = structs.replace(part, text=stored.text, summary=stored.summary, redacted=stored.redacted)
    if isinstance(part, ToolCallPart) and part.native is None and _kept(native, provider):
        part = structs.replace(part, native=native)
    return part


def _echo(part: Part) -> Echo | None:
    return part.echo if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) else None


def _native(part: Part) -> Echo | None:
    return part.native if isinstance(part, ToolCallPart) else None


def _kept(echo: Echo | None, provider: str) -> bool:
    return echo is not None and (not provider or echo.provider == provider)
