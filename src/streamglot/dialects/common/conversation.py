"""Builds the messages of a request: what belongs to one turn becomes one message, and results of tools have messages of their own."""

from __future__ import annotations

from collections.abc import Iterable

from ...json_types import JsonObject
from ...messages import MediaPart, Message, NativePart, Part, Role, TextPart, ToolResultPart


def add_parts(messages: list[Message], role: Role, *parts: Part) -> Message:
    """Adds parts to the last message if it has this role, otherwise to a new one. Gives that message."""
    if not messages or messages[-1].role != role:
        messages.append(Message(role, []))
    messages[-1].parts += parts
    return messages[-1]


def add_turn(messages: list[Message], role: Role, parts: list[Part]) -> None:
    """Adds a turn of a wire on which a user's message has the results of tools: they become a message before it."""
    results = [part for part in parts if isinstance(part, ToolResultPart)] if role == "user" else []
    if results:
        messages.append(Message("tool", results))
        parts = [part for part in parts if not isinstance(part, ToolResultPart)]
    if parts or not results:
        messages.append(Message(role, parts))


def result_content(parts: Iterable[Part]) -> list[TextPart | MediaPart | NativePart]:
    """The parts that a result can have."""
    return [part for part in parts if isinstance(part, (TextPart, MediaPart, NativePart))]


def without_results(message: Message) -> tuple[list[Part], list[ToolResultPart]]:
    """The parts of a message, apart from the results in it, which other wires have in messages of their own."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    return [part for part in message.parts if not isinstance(part, ToolResultPart)] if results else message.parts, results


def add_content(turns: list[JsonObject], role: str, content: list[JsonObject], field: str = "content") -> None:
    """Adds blocks to the last turn if it has this role, otherwise as a new one: some wires demand that roles alternate."""
    if turns and turns[-1]["role"] == role:
        turns[-1][field] += content
    elif content:
        turns.append({"role": role, field: content})


def cache_mark(kind: str, ttl: str) -> JsonObject:
    """The mark up to which a prompt is cached."""
    return {"type": kind, **({"ttl": ttl} if ttl else {})}
