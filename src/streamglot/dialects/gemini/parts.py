"""Converts message parts to parts of this wire format, for responses to clients and for history to upstreams."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final

import msgspec

from ...errors import RequestError, Unsupported, UpstreamProtocolError
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    MediaPart,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..echo import is_native
from ..lenient import clean
from ..media import image_type
from .signature import DIALECT, FIELD, own_place

Sign = Callable[[Echo], str | None]
"""Returns the signature to write for an echo, or None if it has none."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*")
NATIVE_PARTS: Final = frozenset(("executableCode", "codeExecutionResult", "toolCall", "toolResponse", "functionResponse"))
_RESOLUTIONS: Final = {"low": "MEDIA_RESOLUTION_LOW", "medium": "MEDIA_RESOLUTION_MEDIUM", "high": "MEDIA_RESOLUTION_HIGH"}


def arguments_object(text: str) -> JsonObject | None:
    """The arguments of a call as an object; None if they are not one."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        try:
            value = clean(json.loads(text))
        except (ValueError, RecursionError, UpstreamProtocolError):
            return None
    return value if isinstance(value, dict) else None


def arguments_line(text: str) -> bytes | None:
    """The same as JSON on one line. It is kept as written, so that numbers keep their digits: JSON allows line breaks only
    between tokens, where a space is equivalent."""
    value = arguments_object(text)
    if not value:
        return None if value is None else b"{}"
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value)
    return text.strip().replace("\r", " ").replace("\n", " ").encode()


def whole_base64(data: str) -> str | None:
    """The data as strict decoders require it: standard alphabet, padding, no stray bits. None if it is not base64."""
    bare = data.rstrip("=").replace("-", "+").replace("_", "/")
    rest = len(bare) % 4
    if rest == 1 or not _BASE64.fullmatch(bare):
        return None
    if not rest:
        return bare
    return bare[:-rest] + b64encode(b64decode(bare[-rest:] + "=" * (4 - rest))).decode()


def is_native_part(native: Echo | None) -> bool:
    """Whether this is a part that only this dialect has."""
    return native is not None and is_native(native, DIALECT) and not NATIVE_PARTS.isdisjoint(native.data)


def signed_text(text: str, thought: bool, echo: Echo | None, sign: Sign) -> list[JsonObject]:
    """A text as one part, or as two if only its end was signed: a signature stays on its part."""
    signature = sign(echo) if echo is not None else None
    if echo is None or signature is None:
        return [_text(text, thought)] if text else []
    place = own_place(echo)
    offset = place.get("offset", 0)
    head, tail = (text[:offset], text[offset:]) if isinstance(offset, int) and offset > 0 else ("", text)
    signed = {**_text(tail, place.get("thought", thought) is True), FIELD: signature}
    return [_text(head, thought), signed] if head else [signed]


class PartBuilder:
    """``calls`` maps the ids of calls to names, because results are matched by name. ``malformed`` collects the names of calls
    whose arguments are not an object; they are left out."""

    def __init__(self, sign: Sign, *, ids: bool = True, malformed: list[str] | None = None) -> None:
        self._sign = sign
        self._ids = ids
        self._malformed = malformed
        self._names: dict[str, str] = {}

    def build(self, parts: list[Part]) -> list[JsonObject]:
        built: list[JsonObject] = []
        following: str | None = None
        for part in parts:
            if isinstance(part, ReasoningPart) and part.echo is not None and own_place(part.echo).get("next"):
                following = self._sign(part.echo)
                continue
            made = self._build(part)
            if following is not None and made:
                made[0][FIELD] = following
                following = None
            built += made
        return built

    def _build(self, part: Part) -> list[JsonObject]:
        match part:
            case TextPart():
                return signed_text(part.text, False, part.echo, self._sign)
            case RefusalPart():
                return [_text(part.text, False)] if part.text else []
            case ReasoningPart():
                return signed_text(part.text, True, part.echo, self._sign)
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart():
                return self._result(part)
            case MediaPart():
                return [build_media(part)]
            case NativePart(dialect="gemini"):
                return [dict(part.data)]
        raise Unsupported(f"a part of the dialect {part.dialect} cannot be expressed in this one")

    def _call(self, part: ToolCallPart) -> list[JsonObject]:
        if part.kind == "server":
            return self._native(part.native)
        self._names[part.call_id] = part.name
        arguments = {"input": part.arguments} if part.kind == "custom" else arguments_object(part.arguments)
        if arguments is None or (not part.complete and self._malformed is not None):
            if self._malformed is not None:
                self._malformed.append(part.name)
                return []
            arguments = {"input": part.arguments}
        call: JsonObject = {"name": part.name, "args": arguments}
        if self._ids:
            call = {"id": part.call_id, **call}
        signature = self._sign(part.echo) if part.echo is not None else None
        return [{"functionCall": call, **({FIELD: signature} if signature is not None else {})}]

    def _native(self, native: Echo | None) -> list[JsonObject]:
        return [dict(native.data)] if native is not None and is_native_part(native) else []

    def _result(self, part: ToolResultPart) -> list[JsonObject]:
        if part.kind == "server" or is_native_part(part.native):
            return self._native(part.native)
        name = part.name or self._names.get(part.call_id)
        if not name:
            raise RequestError(
                f"the result of the call {part.call_id!r} names no tool, and the conversation does not contain the call"
            )
        response: JsonObject = {"name": name, "response": _response(part)}
        media = [build_media(inner) for inner in part.content if isinstance(inner, MediaPart)]
        if media:
            response["parts"] = media
        if self._ids:
            response = {"id": part.call_id, **response}
        return [{"functionResponse": response}]


def _response(part: ToolResultPart) -> JsonObject:
    """The object of a result: the tool's own, or its text under the key that the API defines."""
    if part.is_error:
        return {"error": part.text}
    value = arguments_object(part.text) if part.text.lstrip().startswith("{") else None
    return {"output": part.text} if value is None else value


def build_media(part: MediaPart) -> JsonObject:
    body: JsonObject
    if part.data:
        mime = part.mime
        if not mime or mime.endswith("/*"):
            # This wire format needs the exact type, but clients may only say that it is an image.
            mime = mime.replace("image/*", "image/png").replace("audio/*", "audio/wav") or "application/octet-stream"
            mime = image_type(part.data, mime)
        body = {"inlineData": {"mimeType": mime, "data": part.data}}
    elif part.url or "/" in part.file_id:
        known = {} if not part.mime or part.mime.endswith("/*") else {"mimeType": part.mime}
        body = {"fileData": {**known, "fileUri": part.url or part.file_id}}
    else:
        raise Unsupported(f"the file {part.file_id!r} belongs to another provider; send its content or its URL")
    if part.detail in _RESOLUTIONS:
        body["mediaResolution"] = {"level": _RESOLUTIONS[part.detail]}
    return body


def _text(text: str, thought: bool) -> JsonObject:
    return {"text": text, "thought": True} if thought else {"text": text}
