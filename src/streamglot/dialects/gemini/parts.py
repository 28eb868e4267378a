"""The parts of a message in both directions: signatures, citations, media, and the parts of tools that the provider hosts.

``thoughtSignature`` is opaque base64 on any part, and must be returned on the same part. Its Echo has the signature and its place
in the block: ``offset`` is where the signed part begins, if unsigned text of the same block came before it; ``thought`` is set if
the signed part was of the other kind than its block (an empty answer part after reasoning); ``next`` means that it belongs to the
following medium.

Positions in a text count UTF-8 bytes here and characters in the events. If a tool of ours answers a tool that the client expects
its provider to host, the call becomes parts and metadata of the provider's own kinds.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from ...errors import RequestError, Unsupported, UpstreamProtocolError
from ...events import Citation, Echo, Event, Extra, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
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
from ..common.conversation import image_type
from ..common.lenient import clean, objects_in, string_in
from ..common.server_tools import HostedCall, own_id, sources_of
from ..common.state import is_native, pack, unpack

DIALECT: Final = "gemini"
# --- signatures

SIGNATURE: Final = "thoughtSignature"
_MARK: Final = b"sglot1."
_STANDARD: Final = str.maketrans("-_", "+/")


def sign(echo: Echo) -> str:
    """The signature to write for a client: our own state as it came, any other packed as base64."""
    own = echo.data.get(SIGNATURE)
    if is_native(echo, DIALECT) and isinstance(own, str):
        return own
    return base64.b64encode(pack(echo).encode()).decode()


def own_place(echo: Echo) -> JsonObject:
    """The place of a signature of this dialect; empty for any other."""
    return (
        {name: echo.data[name] for name in ("offset", "thought", "next") if name in echo.data} if SIGNATURE in echo.data else {}
    )


def read_signature(text: str, **place: object) -> Echo:
    """The echo that a client returned. Clients decode the bytes and encode them again, often in the other alphabet."""
    standard = text.translate(_STANDARD)
    try:
        content = base64.b64decode(standard + "=" * (-len(standard) % 4))
    except (ValueError, binascii.Error):
        return Echo(DIALECT, {SIGNATURE: text, **place})
    foreign = unpack(content.decode("ascii", "replace")) if content.startswith(_MARK) else None
    return foreign or Echo(DIALECT, {SIGNATURE: standard, **place})


Sign = Callable[[Echo], str | None]
"""Returns the signature to write for an echo, or None if it has none."""

# --- parts

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
    signed = {**_text(tail, place.get("thought", thought) is True), SIGNATURE: signature}
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
                made[0][SIGNATURE] = following
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
        return [{"functionCall": call, **({SIGNATURE: signature} if signature is not None else {})}]

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


# --- citations


class Offsets:
    """Converts positions: the text of one answer in pieces. A piece is measured once, and only if a position is requested."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._byte_ends: list[int] = []
        self._char_ends: list[int] = []
        self.add = self._pieces.append

    def characters(self, place: int) -> int:
        """The character at this byte."""
        self._measure()
        number = bisect_left(self._byte_ends, place)
        if number == len(self._pieces):
            return self._char_ends[-1] if self._char_ends else 0
        before = self._byte_ends[number - 1] if number else 0
        chars = self._char_ends[number - 1] if number else 0
        return chars + len(_utf8(self._pieces[number])[: place - before].decode("utf-8", "ignore"))

    def bytes(self, place: int) -> int:
        """The byte at which this character begins."""
        self._measure()
        number = bisect_left(self._char_ends, place)
        if number == len(self._pieces):
            return self._byte_ends[-1] if self._byte_ends else 0
        before = self._char_ends[number - 1] if number else 0
        size = self._byte_ends[number - 1] if number else 0
        return size + len(_utf8(self._pieces[number][: place - before]))

    def _measure(self) -> None:
        for piece in self._pieces[len(self._byte_ends) :]:
            self._byte_ends.append((self._byte_ends[-1] if self._byte_ends else 0) + len(_utf8(piece)))
            self._char_ends.append((self._char_ends[-1] if self._char_ends else 0) + len(piece))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


_SOURCES: Final = ("web", "retrievedContext", "maps", "image")


class CitationReader:
    """The citations of one candidate. Metadata may be repeated, longer each time; nothing is emitted twice."""

    def __init__(self) -> None:
        self.text = Offsets()
        self.base = 0
        """Where the newest text block begins in the whole text of the candidate."""
        self._emitted: set[tuple[str, str, str, int | None, int | None]] = set()

    def read(self, citation_metadata: object, grounding_metadata: object) -> Iterator[Citation]:
        for citation in (*self._cited(citation_metadata), *self._grounded(grounding_metadata)):
            key = (citation.url, citation.title, citation.cited_text, citation.start, citation.end)
            if key not in self._emitted:
                self._emitted.add(key)
                yield citation

    def _cited(self, metadata: object) -> Iterator[Citation]:
        for entry in _objects(metadata, "citations") + _objects(metadata, "citationSources"):
            start, end = self._place(entry)
            yield Citation(string_in(entry, "uri"), string_in(entry, "title"), "", start, end, Echo(DIALECT, {"citation": entry}))

    def _grounded(self, metadata: object) -> Iterator[Citation]:
        chunks = metadata.get("groundingChunks") if isinstance(metadata, dict) else None
        if not isinstance(chunks, list):
            return
        used: set[int] = set()
        for support in _objects(metadata, "groundingSupports"):
            segment = support.get("segment")
            start, end = self._place(segment) if isinstance(segment, dict) else (None, None)
            indices = support.get("groundingChunkIndices")
            for number in indices if isinstance(indices, list) else ():
                if isinstance(number, int) and 0 <= number < len(chunks):
                    used.add(number)
                    yield from _source(chunks[number], start, end)
        for number, chunk in enumerate(chunks):
            if number not in used:
                yield from _source(chunk)

    def _place(self, entry: JsonObject) -> tuple[int | None, int | None]:
        """Converts byte offsets to character offsets. The wire omits a start of 0."""
        start, end = entry.get("startIndex", 0), entry.get("endIndex", -1)
        if not _is_place(start) or not _is_place(end):
            return None, None
        first, last = self.text.characters(start) - self.base, self.text.characters(end) - self.base
        return (first, last) if 0 <= first <= last else (None, None)


def _source(chunk: object, start: int | None = None, end: int | None = None) -> Iterator[Citation]:
    for kind in _SOURCES:
        source = chunk.get(kind) if isinstance(chunk, dict) else None
        if isinstance(source, dict):
            url = string_in(source, "uri") or string_in(source, "sourceUri")
            native = Echo(DIALECT, {"groundingChunk": chunk})
            yield Citation(url, string_in(source, "title"), string_in(source, "text"), start, end, native)


def write_citation(citation: Citation, text: Offsets, base: int = 0) -> JsonObject | None:
    """An entry of ``citationSources``, which every client reads. None if the metadata contains it already, or there is no source
    to name."""
    if citation.native is not None and is_native(citation.native, DIALECT):
        return None
    entry: JsonObject = {"uri": citation.url} if citation.url else {}
    if citation.title:
        entry["title"] = citation.title
    if entry and citation.start is not None and citation.end is not None:
        entry["startIndex"], entry["endIndex"] = text.bytes(base + citation.start), text.bytes(base + citation.end)
    return entry or None


def _objects(metadata: object, name: str) -> list[JsonObject]:
    return objects_in(metadata.get(name)) if isinstance(metadata, dict) else []


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- tools that the client expects its provider to host, answered by a tool of ours

_TOOL_TYPES: Final = {"googleSearch": "GOOGLE_SEARCH_WEB", "urlContext": "URL_CONTEXT", "fileSearch": "FILE_SEARCH"}
_CALLS_SHOWN: Final = "toolConfig.includeServerSideToolInvocations"
"""The field of a request that asks for calls of the provider's tools as parts."""


def hosted_events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    call_id = own_id("", call.call_id)
    if call.name == "codeExecution":
        outcome = "OUTCOME_FAILED" if call.is_error else "OUTCOME_OK"
        code = {"id": call_id, "language": "PYTHON", "code": call.code}
        result = {"id": call_id, "outcome": outcome, "output": call.text}
        return _hosted_parts(call, call_id, {"executableCode": code}, {"codeExecutionResult": result})
    tool_type = _TOOL_TYPES.get(call.name)
    if tool_type is None:
        return None
    shown: list[Event] = []
    if call.options.get(_CALLS_SHOWN):
        tool_call = {"id": call_id, "toolType": tool_type, "args": dict(call.arguments)}
        answer: JsonObject = {
            "id": call_id,
            "toolType": tool_type,
            "response": {"error" if call.is_error else "output": call.text},
        }
        shown = _hosted_parts(call, call_id, {"toolCall": tool_call}, {"toolResponse": answer})
    return [*shown, Extra(DIALECT, {"candidate": _hosted_metadata([*call.earlier, call])})]


def _hosted_parts(call: HostedCall, call_id: str, call_part: JsonObject, result: JsonObject) -> list[Event]:
    return [
        ToolCallStart(call_id, call.name, "server", Echo(DIALECT, call_part)),
        ToolCallDelta(msgspec.json.encode(call.arguments).decode()),
        ToolCallEnd(),
        ToolResult(call_id, call.text, call.is_error, Echo(DIALECT, result)),
    ]


def _hosted_metadata(calls: list[HostedCall]) -> JsonObject:
    """The searches and pages of all calls so far: the last metadata of an answer counts."""
    metadata: JsonObject = {}
    searches = [call for call in calls if call.name in ("googleSearch", "fileSearch")]
    if searches:
        sources = [source for call in searches if not call.is_error for source in sources_of(call.text)]
        chunks = [{"web": {"uri": source.url, "title": source.title}} for source in sources]
        queries = [call.query for call in searches if call.name == "googleSearch"]
        metadata["groundingMetadata"] = {"webSearchQueries": queries, "groundingChunks": chunks}
    read = [call for call in calls if call.name == "urlContext"]
    if read:
        status = ("URL_RETRIEVAL_STATUS_SUCCESS", "URL_RETRIEVAL_STATUS_ERROR")
        entries = [{"retrievedUrl": call.query, "urlRetrievalStatus": status[call.is_error]} for call in read]
        metadata["urlContextMetadata"] = {"urlMetadata": entries}
    return metadata
