"""The messages of a Converse request, in both directions."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.conversation import add_content, add_turn, cache_mark
from ..common.function_tools import call_arguments
from ..echo import unpack
from ..fields import Fields
from .media import KINDS, build_media, parse_media
from .reader import read_citation, result_text
from .wire import DIALECT, unblob

_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_ID_SIGNS: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_ID_CHARS: Final = 64
NO_OUTPUT: Final = "(the tool gave no output)"
"""Replaces an empty result: the service refuses blank text, and a model that gets nothing repeats the call."""


# --- the client's messages


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    for fields in messages:
        role = _ROLES.get(fields.need("role", str))
        if role is None:
            raise fields.wrong("role", " or ".join(_ROLES), role)
        add_turn(parsed, role, parse_content(fields.objects("content")))
    return parsed


def parse_content(blocks: list[Fields]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        point = block.inner("cachePoint")
        if point is None:
            parts.append(_parse_block(block))
            continue
        marked = parts[-1] if parts else None
        if isinstance(marked, (TextPart, MediaPart, ToolCallPart, ToolResultPart)):
            marked.cache = point.take("ttl", str, "")
        else:
            parts.append(NativePart(DIALECT, {"cachePoint": point.rest}))
    return parts


def _parse_block(block: Fields) -> Part:
    text = block.take("text", str)
    if text is not None:
        return TextPart(text)
    for kind in KINDS:
        media = block.inner(kind)
        if media is not None:
            return parse_media(kind, media)
    call = block.inner("toolUse")
    if call is not None:
        return _parse_call(call)
    result = block.inner("toolResult")
    if result is not None:
        return _parse_result(result)
    reasoning = block.inner("reasoningContent")
    if reasoning is not None:
        return _parse_reasoning(reasoning)
    cited = block.inner("citationsContent")
    if cited is not None:
        cited_text = "".join(piece.take("text", str, "") for piece in cited.objects("content"))
        return TextPart(cited_text, [read_citation(citation.rest) for citation in cited.objects("citations")])
    return NativePart(DIALECT, block.rest)


def _parse_call(call: Fields) -> ToolCallPart:
    arguments = msgspec.json.encode(call.any("input") or {}).decode()
    part = ToolCallPart(call.need("toolUseId", str), call.need("name", str), arguments)
    kind = call.take("type", str)
    if kind == "server_tool_use":
        part.kind, part.native = "server", Echo(DIALECT, {"type": kind})
    return part


def _parse_result(result: Fields) -> ToolResultPart:
    content: list[TextPart | MediaPart | NativePart] = []
    native = dict(result.rest)
    for piece in result.objects("content"):
        media = next((kind for kind in KINDS if kind in piece.rest), None)
        if media is not None:
            content.append(parse_media(media, Fields(piece.any(media), piece.where(media))))
        elif isinstance(piece.rest.get("text"), str) or "json" in piece.rest:
            content.append(TextPart(result_text(piece.rest)))
        else:
            content.append(NativePart(DIALECT, piece.rest))
    part = ToolResultPart(result.need("toolUseId", str), content, result.take("status", str) == "error")
    if result.take("type", str) is not None:
        part.kind, part.native = "server", Echo(DIALECT, {"toolResult": native})
    return part


def _parse_reasoning(reasoning: Fields) -> ReasoningPart:
    inner = reasoning.inner("reasoningText")
    redacted = reasoning.take("redactedContent", str)
    if inner is None:
        return ReasoningPart("", redacted=True, echo=_echo("redactedContent", redacted))
    return ReasoningPart(inner.take("text", str, ""), echo=_echo("signature", inner.take("signature", str)))


def _echo(name: str, value: str | None) -> Echo | None:
    if not value:
        return None
    return unpack(unblob(value) if name == "redactedContent" else value) or Echo(DIALECT, {name: value})


# --- the upstream's messages


class History:
    """Builds the messages for the upstream. Turns must alternate, so adjacent messages of one role are merged."""

    def __init__(self) -> None:
        self.system: list[JsonObject] = []
        self.messages: list[JsonObject] = []
        self.called: dict[str, None] = {}
        """The tools that were called so far. The service requires their declarations."""
        self._documents = 0

    def add(self, message: Message) -> None:
        blocks = [block for part in message.parts for block in self._part(part)]
        if message.role in ("system", "developer"):
            self.system += blocks
            return
        add_content(self.messages, "assistant" if message.role == "assistant" else "user", blocks)

    def _part(self, part: Part) -> list[JsonObject]:
        block = self._block(part)
        if block is None:
            return []
        cache = getattr(part, "cache", None)
        if cache is None:
            return [block]
        return [block, {"cachePoint": cache_mark("default", cache)}]

    def _block(self, part: Part) -> JsonObject | None:
        match part:
            case TextPart() | RefusalPart():
                return {"text": part.text} if part.text.strip() else None
            case MediaPart():
                self._documents += 1
                return build_media(part, self._documents)
            case ReasoningPart():
                return self._reasoning(part)
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart():
                return self._result(part)
            case NativePart(dialect="bedrock_converse"):
                return part.data
        raise Unsupported(f"a part of the dialect {part.dialect!r} cannot be sent to Converse")

    def _reasoning(self, part: ReasoningPart) -> JsonObject | None:
        """Reasoning returns with its proof."""
        if part.echo is None:
            return None
        data = part.echo.data
        if part.redacted and "redactedContent" in data:
            return {"reasoningContent": {"redactedContent": data["redactedContent"]}}
        return {"reasoningContent": {"reasoningText": {"text": part.text, **data}}}

    def _call(self, part: ToolCallPart) -> JsonObject | None:
        call = {"toolUseId": tool_use_id(part.call_id), "name": part.name, "input": call_arguments(part)}
        if part.kind == "server":
            if part.native is None:
                return None
            return {"toolUse": {**call, **part.native.data}}
        self.called[part.name] = None
        return {"toolUse": call}

    def _result(self, part: ToolResultPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        if own is not None or part.kind == "server":
            return own
        content = [block for piece in part.content for block in self._part(piece)]
        body: JsonObject = {"toolUseId": tool_use_id(part.call_id), "content": content or [{"text": NO_OUTPUT}]}
        if part.is_error:
            body["status"] = "error"
        return {"toolResult": body}


def tool_use_id(call_id: str) -> str:
    """The id with the characters and the length that the service accepts; the call and its result change in the same way."""
    return _ID_SIGNS.sub("_", call_id)[-_ID_CHARS:]
