"""``system_note``: adds a note to the system prompt."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import structs

from ...errors import ConfigError
from ...messages import Message, Request, TextPart
from ..needs import Needs
from ..policy import JudgeContext, Policy


class SystemNote(Policy, frozen=True):
    """``text`` is added after the system prompt of the request, or before it. A request that already has the note is not
    changed."""

    text: str
    position: Literal["before", "after"] = "after"

    use: ClassVar[str] = "system_note"
    title: ClassVar[str] = "Adds a note to the system prompt of each request."

    def check(self) -> None:
        if not self.text.strip():
            raise ConfigError("system_note: text is empty; set it to the note for the model")

    def needs(self) -> Needs:
        return Needs()

    def request(self, request: Request, context: JudgeContext) -> Request:
        messages = list(request.messages)
        system = [number for number, message in enumerate(messages) if message.role in ("system", "developer")]
        if any(part.text == self.text for number in system for part in messages[number].parts if isinstance(part, TextPart)):
            return request
        note = TextPart(self.text)
        if not system:
            messages.insert(0, Message("system", [note]))
        else:
            place = system[0]
            parts = messages[place].parts
            added = [note, *parts] if self.position == "before" else [*parts, note]
            messages[place] = structs.replace(messages[place], parts=added)
        return structs.replace(request, messages=messages)
