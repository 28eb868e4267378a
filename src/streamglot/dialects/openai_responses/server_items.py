"""Items that are calls of the provider's own tools: what they are called, what they were given, what came of them."""

from __future__ import annotations

from typing import Any, Final

from ...events import Citation, Echo, Media
from .wire import json_text, whole_number, word

_GIVEN: Final = ("action", "queries", "code", "container_id", "operation", "input")
"""The fields that hold what a tool was given, where it is not one text of arguments."""
_FAILED: Final = ("failed", "incomplete")


def name_of(item: dict[str, Any]) -> str:
    """``web_search_call`` is a call of ``web_search``; a remote tool has a name of its own."""
    return word(item, "name") or word(item, "type").removesuffix("_call") or "tool"


def arguments_of(item: dict[str, Any]) -> str:
    """What the tool was given, as JSON."""
    if item.get("arguments") is not None:
        return json_text(item["arguments"])
    given = {name: item[name] for name in _GIVEN if item.get(name)}
    return json_text(given) if given else ""


def result_of(item: dict[str, Any]) -> tuple[str, bool]:
    """What came of a call, as text, and whether it is an error."""
    error = item.get("error")
    if error:
        return (word(error, "message") if isinstance(error, dict) else "") or json_text(error), True
    told = next((item[name] for name in ("output", "outputs", "results", "result", "tools") if item.get(name)), None)
    return _text_of(told), item.get("status") in _FAILED


def image_of(item: dict[str, Any]) -> Media | None:
    data = word(item, "result")
    return Media(f"image/{word(item, 'output_format') or 'png'}", data, id=word(item, "id")) if data else None


def read_annotation(annotation: dict[str, Any], provider: str) -> Citation:
    return Citation(
        word(annotation, "url"),
        word(annotation, "title", "filename"),
        start=whole_number(annotation.get("start_index")),
        end=whole_number(annotation.get("end_index")),
        native=Echo(provider, annotation),
    )


def _text_of(told: object) -> str:
    """Plain text where the entries are texts, logs or what a shell printed; JSON otherwise."""
    if isinstance(told, list):
        said = [_entry_text(entry) if isinstance(entry, dict) else None for entry in told]
        if all(text is not None for text in said):
            return "".join(text for text in said if text is not None)
    return json_text(told)


def _entry_text(entry: dict[str, Any]) -> str | None:
    if "stdout" in entry or "stderr" in entry:
        return word(entry, "stdout") + word(entry, "stderr")
    for name, kinds in (("logs", ("logs",)), ("text", ("text", "input_text", "output_text"))):
        if entry.get("type") in kinds and isinstance(entry.get(name), str):
            return str(entry[name])
    return None
