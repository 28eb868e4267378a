"""Images, documents, audio and video: Converse has a kind and a format instead of a MIME type."""

from __future__ import annotations

import re
from typing import Final

from ...errors import Unsupported
from ...json_types import JsonObject
from ...messages import MediaPart, NativePart
from ..fields import Fields
from .wire import DIALECT, blob

MIME_OF: Final[dict[str, dict[str, str]]] = {
    "image": {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mp4": "video/mp4",
        "mov": "video/quicktime",
        "mkv": "video/x-matroska",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mp3",
        "wav": "audio/wav",
        "opus": "audio/opus",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "ogg": "audio/ogg",
        "m4a": "audio/m4a",
        "webm": "audio/webm",
        "pcm": "audio/pcm",
        "mp4": "audio/mp4",
        "mpeg": "audio/mpeg",
    },
}
KINDS: Final = tuple(MIME_OF)
_FORMAT_OF: Final = {mime: (kind, format) for kind, formats in MIME_OF.items() for format, mime in formats.items()} | {
    "image/jpg": ("image", "jpeg"),
    "audio/x-wav": ("audio", "wav"),
}
_NAME_SIGNS: Final = re.compile(r"[^A-Za-z0-9()\[\] -]+")
_NAME_CHARS: Final = 200


def parse_media(kind: str, block: Fields) -> MediaPart | NativePart:
    """A block of one of ``KINDS``. One with further options (a context, citations) stays native."""
    whole = dict(block.rest)
    format = block.take("format", str, "txt" if kind == "document" else "")
    source = Fields(block.any("source"), block.where("source"))
    part = MediaPart(MIME_OF[kind].get(format, f"{kind}/{format}"), filename=block.take("name", str, ""))
    part.data = source.take("bytes", str, "")
    text, place = source.take("text", str), source.inner("s3Location")
    if text is not None:
        part.data = blob(text)
    if place is not None:
        part.url = place.need("uri", str)
    if block.rest or source.rest or (place is not None and place.rest):
        return NativePart(DIALECT, {kind: whole})
    return part


def build_media(part: MediaPart, number: int) -> JsonObject:
    """``number`` makes the names of documents unique, which the service requires."""
    mime = part.mime.partition(";")[0]
    if mime not in _FORMAT_OF:
        raise Unsupported(f"media of the type {part.mime!r} cannot be sent to Converse; it takes {', '.join(_FORMAT_OF)}")
    kind, format = _FORMAT_OF[mime]
    if part.data:
        source: JsonObject = {"bytes": part.data}
    elif part.url.startswith("s3://"):
        source = {"s3Location": {"uri": part.url}}
    else:
        raise Unsupported(f"a medium by its URL ({part.url or part.file_id}) cannot be sent to Converse; send its content")
    body: JsonObject = {"format": format, "source": source}
    if kind == "document":
        stem = part.filename.rpartition(".")[0] or part.filename
        plain = " ".join(_NAME_SIGNS.sub(" ", stem).split())
        body["name"] = plain[:_NAME_CHARS] if plain else f"document {number}"
    return {kind: body}
