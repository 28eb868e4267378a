"""``reasoning_details``: reasoning in typed entries that stream in pieces and must be returned unchanged."""

from __future__ import annotations

from ...events import Echo
from ...json_types import JsonObject, JsonValue
from ..echo import is_native, pack
from ..tally import json_size

ENTRY_CHARS = 500
"""Characters that an entry counts without its fields: what its containers take in memory. A server can send millions of them."""
SHOWN = ("reasoning.text", "reasoning.summary")
"""The types of entries with visible text."""
_BARE = frozenset(("type", "text", "summary", "index"))
_OUR_SUMMARY = "sgsum_"
"""How the id of a summary begins that the gateway had made: it does not go back to an upstream."""
_TEXT_OF = {"reasoning.text": "text", "reasoning.summary": "summary", "reasoning.encrypted": "data"}


def shown(entry: JsonObject) -> tuple[str, bool]:
    """The visible text of an entry, and whether it is a summary."""
    kind = entry.get("type")
    text = entry.get("summary") if kind == "reasoning.summary" else entry.get("text")
    return (text if isinstance(text, str) else ""), kind == "reasoning.summary"


def with_text(echo: Echo, text: str) -> Echo:
    """The state of reasoning together with its text, for a client that has the text in a plain field only: a provider refuses state
    without the text that it belongs to, or with another one."""
    return Echo(echo.provider, {"reasoning": text, "echo": echo.data})


def apart(packed: Echo) -> tuple[Echo, str]:
    """The state and the text that ``with_text`` joined; no text for any other state."""
    match packed.data:
        case {"reasoning": str(text), "echo": dict(data)}:
            return Echo(packed.provider, data), text
    return packed, ""


def without_texts(entries: list[JsonObject], provider: str) -> list[JsonObject]:
    """A provider's own entries for such a client, and one more that has their texts."""
    texts = [shown(entry)[0] for entry in entries]
    if not any(texts):
        return entries
    bare = [_without_text(entry) if text else entry for entry, text in zip(entries, texts, strict=True)]
    return [*bare, {"type": "reasoning.encrypted", "data": pack(Echo(provider, {"texts": texts}))}]


def _without_text(entry: JsonObject) -> JsonObject:
    state = {name: value for name, value in entry.items() if name not in ("text", "summary")}
    return {**state, "summary": ""} if entry.get("type") == "reasoning.summary" else state  # strict clients demand a summary


def with_texts(entries: list[JsonObject], state: JsonObject) -> list[JsonObject]:
    """The provider's own entries as they were before ``without_texts``. ``state`` is that of the last one."""
    texts = state.get("texts")
    if not isinstance(texts, list) or len(texts) > len(entries):
        return entries
    begin = len(entries) - len(texts)
    filled = zip(entries[begin:], texts, strict=True)
    return [
        *entries[:begin],
        *({**entry, _TEXT_OF.get(str(entry.get("type")), "text"): text} if text else entry for entry, text in filled),
    ]


def signed(echo: Echo, text: str, summary: bool) -> JsonObject:
    """An entry with the state of reasoning, for such a client."""
    kind: JsonObject = {"type": "reasoning.summary", "summary": ""} if summary else {"type": "reasoning.text"}
    return {**kind, "signature": pack(with_text(echo, text))}


def our_summary(text: str, index: int) -> JsonObject:
    """An entry for a summary that the gateway had made."""
    return {"type": "reasoning.summary", "summary": text, "id": f"{_OUR_SUMMARY}{index}", "index": index}


def is_our_summary(entry: JsonObject) -> bool:
    return str(entry.get("id")).startswith(_OUR_SUMMARY)


class ReasoningDetails:
    """Merges pieces by their index, or by type and id if they have none: text is joined, other fields are replaced."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._more: list[str] = []
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

    def beside(self, field: str) -> None:
        """Notes a field that has the text too: the upstream gets back every field that it wrote."""
        if field not in self._more:
            self._more.append(field)

    def echo(self) -> Echo | None:
        entries = []
        for merged, pieces in self._entries:
            entry = dict(merged)
            if pieces:
                entry[_TEXT_OF.get(str(entry.get("type")), "text")] = "".join(pieces)
            entries.append(entry)
        return Echo(self._provider, {"reasoning_details": entries, **({"more": self._more} if self._more else {})})


def is_bare(entry: JsonObject) -> bool:
    """Whether the entry has only text, as those that the writer invents for every upstream."""
    return _BARE.issuperset(entry)


def own_details(echo: Echo | None) -> list[JsonObject] | None:
    """The upstream's own entries in this echo, if it has any."""
    entries = echo.data.get("reasoning_details") if echo is not None and is_native(echo, "openai_chat") else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else None


def marker(echo: Echo, entries: list[JsonObject]) -> JsonObject:
    """An entry that says that the entries before it are the upstream's, which indexes these had, and which fields the upstream
    wrote beside them."""
    state: JsonObject = {"more": echo.data.get("more") or [], "indexes": [entry.get("index") for entry in entries]}
    return {"type": "reasoning.encrypted", "data": pack(Echo(echo.provider, state))}


def marked(entries: list[JsonObject], state: JsonObject) -> tuple[list[JsonObject], list[JsonValue]]:
    """The upstream's entries before a marker with this state, and the fields beside them."""
    indexes, more = state.get("indexes"), state.get("more")
    if isinstance(indexes, list) and len(indexes) == len(entries):
        own = [{name: value for name, value in entry.items() if name != "index"} for entry in entries]
        entries = [entry if index is None else {**entry, "index": index} for entry, index in zip(own, indexes, strict=True)]
    return entries, more if isinstance(more, list) else []


def of_text(echo: Echo, start: int, end: int) -> Echo:
    """The state of a text, which has no field of its own. The text stands between two places of the message's content."""
    return Echo(echo.provider, {"text": [start, end], "echo": echo.data})


def split_text(text: str, states: list[Echo]) -> list[tuple[str, Echo | None]]:
    """The content of a message in the texts whose states these are. A text that the client changed has no state."""
    pieces: list[tuple[str, Echo | None]] = []
    done = 0
    for state in states:
        match state.data:
            case {"text": [int(start), int(end)], "echo": dict(data)} if done <= start <= end <= len(text):
                if text[done:start]:
                    pieces.append((text[done:start], None))
                pieces.append((text[start:end], Echo(state.provider, data)))
                done = end
    if text[done:] or not pieces:
        pieces.append((text[done:], None))
    return pieces
