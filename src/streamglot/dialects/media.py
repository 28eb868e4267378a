"""Media in requests: ``data:`` URLs and their content."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote_to_bytes

from ..messages import MediaPart


def media_from_url(url: str, mime: str) -> MediaPart:
    """A ``data:`` URL as its content, any other URL as a reference; ``mime`` is used if the URL names no type."""
    if not url.startswith("data:"):
        return MediaPart(mime, url=url)
    head, _, data = url[5:].partition(",")
    kind, *marks = head.split(";")
    if "base64" not in marks:
        data = b64encode(unquote_to_bytes(data)).decode()
    return MediaPart(kind or mime, data)


def data_url(part: MediaPart) -> str:
    return f"data:{part.mime};base64,{part.data}"
