"""Writes a conversation as one plain prompt, for models that only continue a text.

    You are a helper.

    User: What is the capital of France?

    Assistant: Paris.

    User: And of Peru?

    Assistant:

A ``PromptTemplate`` defines the words, because models were trained on different ones.
"""

from __future__ import annotations

from msgspec import Struct

from ...errors import Unsupported
from ...messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..tool_results import failure_marked

DIALECT = "openai_completions"


class PromptTemplate(Struct, frozen=True):
    """How each turn is written: ``{text}`` is its text, ``{name}`` the tool, ``{arguments}`` its arguments. ``cue`` comes last
    and makes the model answer; ``stop`` are texts that end the answer."""

    system: str = "{text}\n\n"
    user: str = "User: {text}\n\n"
    assistant: str = "Assistant: {text}\n\n"
    call: str = "[calls {name}({arguments})]"
    result: str = "Result of {name}: {text}\n\n"
    cue: str = "Assistant:"
    stop: tuple[str, ...] = ("\n\nUser:",)


def build_prompt(messages: list[Message], template: PromptTemplate) -> str:
    names = {part.call_id: part.name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    pieces = []
    for message in messages:
        texts: list[str] = []
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                pieces.append(_result(part, names, template))
            else:
                texts.append(_part_text(part, template))
        if any(texts):
            pieces.append(_turn(message, template).replace("{text}", "".join(texts)))
    return "".join([*pieces, template.cue])


def _turn(message: Message, template: PromptTemplate) -> str:
    if message.role in ("system", "developer"):
        return template.system
    return template.assistant if message.role == "assistant" else template.user


def _part_text(part: Part, template: PromptTemplate) -> str:
    match part:
        case TextPart() | RefusalPart():
            return part.text
        case ToolCallPart():
            return template.call.replace("{name}", part.name).replace("{arguments}", part.arguments)
        case ReasoningPart():
            return ""
        case MediaPart():
            raise Unsupported(f"a file of the type {part.mime!r} cannot be put into a plain prompt")
        case _:
            raise Unsupported("a part of another dialect cannot be put into a plain prompt")


def _result(part: ToolResultPart, names: dict[str, str], template: PromptTemplate) -> str:
    if any(isinstance(piece, (MediaPart, NativePart)) for piece in part.content):
        raise Unsupported("a tool result with files cannot be put into a plain prompt")
    text = failure_marked(part.text, part.is_error)
    name = part.name or names.get(part.call_id, part.call_id)
    return template.result.replace("{name}", name).replace("{text}", text)
