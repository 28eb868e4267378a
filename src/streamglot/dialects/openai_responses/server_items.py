"""Items that are calls of server-side tools: their names, their arguments and their results."""

from __future__ import annotations

from typing import Final

from ...events import Citation, Echo, Media
from ...json_types import JsonObject
from ..lenient import json_text
from .wire import string_of, whole_number

_GIVEN: Final = ("action", "queries", "code", "container_id", "operation", "input")
"""The fields with the input of a tool that has no ``arguments``."""
_FAILED: Final = ("failed", "incomplete")


def name_of(item: JsonObject) -> str:
    """``web_search_call`` is a call of ``web_search``; a remote tool has its own name."""
    return string_of(item, "name") or string_of(item, "type").removesuffix("_call") or "tool"


def arguments_of(item: JsonObject) -> str:
    """The input of the tool as JSON."""
    if item.get("arguments") is not None:
        return json_text(item["arguments"])
    given = {name: item[name] for name in _GIVEN if item.get(name)}
    return json_text(given) if given else ""


def result_of(item: JsonObject) -> tuple[str, bool]:
    """The result of a call as text, and whether it is an error."""
    error = item.get("error")
    if error:
        return (string_of(error, "message") if isinstance(error, dict) else "") or json_text(error), True
    output = next((item[name] for name in ("output", "outputs", "results", "result", "tools") if item.get(name)), None)
    return _text_of(output), item.get("status") in _FAILED


def image_of(item: JsonObject) -> Media | None:
    data = string_of(item, "result")
    return Media(f"image/{string_of(item, 'output_format') or 'png'}", data, id=string_of(item, "id")) if data else None


def read_annotation(annotation: JsonObject, provider: str) -> Citation:
    return Citation(
        string_of(annotation, "url"),
        string_of(annotation, "title", "filename"),
        start=whole_number(annotation.get("start_index")),
        end=whole_number(annotation.get("end_index")),
        native=Echo(provider, annotation),
    )


def _text_of(output: object) -> str:
    """Plain text if the entries are texts, logs or shell output; JSON otherwise."""
    if isinstance(output, list):
        texts = [_entry_text(entry) if isinstance(entry, dict) else None for entry in output]
        if all(text is not None for text in texts):
            return "".join(text for text in texts if text is not None)
    return json_text(output)


def _entry_text(entry: JsonObject) -> str | None:
    if "stdout" in entry or "stderr" in entry:
        return string_of(entry, "stdout") + string_of(entry, "stderr")
    for name, kinds in (("logs", ("logs",)), ("text", ("text", "input_text", "output_text"))):
        if entry.get("type") in kinds and isinstance(entry.get(name), str):
            return str(entry[name])
    return None
