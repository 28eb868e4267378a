"""``reasoning_details``: reasoning in typed entries that stream in pieces and must be returned unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...events import Echo
from ...json_types import JsonObject, JsonValue
from ..tally import json_size

ENTRY_CHARS = 500
"""Characters that an entry counts without its fields: what its containers take in memory. A server can send millions of them."""
SHOWN = ("reasoning.text", "reasoning.summary")
"""The types of entries with visible text."""
_OUR_SUMMARY = "sgsum_"
"""How the id of a summary begins that the gateway had made: it does not go back to an upstream."""
_PLACE = ("start_index", "end_index")
"""The place of an entry's text in the plain field, in characters, as in a citation. Our own fields: no provider has them."""
_TEXT_OF = {"reasoning.text": "text", "reasoning.summary": "summary", "reasoning.encrypted": "data"}


def shown(entry: JsonObject) -> tuple[str, bool]:
    """The visible text of an entry, and whether it is a summary."""
    kind = entry.get("type")
    text = entry.get("summary") if kind == "reasoning.summary" else entry.get("text")
    return (text if isinstance(text, str) else ""), kind == "reasoning.summary"


def without_text(entry: JsonObject, start: int, end: int) -> JsonObject:
    """An entry for a client that has its text in a plain field, from ``start`` to ``end``: the entry's state, and that place."""
    state = {name: value for name, value in entry.items() if name not in ("text", "summary")}
    empty = {"summary": ""} if entry.get("type") == "reasoning.summary" else {}  # strict clients demand it
    return {**state, **empty, "start_index": start, "end_index": end}


def without_texts(entries: Iterable[JsonObject], start: int) -> Iterator[JsonObject]:
    """A provider's own entries for such a client; their text begins at ``start``. Entries without state are left out."""
    for entry in entries:
        text, _ = shown(entry)
        if not text:
            yield entry
            continue
        end = start + len(text)
        if any(value is not None for name, value in entry.items() if name not in ("type", "index", "text", "summary")):
            yield without_text(entry, start, end)
        start = end


def our_summary(text: str, index: int) -> JsonObject:
    """An entry for a summary that the gateway had made."""
    return {"type": "reasoning.summary", "summary": text, "id": f"{_OUR_SUMMARY}{index}", "index": index}


def with_text(entry: JsonObject, plain: str) -> JsonObject | None:
    """The entry as it was before ``without_text``, from a client's plain field. None if the client changed that text, because a
    state with another text is refused by its provider, and None for a summary of ours."""
    if str(entry.get("id")).startswith(_OUR_SUMMARY):
        return None
    start, end = (entry.get(name) for name in _PLACE)
    if not isinstance(start, int) or not isinstance(end, int):
        return entry
    if not 0 <= start <= end <= len(plain):
        return None
    rest = {name: value for name, value in entry.items() if name not in _PLACE}
    return {**rest, _TEXT_OF[str(entry.get("type"))]: plain[start:end]} if entry.get("type") in SHOWN else rest


class ReasoningDetails:
    """Merges pieces by their index, or by type and id if they have none: text is joined, other fields are replaced."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._entries: list[tuple[JsonObject, list[str]]] = []
        self._places: dict[tuple[JsonValue, ...], int] = {}

    def add(self, entry: JsonObject) -> int:
        """Adds a piece. Returns by how many characters the opaque state grew; the visible text counts elsewhere."""
        size = 0
        kind, index = str(entry.get("type")), entry.get("index")
        key = (kind, index) if isinstance(index, int) else (kind, None, str(entry.get("id")))
        place = self._places.setdefault(key, len(self._entries))
        if place == len(self._entries):
            self._entries.append(({}, []))
            size += ENTRY_CHARS
        merged, pieces = self._entries[place]
        field = _TEXT_OF.get(kind, "text")
        for name, value in entry.items():
            if name == field and isinstance(value, str):
                pieces.append(value)
                if kind == "reasoning.encrypted":
                    size += len(value)
            elif name not in merged:
                size += len(name) + json_size(value)
                merged[name] = value
            elif value is not None and merged[name] != value:
                size += json_size(value) - json_size(merged[name])
                merged[name] = value
        return size

    def echo(self) -> Echo | None:
        entries = []
        for merged, pieces in self._entries:
            entry = dict(merged)
            if pieces:
                entry[_TEXT_OF.get(str(entry.get("type")), "text")] = "".join(pieces)
            entries.append(entry)
        return Echo(self._provider, {"reasoning_details": entries})
