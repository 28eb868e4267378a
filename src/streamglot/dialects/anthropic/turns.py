"""Builds the messages for an upstream: parts to blocks, under the API's rules for turns.

Turns of one role are merged; tool results come first in a user turn; calls come last in an assistant turn; blank text is left
out.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from ...errors import Unsupported
from ...json_types import JsonObject
from ...messages import (
    Built,
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
from ..common.conversation import add_content, cache_mark
from .own_calls import call_block
from .state import wire_id
from .wire import arguments_object, write_citation

_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_RESULT, _CALL = "tool_result", "tool_use"


class Turns:
    """Builds ``system`` and ``messages``. ``refusing``: the upstream has a version that refuses some old blocks.
    ``system_inside``: it accepts system messages among the others."""

    def __init__(self, built: Built, refusing: bool, system_inside: bool) -> None:
        self._built = built
        self._refusing = refusing
        self._system_inside = system_inside

    def add(self, messages: list[Message]) -> None:
        system: list[JsonObject] = []
        turns: list[JsonObject] = []
        for message in messages:
            role = {"developer": "system", "tool": "user"}.get(message.role, message.role)
            if message.name:
                self._built.drop("messages.name")
            if role == "system" and turns and not self._system_inside:
                self._built.drop("messages.system")
                role = "user"  # in its place, because the position has a meaning
            blocks = [block for part in message.parts for block in self._build(part, role)]
            if role == "system" and not turns:
                system += blocks
            else:
                add_content(turns, role, blocks)
        if system:
            self._built.body["system"] = _plain(system)
        for turn in turns:
            turn["content"] = _plain(_in_order(turn["content"]))
        self._built.body["messages"] = turns
        if turns and turns[-1]["role"] == "assistant":
            self._trim(turns[-1])

    def _trim(self, last: JsonObject) -> None:
        """Removes white space at the end of a turn that the model continues; the API refuses it."""
        if isinstance(last["content"], str):
            last["content"] = last["content"].rstrip()
        elif last["content"][-1]["type"] == "text":
            last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()

    # --- one part

    def _build(self, part: Part, role: str) -> list[JsonObject]:
        body: JsonObject | None = None
        match part:
            case TextPart() | RefusalPart():
                body = self._build_text(part, role)
            case ReasoningPart():
                body = self._build_reasoning(part)
            case ToolCallPart():
                body = self._build_call(part)
            case ToolResultPart():
                body = self._build_result(part)
            case MediaPart():
                body = self._build_media(part)
            case NativePart(dialect="anthropic"):
                body = dict(part.data)
            case _:
                raise Unsupported(f"a part of the dialect {part.dialect} cannot be sent to an upstream of another dialect")
        if body is None:
            return []
        if role == "assistant" and (body["type"] == "image" or (body["type"] == "document" and self._refusing)):
            self._built.drop(f"messages.assistant.{body['type']}")
            return []
        cache = getattr(part, "cache", None)
        if cache is not None:
            body["cache_control"] = cache_mark("ephemeral", cache)
        return [body]

    def _build_text(self, part: TextPart | RefusalPart, role: str) -> JsonObject | None:
        if not part.text.strip():
            return None
        body: JsonObject = {"type": "text", "text": part.text}
        written = [write_citation(citation) for citation in part.citations] if isinstance(part, TextPart) else []
        citations = [citation for citation in written if citation and citation.get("encrypted_index") != ""]
        if citations and role == "user" and self._refusing:
            self._built.drop("messages.user.citations")
        elif citations:
            body["citations"] = citations
        return body

    def _build_reasoning(self, part: ReasoningPart) -> JsonObject | None:
        if part.echo is None:
            return None
        if "data" in part.echo.data:
            return {"type": "redacted_thinking", "data": part.echo.data["data"]}
        if "signature" in part.echo.data:
            return {"type": "thinking", "thinking": part.text, "signature": part.echo.data["signature"]}
        return None

    def _build_call(self, part: ToolCallPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        return call_block(part, own, arguments_object(part.arguments))

    def _build_result(self, part: ToolResultPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        if part.kind == "server" or (own is not None and own.get("type", _RESULT) != _RESULT):
            return None if own is None else dict(own)
        body: JsonObject = {"type": _RESULT, "tool_use_id": wire_id(part.call_id), **(own or {})}
        content = [block for inner in part.content for block in self._build(inner, "user")]
        if content:
            body["content"] = _plain(content)
        if part.is_error:
            body["is_error"] = True
        return body

    def _build_media(self, part: MediaPart) -> JsonObject:
        if part.detail and part.detail != "auto":
            self._built.drop("image.detail")
        if part.mime.startswith("image/"):
            return {"type": "image", "source": _source(part, _IMAGES)}
        body = {"type": "document", "source": _source(part, ("application/pdf", "text/plain"))}
        if part.filename:
            body["title"] = part.filename
        return body


def _source(part: MediaPart, mimes: tuple[str, ...]) -> JsonObject:
    mime = part.mime
    if mime == "application/octet-stream" and part.filename.lower().endswith(".pdf"):
        mime = "application/pdf"
    elif mime.startswith("text/"):
        mime = "text/plain"
    if part.file_id:
        return {"type": "file", "file_id": part.file_id}
    if part.url and not mime.startswith(("audio/", "video/")):
        return {"type": "url", "url": part.url}
    if mime not in mimes or not part.data:
        raise Unsupported(f"a file of the type {part.mime!r} cannot be sent to the chosen upstream; it takes {', '.join(mimes)}")
    if mime == "text/plain":
        try:
            text = b64decode("".join(part.data.split()), validate=True).decode("utf-8", "replace")
        except ValueError:
            raise Unsupported("the data of a text file is not base64") from None
        return {"type": "text", "media_type": mime, "data": text}
    return {"type": "base64", "media_type": mime, "data": part.data}


def _in_order(blocks: list[JsonObject]) -> list[JsonObject]:
    """Results first, calls last, the rest in order."""
    place = {_RESULT: 0, _CALL: 2}
    return sorted(blocks, key=lambda block: place.get(block["type"], 1))


def _plain(blocks: list[JsonObject]) -> str | list[JsonObject]:
    """A single text without further fields as a string."""
    return blocks[0]["text"] if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} else blocks
