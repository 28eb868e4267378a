"""The wire format: the parts of the stream. Only parts of version 6 of the client are used, because an unknown part is fatal."""

from __future__ import annotations

from typing import Final

import msgspec

from ...events import Citation, Echo, StreamError
from ...json_types import JsonObject
from ..common.state import is_native, pack, unpack
from ..common.tables import two_way

DIALECT: Final = "vercel_ui"
OURS: Final = "streamglot"
"""streamglot's key in ``providerMetadata``, which clients keep and return."""

_, FINISH_OF = two_way(
    {
        "end": ("stop",),
        "stop_sequence": ("stop",),
        "length": ("length",),
        "tool_calls": ("tool-calls",),
        "content_filter": ("content-filter",),
        "refusal": ("content-filter",),
    },
    other="other",
)

_TITLE_CHARS: Final = 80
"""Characters of a cited text that replace a missing title."""

_Shape = dict[str, type]

OWN_PARTS: Final[dict[str, _Shape]] = {
    "source-url": {"sourceId": str, "url": str},
    "source-document": {"sourceId": str, "mediaType": str, "title": str},
    "file": {"url": str, "mediaType": str},
    "message-metadata": {"messageMetadata": dict},
}
"""The whole parts that an Extra of this dialect may contain, with their required fields; parts named ``data-…`` are allowed
too."""

_OPTIONAL: Final[_Shape] = {"title": str, "filename": str, "providerMetadata": dict, "id": str, "transient": bool}


def own_part(data: JsonObject) -> JsonObject | None:
    """The part in an Extra, with valid fields only; None if it is not a complete part."""
    kind = data.get("type")
    if not isinstance(kind, str):
        return None
    required = {} if kind.startswith("data-") and "data" in data else OWN_PARTS.get(kind)
    if required is None or not all(isinstance(data.get(name), shape) for name, shape in required.items()):
        return None
    return {name: value for name, value in data.items() if name not in _OPTIONAL or isinstance(value, _OPTIONAL[name])}


def write_metadata(echo: Echo | None, native: Echo | None = None, **marks: object) -> JsonObject:
    """Opaque state and marks as the field ``providerMetadata``; empty if there are none."""
    own: JsonObject = {}
    if echo is not None and is_native(echo, DIALECT) and isinstance(echo.data.get("providerMetadata"), dict):
        own, echo = echo.data["providerMetadata"], None
    fields = {name: value for name, value in marks.items() if value is not None and value is not False and value != ""}
    if echo is not None:
        fields["echo"] = pack(echo)
    if native is not None:
        fields["native"] = pack(native)
    metadata = {**own, **({OURS: fields} if fields else {})}
    return {"providerMetadata": metadata} if metadata else {}


def read_metadata(metadata: JsonObject | None) -> tuple[Echo | None, Echo | None, JsonObject]:
    """The echo, the native form and the marks of a returned part."""
    if not metadata:
        return None, None, {}
    ours = metadata.get(OURS)
    marks = ours if isinstance(ours, dict) else {}
    packed = [unpack(value) if isinstance(value, str) else None for value in (marks.get("echo"), marks.get("native"))]
    others = {name: value for name, value in metadata.items() if name != OURS}
    echo = packed[0] or (Echo(DIALECT, {"providerMetadata": others}) if others else None)
    return echo, packed[1], marks


def write_source(event: Citation, source_id: str) -> JsonObject | None:
    """The source as a part; None if it has neither a URL nor a title nor a text."""
    place = {"start": event.start, "end": event.end, "citedText": event.cited_text}
    metadata = write_metadata(None, event.native, **place)
    if event.url:
        named = {"title": event.title} if event.title else {}
        return {"type": "source-url", "sourceId": source_id, "url": event.url, **named, **metadata}
    title = event.title or event.cited_text[:_TITLE_CHARS]
    if not title:
        return None
    return {"type": "source-document", "sourceId": source_id, "mediaType": "text/plain", "title": title, **metadata}


def write_citation(event: Citation, source: JsonObject) -> JsonObject:
    """The same source in the field that version 7 uses for citations; version 6 ignores it."""
    form = source["type"].removeprefix("source-")
    fields = {name: source[name] for name in ("url", "mediaType", "title") if name in source}
    citation: JsonObject = {"source": {"type": "source", "sourceType": form, "id": source["sourceId"], **fields}}
    if event.start is not None and event.start >= 0:
        citation["startIndex"] = event.start
    if event.end is not None and event.end >= 0:
        citation["endIndex"] = event.end
    if event.cited_text:
        citation["citedText"] = event.cited_text
    return citation


def compact_json(text: str) -> bytes | None:
    """The arguments on one line, with every digit kept; None if they are not JSON."""
    try:
        return msgspec.json.format(text.encode() if text.strip() else b"{}", indent=-1)
    except (ValueError, RecursionError):
        return None


# --- errors


def error_body(error: StreamError) -> JsonObject:
    return {"error": {"message": error.message, "code": error.code}}
