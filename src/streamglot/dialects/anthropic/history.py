"""Converts the messages of a client's request: blocks to parts."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from ...events import Echo
from ...json_types import JsonObject
from ...messages import MediaPart, Message, NativePart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from ..common.conversation import add_turn, result_content
from ..fields import Fields
from ..own_tools import OWN_SERVER
from .state import LATE_TEXT, beside, is_custom, own_id, unpacked
from .wire import DIALECT, is_failure, read_citation, result_text


def parse_system(fields: Fields) -> list[Message]:
    parts = _parse_content(fields, "system")
    return [Message("system", parts)] if parts else []


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    for fields in messages:
        role = fields.need("role", str)
        if role not in ("user", "assistant", "system"):
            raise fields.wrong("role", "user or assistant or system", role)
        add_turn(parsed, role, _parse_content(fields, "content"))  # type: ignore[arg-type]  # one of the three above
    return parsed


def _parse_content(fields: Fields, name: str) -> list[Part]:
    content = fields.any(name)
    if content is None:
        return []
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    if not isinstance(content, list):
        raise fields.wrong(name, "a string or a list of blocks", content)
    parts: list[Part] = []
    for number, block in enumerate(content):
        part = parse_block(Fields(block, f"{fields.where(name)}[{number}]"), parts)
        if part is not None:
            parts.append(part)
    return parts


def parse_block(block: Fields, before: list[Part]) -> Part | None:
    """The part of this block; None if the block only has state for the previous part, or nothing."""
    body = dict(block.rest)
    kind = block.need("type", str)
    cache = parse_cache(block)
    match kind:
        case "text":
            text = block.need("text", str)
            citations = [read_citation(citation.rest) for citation in block.objects("citations")]
            return TextPart(text, citations, cache=cache) if text else None
        case "thinking":
            echo = unpacked(block.take("signature", str, ""), "signature")
            thought = block.take("thinking", str, "")
            return TextPart(thought) if echo == LATE_TEXT else ReasoningPart(thought, echo=echo)
        case "redacted_thinking":
            return _parse_redacted(block.need("data", str), before)
        case "image" | "document":
            return _parse_media(kind, block, body, cache)
        case "tool_use":
            return _parse_call(block, cache)
        case "tool_result":
            call_id, failed = own_id(block.need("tool_use_id", str)), block.take("is_error", bool, False)
            content = result_content(_parse_content(block, "content"))
            return ToolResultPart(call_id, content, failed, native=_more(block), cache=cache)
    if kind.endswith("_tool_use"):
        arguments = msgspec.json.encode(block.any("input") or {}).decode()
        call_id, name = block.need("id", str), block.need("name", str)
        if body.get("server_name") == OWN_SERVER:
            return ToolCallPart(call_id, name, arguments, "server", cache=cache)
        native = Echo(DIALECT, {"type": kind, **block.rest})
        return ToolCallPart(call_id, name, arguments, "server", native=native, cache=cache)
    if kind.endswith("_tool_result"):
        result = TextPart(result_text(body.get("content")))
        call_id = block.need("tool_use_id", str)
        if any(isinstance(part, ToolCallPart) and part.call_id == call_id and part.native is None for part in before):
            return ToolResultPart(call_id, [result], is_failure(body), kind="server")
        return ToolResultPart(call_id, [result], is_failure(body), kind="server", native=Echo(DIALECT, body))
    return NativePart(DIALECT, body, _in_words(body))


def _in_words(block: JsonObject) -> str:
    """The text of a block for models of other dialects: a tool that was found, or the results of a search."""
    match block:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return f"The tool {name} can be called now."
        case {"type": "search_result", "title": str(title), "source": str(source)}:
            return f"{title} ({source})\n{result_text(block.get('content'))}"
    return ""


def _parse_call(block: Fields, cache: str | None) -> ToolCallPart:
    given = block.take("input", dict, {})
    wire, name = block.need("id", str), block.need("name", str)
    part = ToolCallPart(own_id(wire), name, msgspec.json.encode(given).decode(), native=_more(block), cache=cache)
    if is_custom(wire) and isinstance(given.get("input"), str):
        part.kind, part.arguments = "custom", given["input"]
    return part


def _more(block: Fields) -> Echo | None:
    """The remaining fields. The vendor's own clients also send null fields."""
    rest = {name: value for name, value in block.rest.items() if value is not None}
    return Echo(DIALECT, rest) if rest else None


def parse_cache(fields: Fields) -> str | None:
    cache = fields.inner("cache_control")
    return None if cache is None else cache.take("ttl", str, "")


def _parse_redacted(data: str, before: list[Part]) -> Part | None:
    echo = unpacked(data, "data")
    state = beside(echo)
    if state is None:
        return ReasoningPart("", redacted=True, echo=echo)
    if before and isinstance(before[-1], (TextPart, ToolCallPart)):
        before[-1].echo = state
        return None
    return TextPart("", echo=state)  # of a text in white space, which is not written


def _parse_media(kind: str, block: Fields, body: JsonObject, cache: str | None) -> Part:
    """An image or a document. One with further options (citations, a context) stays native to this dialect."""
    source = block.inner("source")
    title = block.take("title", str, "")
    citations = block.take("citations", dict, {})
    if source is None or block.rest or citations.get("enabled"):
        return NativePart(DIALECT, body)
    mime = "image/*" if kind == "image" else "application/pdf"
    part = MediaPart(mime, filename=title, cache=cache)
    match source.need("type", str):
        case "base64":
            part.mime, part.data = source.take("media_type", str, mime), source.need("data", str)
        case "text":
            part.mime, part.data = "text/plain", b64encode(source.need("data", str).encode("utf-8", "replace")).decode()
        case "url":
            part.url = source.need("url", str)
        case "file":
            part.file_id = source.need("file_id", str)
        case _:
            return NativePart(DIALECT, body)
    return part
