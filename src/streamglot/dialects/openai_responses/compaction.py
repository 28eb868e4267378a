"""The compaction of a conversation: a model is asked for a summary, and the summary takes the place of everything but the user's
messages. It is written into the opaque field of a ``compaction`` item, and becomes text again when the client sends the item
back."""

from __future__ import annotations

from typing import Final

import msgspec

from ...events import Echo
from ...json_types import JsonObject
from ...messages import Message, Part, ReasoningPart, Request, Response, TextPart, ToolCallPart, ToolResultPart
from ..common.state import pack, unpack
from .response import build
from .wire import string_of

PROVIDER: Final = "streamglot"
"""Whose state the summary is: ours."""
INSTRUCTION: Final = (
    "Summarize this conversation for an assistant that will continue it and sees nothing of it but your summary and the user's "
    "messages. Keep the goal, what was decided and why, what was done and found (with file names, commands and exact values), what "
    "failed, and what is left to do. Write plain text, without an introduction."
)
_HEAD: Final = "Summary of the conversation so far:\n\n"


def summary_request(request: Request) -> Request:
    """The request for the summary. Calls and results become text: many upstreams refuse them where no tools are declared."""
    messages = [Message("user" if one.role == "tool" else one.role, _as_text(one.parts), one.name) for one in request.messages]
    return msgspec.structs.replace(
        request,
        messages=[*(message for message in messages if message.parts), Message("user", [TextPart(INSTRUCTION)])],
        tools=[],
        tool_choice=None,
        parallel_tool_calls=None,
        output=None,
        stream=False,
        extra={},
        essential=[],
    )


def _as_text(parts: list[Part]) -> list[Part]:
    texts: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCallPart):
            texts.append(TextPart(f"[called {part.name} with {part.arguments}]"))
        elif isinstance(part, ToolResultPart):
            texts.append(TextPart(f"[result: {part.text}]"))
        elif not isinstance(part, ReasoningPart):
            texts.append(part)
    return texts


def build_compaction(response: Response, body: JsonObject) -> JsonObject:
    """The answer to the client: the user's messages and the summary."""
    text = "".join(choice.text for choice in response.choices)
    item = {"type": "compaction", "id": f"cmp_{response.id}", "encrypted_content": pack(Echo(PROVIDER, {"summary": text}))}
    return {
        "id": response.id,
        "object": "response.compaction",
        "created_at": response.created,
        "output": [*_user_messages(body.get("input"), response.id), item],
        "usage": build(response)["usage"],
    }


def _user_messages(given: object, id: str) -> list[JsonObject]:
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    shown = []
    for number, item in enumerate(items):
        if isinstance(item, dict) and item.get("role") == "user":
            content = item.get("content")
            parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
            fields = {"type": "message", "role": "user", "status": "completed", "content": parts}
            shown.append({"id": string_of(item, "id") or f"msg_{id}_{number}", **fields})
    return shown


def summary_message(item: JsonObject) -> Message | None:
    """The message that a ``compaction`` item stands for, if the summary in it is one of ours."""
    echo = unpack(string_of(item, "encrypted_content"))
    if echo is None or echo.provider != PROVIDER or not isinstance(echo.data.get("summary"), str):
        return None
    return Message("user", [TextPart(_HEAD + echo.data["summary"])])
