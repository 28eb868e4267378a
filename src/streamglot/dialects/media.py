"""Media in requests: ``data:`` addresses and what they hold."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote_to_bytes

from ..messages import MediaPart


def media_from_url(url: str, mime: str) -> MediaPart:
    """A ``data:`` URL as the bytes it holds, any other as the address it is; ``mime`` where it does not say."""
    if not url.startswith("data:"):
        return MediaPart(mime, url=url)
    head, _, data = url[5:].partition(",")
    kind, *marks = head.split(";")
    if "base64" not in marks:
        data = b64encode(unquote_to_bytes(data)).decode()
    return MediaPart(kind or mime, data)


def data_url(part: MediaPart) -> str:
    return f"data:{part.mime};base64,{part.data}"
