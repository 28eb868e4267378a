"""Media in requests: ``data:`` URLs and their content."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote_to_bytes

from ..json_types import JsonObject
from ..messages import MediaPart
from .fields import Fields

_BEGINNINGS = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""How the base64 of images begins."""


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


def image_type(data: str, unknown: str) -> str:
    """The type of an image by the first bytes of its base64; ``unknown`` if they show none."""
    return next((mime for start, mime in _BEGINNINGS.items() if data.startswith(start)), unknown)


# --- the forms that several wires share


def parse_image(part: Fields) -> MediaPart:
    """The image in ``image_url``: an object with a URL, or the URL itself."""
    link = part.any("image_url")
    image = Fields({"url": link} if isinstance(link, str) else link, part.where("image_url"))
    media = media_from_url(image.need("url", str), "image/*")
    media.detail = image.take("detail", str, "")
    return media


def build_image(part: MediaPart) -> JsonObject:
    image = {"url": part.url or data_url(part)}
    if part.detail:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


def parse_audio(part: Fields) -> MediaPart:
    audio = Fields(part.any("input_audio"), part.where("input_audio"))
    return MediaPart(f"audio/{audio.take('format', str, 'wav')}", audio.need("data", str))


def build_audio(part: MediaPart) -> JsonObject:
    return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.mime.removeprefix("audio/")}}
