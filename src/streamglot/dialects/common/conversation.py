"""The messages of a request, as dialects share them: turns, tool results, and media in ``data:`` URLs.

What belongs to one turn becomes one message. Results of tools have messages of their own; in some wire formats these can hold
text only.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from ...json_types import JsonObject
from ...messages import MediaPart, Message, NativePart, Part, Role, TextPart, ToolResultPart
from .fields import Fields


def add_parts(messages: list[Message], role: Role, *parts: Part) -> Message:
    """Adds parts to the last message if it has this role, otherwise to a new one. Gives that message."""
    if not messages or messages[-1].role != role:
        messages.append(Message(role, []))
    messages[-1].parts += parts
    return messages[-1]


def add_turn(messages: list[Message], role: Role, parts: list[Part]) -> None:
    """Adds a turn of a wire on which a user's message has the results of tools: they become a message before it."""
    results = [part for part in parts if isinstance(part, ToolResultPart)] if role == "user" else []
    if results:
        messages.append(Message("tool", results))
        parts = [part for part in parts if not isinstance(part, ToolResultPart)]
    if parts or not results:
        messages.append(Message(role, parts))


def result_content(parts: Iterable[Part]) -> list[TextPart | MediaPart | NativePart]:
    """The parts that a result can have."""
    return [part for part in parts if isinstance(part, (TextPart, MediaPart, NativePart))]


def without_results(message: Message) -> tuple[list[Part], list[ToolResultPart]]:
    """The parts of a message, apart from the results in it, which other wires have in messages of their own."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    return [part for part in message.parts if not isinstance(part, ToolResultPart)] if results else message.parts, results


def add_content(turns: list[JsonObject], role: str, content: list[JsonObject], field: str = "content") -> None:
    """Adds blocks to the last turn if it has this role, otherwise as a new one: some wires demand that roles alternate."""
    if turns and turns[-1]["role"] == role:
        turns[-1][field] += content
    elif content:
        turns.append({"role": role, field: content})


def cache_mark(kind: str, ttl: str) -> JsonObject:
    """The mark up to which a prompt is cached."""
    return {"type": kind, **({"ttl": ttl} if ttl else {})}


# --- media

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


# --- results, for messages that hold text only


def failure_marked(text: str, is_error: bool) -> str:
    """The text of a result for a wire format without an error flag: a failed result begins with "Error"."""
    return f"Error: {text}" if is_error and not text.lower().startswith("error") else text


def split_results(
    results: Iterable[ToolResultPart], media_types: tuple[type[Part], ...]
) -> tuple[list[tuple[ToolResultPart, str]], list[Part]]:
    """The text of each result, and the parts of ``media_types`` of all results with a line that says which call returned them.
    They belong in a user message after the results, because models do not look for media elsewhere."""
    texts: list[tuple[ToolResultPart, str]] = []
    media: list[Part] = []
    for result in results:
        text = result.text
        shown = [part for part in result.content if isinstance(part, media_types)]
        if shown:
            media += [TextPart(f"The tool call {result.call_id} returned:"), *shown]
            text = text or "(see the next message)"
        texts.append((result, failure_marked(text, result.is_error)))
    return texts, media
