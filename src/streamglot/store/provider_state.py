"""Restores opaque provider state that a client dropped. Pure.

A provider signs its reasoning and its calls and requires the signatures in the next request; many clients drop them. The store
has the original answers. Each assistant message of a request is matched with the stored answer that it repeats, and gets back
what is missing: the ``echo`` of a part, and whole reasoning parts that have one. State that the client returned without saying
whose it is becomes the stored one, which names its maker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from ..dialects.common.state import AT, belongs_to, format_of, same_state
from ..events import Echo
from ..messages import Message, Part, ReasoningPart, Request, TextPart, ToolCallPart
from .conversation import alike, normal

EDIT_WINDOW: Final = 4
"""How many of the next stored answers are compared with an edited message."""


def restore_echoes(request: Request, stored_messages: Sequence[Message], *, provider: str = "") -> Request:
    """The request with the state of ``stored_messages``, the session's answers with the oldest first. With a ``provider``, only
    the state of that maker is restored: pass ``maker_of`` the upstream that is about to be called. The client's messages are
    kept, except that unsigned reasoning is replaced by the signed original."""
    if not stored_messages:
        return request
    answers = _Answers([_Answer(message, provider) for message in stored_messages if carries_echo(message)])
    messages = [answers.restored(message) if message.role == "assistant" else message for message in request.messages]
    same = all(new is old for new, old in zip(messages, request.messages, strict=True))
    return request if same else structs.replace(request, messages=messages)


def carries_echo(message: Message) -> bool:
    return any(echo is not None for echo in (message.echo, *map(_echo, message.parts), *map(_native, message.parts)))


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
        known = self._recognized(parts)
        matched = self._matches(parts, known)
        taken = set(known).difference(matched)
        returned = [(part, echo) for part in parts if (echo := _echo(part)) is not None]
        out: list[Part] = []
        given = 0
        last = max((*matched, *taken), default=-1)
        for place in self.left:
            if place in taken:
                continue
            if place in matched:
                out += parts[given : matched[place]]
                part = parts[matched[place]]
                elsewhere = [echo for other, echo in returned if other is not part]
                out.append(_with_echo(part, stored[place], self._provider, elsewhere))
                given = matched[place] + 1
                taken.add(place)
            elif self._is_restored(place, last):
                if not _is_among(_echo(stored[place]), [echo for _, echo in returned]):
                    out.append(stored[place])
                taken.add(place)
        out += parts[given:]
        self.left = [place for place in self.left if place not in taken]
        echo = message.echo or (self.message.echo if _belongs_to(self.message.echo, self._provider) else None)
        same = len(out) == len(parts) and all(new is old for new, old in zip(out, message.parts, strict=True))
        return message if same and echo is message.echo else Message(message.role, out, message.name, echo)

    def _recognized(self, parts: list[Part]) -> dict[int, int]:
        """Gives the reasoning in ``parts`` its stored form if its state or its text says which one it is, wherever it stands:
        some dialects have no place for it. Maps the places of these in the answer to those in the message."""
        known: dict[int, int] = {}
        for at, part in enumerate(parts):
            if not isinstance(part, ReasoningPart) or part.echo is None:
                continue
            for place in self.left:
                stored = self.message.parts[place]
                if place in known or not isinstance(stored, ReasoningPart) or stored.echo is None:
                    continue
                named = AT in part.echo.provider
                theirs = part.echo.provider == format_of(stored.echo.provider) or _belongs_to(stored.echo, self._provider)
                same_text = not named and theirs and bool(part.text.strip()) and _squeezed(part.text) == _squeezed(stored.text)
                if same_text or same_state(part.echo, stored.echo):
                    known[place] = at
                    parts[at] = part if named else _in_stored_form(part, stored)
                    break
        return known

    def _is_restored(self, place: int, last: int) -> bool:
        """Whether dropped reasoning is restored: only if it stood before a part that the message has, or at the end of the
        answer."""
        part = self.message.parts[place]
        if not isinstance(part, ReasoningPart) or not _belongs_to(part.echo, self._provider):
            return False
        return place < last or last < 0 or all(isinstance(behind, ReasoningPart) for behind in self.message.parts[place:])

    def _matches(self, parts: list[Part], known: dict[int, int]) -> dict[int, int]:
        """Maps places in the answer to places in the message, both ascending: first text and calls, then the reasoning between
        them. What is ``known`` is among it where the order is the same."""
        found: dict[int, int] = {}
        for reasoning in (False, True):
            begin = 0
            for place in self.left:
                if place in known:
                    continue
                if place in found:
                    begin = found[place] + 1
                elif isinstance(self.message.parts[place], ReasoningPart) is reasoning:
                    end = min((at for behind, at in found.items() if behind > place), default=len(parts))
                    here = next((at for at in range(begin, end) if _same(self.message.parts[place], parts[at])), None)
                    if here is not None:
                        found[place] = here
                        begin = here + 1
        for place, at in known.items():
            if all((at > other_at) is (place > other) for other, other_at in found.items()):
                found[place] = at
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
        if not any(marks) and not answer:  # an answer of reasoning alone, or of white space
            rest = range(self._begin, len(self._answers))
            return next((place for place in rest if self._answers[place].left and not self._answers[place].normal), None)
        near = range(self._begin, min(self._begin + EDIT_WINDOW, len(self._answers)))
        return next((place for place in near if self._answers[place].left and alike(self._answers[place].normal, answer)), None)


def _same(stored: Part, part: Part) -> bool:
    match stored, part:
        case ToolCallPart(), ToolCallPart():
            return (bool(stored.call_id) and stored.call_id == part.call_id) or normal([stored]) == normal([part])
        case TextPart(), TextPart():
            return normal([stored]) == normal([part]) or (bool(part.text) and alike(normal([stored]), normal([part])))
        case ReasoningPart(), ReasoningPart():
            return part.echo is None
    return False


def _is_among(echo: Echo | None, others: list[Echo]) -> bool:
    """Whether one of the others is this state."""
    return echo is not None and any(same_state(other, echo) for other in others)


def _in_stored_form(part: ReasoningPart, stored: ReasoningPart) -> ReasoningPart:
    if part.echo == stored.echo and part.text == stored.text:
        return part
    return structs.replace(part, echo=stored.echo, text=stored.text, summary=stored.summary, redacted=stored.redacted)


def _squeezed(text: str) -> bytes:
    return normal([TextPart(text)])


def _with_echo(part: Part, stored: Part, provider: str, elsewhere: list[Echo]) -> Part:
    """``elsewhere``: the state of the message's other parts, which is not repeated here."""
    echo, native = _echo(stored), _native(stored)
    if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) and echo is not None and part.echo != echo:
        if part.echo is None:
            restored = _belongs_to(echo, provider) and not _is_among(echo, elsewhere)
        else:
            restored = AT not in part.echo.provider and same_state(part.echo, echo)
        if restored and isinstance(part, ReasoningPart) and isinstance(stored, ReasoningPart):
            part = _in_stored_form(part, stored)
        elif restored:
            part = structs.replace(part, echo=echo)
    if isinstance(part, ToolCallPart) and part.native is None and _belongs_to(native, provider):
        part = structs.replace(part, native=native)
    return part


def _echo(part: Part) -> Echo | None:
    return part.echo if isinstance(part, (TextPart, ReasoningPart, ToolCallPart)) else None


def _native(part: Part) -> Echo | None:
    return part.native if isinstance(part, ToolCallPart) else None


def _belongs_to(echo: Echo | None, provider: str) -> bool:
    return echo is not None and (not provider or belongs_to(echo, provider))
