"""The wire format: the fields of a chat chunk that are read (the decoder skips all others), finish reasons, usage and errors.

``reasoning_details`` is reasoning in typed entries that stream in pieces and must be returned unchanged. Some servers put the
reasoning and the calls of a whole answer only into its ``extensions``, the pieces as they were generated; ``add_extensions`` adds them
to the message.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct, convert

from ...errors import ToolCallParseError
from ...events import Citation, Echo, StreamError
from ...json_types import JsonObject, JsonValue
from ..common import upstream_errors
from ..common.blocks import json_size
from ..common.state import is_native, pack
from ..common.tables import UsageFields, two_way

DIALECT: Final = "openai_chat"


class FunctionDelta(Struct, gc=False):
    name: str | None = None
    arguments: str | JsonObject | list[JsonValue] | None = None


class CustomDelta(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class CallDelta(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None
    extra_content: JsonValue = None


class Delta(Struct, gc=False):
    content: str | list[JsonValue] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | bool | None = None
    thought: str | bool | None = None
    reasoning_details: list[JsonValue] | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None
    audio: JsonValue = None
    annotations: list[JsonValue] | None = None
    images: list[JsonValue] | None = None
    executed_tools: JsonValue = None
    is_reasoning: bool | None = None


class ChunkChoice(Struct, gc=False):
    index: int | None = None
    is_reasoning: bool | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    logprobs: JsonObject | None = None
    stop_reason: JsonValue = None
    matched_stop: JsonValue = None
    extensions: JsonObject | None = None
    content_filter_results: JsonValue = None


class Chunk(Struct, gc=False):
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: JsonObject | None = None
    error: JsonValue = None
    message: JsonValue = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    provider: str | None = None
    citations: list[JsonValue] | None = None
    search_results: JsonValue = None
    timings: JsonValue = None
    moderation: JsonValue = None
    prompt_filter_results: JsonValue = None
    x_groq: JsonObject | None = None
    extensions: JsonObject | None = None


chunk_decoder: Final = msgspec.json.Decoder(Chunk)


class _KnownDelta(Delta, forbid_unknown_fields=True, gc=False):
    """Refuses fields that nobody knows. Beside those of ``Delta``, it knows labels that say nothing to a client."""

    role: str | None = None
    channel: str | None = None


class _KnownChoice(ChunkChoice, gc=False):
    delta: _KnownDelta | None = None
    message: _KnownDelta | None = None


class _KnownChunk(Chunk, gc=False):
    choices: list[_KnownChoice] | None = None  # type: ignore[assignment]  # only the decoder writes it


class _LabelledDelta(_KnownDelta, forbid_unknown_fields=True, gc=False):
    """Knows what some providers put beside their text. That costs too much to expect it of all."""

    name: msgspec.Raw | None = None
    token_id: msgspec.Raw | None = None
    provider_metadata: msgspec.Raw | None = None
    graph_data: msgspec.Raw | None = None
    llm_data: msgspec.Raw | None = None
    image_data: msgspec.Raw | None = None
    translation_data: msgspec.Raw | None = None
    web_search_data: msgspec.Raw | None = None


class _LabelledChoice(ChunkChoice, gc=False):
    delta: _LabelledDelta | None = None
    message: _LabelledDelta | None = None


class _LabelledChunk(Chunk, gc=False):
    choices: list[_LabelledChoice] | None = None  # type: ignore[assignment]  # only the decoder writes it


known_decoder: Final = msgspec.json.Decoder(_KnownChunk)
labelled_decoder: Final = msgspec.json.Decoder(_LabelledChunk)
"""These refuse a chunk whose delta has an unknown field. That costs nothing where no delta has one."""


class _AnyChoice(Struct, gc=False):
    delta: dict[str, msgspec.Raw] | None = None
    message: dict[str, msgspec.Raw] | None = None


class _AnyChunk(Struct, gc=False):
    choices: list[_AnyChoice] | None = None


_any_decoder: Final = msgspec.json.Decoder(_AnyChunk)
_KNOWN: Final = frozenset(_LabelledDelta.__struct_fields__)
_EMPTY_TEXT: Final = b'""'


def unknown_texts(data: bytes) -> list[str]:
    """The fields of the deltas, or messages, that have a text and that no reader knows."""
    try:
        chunk = _any_decoder.decode(data)
    except (ValueError, RecursionError):
        return []
    given = [fields for choice in chunk.choices or () for fields in (choice.delta, choice.message) if fields]
    return [
        name
        for fields in given
        for name in fields.keys() - _KNOWN
        if (raw := bytes(fields[name]))[:1] == b'"' and raw != _EMPTY_TEXT
    ]


REASONS, FINISH_OF = two_way(
    {
        "end": ("stop", "end_turn", "eos", "eos_token", "complete"),
        "stop_sequence": ("stop", "stop_sequence"),
        "length": ("length", "max_tokens", "model_length"),
        "tool_calls": ("tool_calls", "tool_use", "function_call"),
        "content_filter": ("content_filter", "safety", "sensitive"),
        "refusal": ("stop", "refusal"),
        "cancelled": ("stop", "abort", "cancelled"),
    },
    other="stop",
)
"""The values of ``finish_reason``, in lower case. ``error`` is missing because it is an error."""


_INPUT: Final = "prompt_tokens_details|prompt_token_details|input_tokens_details"
_OUTPUT: Final = "completion_tokens_details|output_tokens_details"
USAGE: Final = UsageFields(
    input=("prompt_tokens", "input_tokens"),
    output=("completion_tokens", "output_tokens"),
    cached=(f"{_INPUT}.cached_tokens", "prompt_cache_hit_tokens"),
    cache_write=(f"{_INPUT}.cache_write_tokens", f"{_INPUT}.created_cache_tokens"),
    reasoning=(f"{_OUTPUT}.reasoning_tokens", "reasoning_tokens"),
)


# --- state and sources in the fields of a message


def extra_content(echo: Echo) -> JsonValue:
    """The state of a call: the upstream's own field, or any other state packed."""
    own = echo.data.get("extra_content") if is_native(echo, DIALECT) else None
    return {"streamglot": pack(echo)} if own is None else own


def write_citation(citation: Citation) -> JsonObject | None:
    """The annotation for a source; None for one without an address."""
    if is_native(citation.native, DIALECT):
        return citation.native.data  # type: ignore[union-attr]  # it is native, so it is there
    if not citation.url:
        return None
    place = {"start_index": citation.start or 0, "end_index": citation.end or 0}
    return {"type": "url_citation", "url_citation": {"url": citation.url, "title": citation.title, **place}}


# --- errors


def error_body(error: StreamError) -> JsonObject:
    """A tool call that cannot be parsed has a type of its own."""
    body = upstream_errors.typed_error_body(error)
    if error.code == ToolCallParseError.code:
        body["error"]["type"] = error.code
    return body


# --- reasoning_details

ENTRY_CHARS = 500
"""Characters that an entry counts without its fields: what its containers take in memory. A server can send millions of them."""
SHOWN_ENTRIES = ("reasoning.text", "reasoning.summary")
"""The types of entries with visible text."""
_BARE = frozenset(("type", "text", "summary", "index"))
_OUR_SUMMARY = "sgsum_"
"""How the id of a summary begins that the gateway had made: it does not go back to an upstream."""
_TEXT_OF = {"reasoning.text": "text", "reasoning.summary": "summary", "reasoning.encrypted": "data"}


def shown_text(entry: JsonObject) -> tuple[str, bool]:
    """The visible text of an entry, and whether it is a summary."""
    kind = entry.get("type")
    text = entry.get("summary") if kind == "reasoning.summary" else entry.get("text")
    return (text if isinstance(text, str) else ""), kind == "reasoning.summary"


def with_text(echo: Echo, text: str) -> Echo:
    """The state of reasoning together with its text, for a client that has the text in a plain field only: a provider refuses state
    without the text that it belongs to, or with another one."""
    return Echo(echo.provider, {"reasoning": text, "echo": echo.data})


def text_apart(packed: Echo) -> tuple[Echo, str]:
    """The state and the text that ``with_text`` joined; no text for any other state."""
    match packed.data:
        case {"reasoning": str(text), "echo": dict(data)}:
            return Echo(packed.provider, data), text
    return packed, ""


def without_texts(entries: list[JsonObject], provider: str) -> list[JsonObject]:
    """A provider's own entries for such a client, and one more that has their texts."""
    texts = [shown_text(entry)[0] for entry in entries]
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


def signed_entry(echo: Echo, text: str, summary: bool) -> JsonObject:
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


def marker_of(echo: Echo, entries: list[JsonObject]) -> JsonObject:
    """An entry that says that the entries before it are the upstream's, which indexes these had, and which fields the upstream
    wrote beside them."""
    state: JsonObject = {"more": echo.data.get("more") or [], "indexes": [entry.get("index") for entry in entries]}
    return {"type": "reasoning.encrypted", "data": pack(Echo(echo.provider, state))}


def unmarked(entries: list[JsonObject], state: JsonObject) -> tuple[list[JsonObject], list[JsonValue]]:
    """The upstream's entries before a marker with this state, and the fields beside them."""
    indexes, more = state.get("indexes"), state.get("more")
    if isinstance(indexes, list) and len(indexes) == len(entries):
        own = [{name: value for name, value in entry.items() if name != "index"} for entry in entries]
        entries = [entry if index is None else {**entry, "index": index} for entry, index in zip(own, indexes, strict=True)]
    return entries, more if isinstance(more, list) else []


def text_state(echo: Echo, start: int, end: int) -> Echo:
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


# --- extensions


def add_extensions(message: Delta, extensions: JsonObject) -> None:
    """Adds the reasoning and the calls that the message itself lacks. A call with a result was run by the server."""
    if not _has_reasoning(message):
        pieces = [piece for piece in _chunks_of(extensions, "reasoning_chunks") if isinstance(piece, str)]
        message.reasoning = "".join(pieces) or message.reasoning
    if not message.tool_calls and message.function_call is None:
        message.tool_calls = _joined_calls(_chunks_of(extensions, "tool_call_chunks")) or message.tool_calls


def _has_reasoning(message: Delta) -> bool:
    if message.reasoning or message.reasoning_content:
        return True
    if any(isinstance(entry, dict) and shown_text(entry)[0] for entry in message.reasoning_details or ()):
        return True
    parts = message.content if isinstance(message.content, list) else ()
    return any(isinstance(part, dict) and part.get("type") == "thinking" for part in parts)


def _chunks_of(extensions: JsonObject, name: str) -> list[JsonValue]:
    value = extensions.get(name)
    return value if isinstance(value, list) else []


def _joined_calls(chunks: list[JsonValue]) -> list[CallDelta]:
    names: dict[str, str] = {}
    arguments: dict[str, list[str]] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            continue
        call_id, name, delta = chunk.get("tool_call_id"), chunk.get("tool_name"), chunk.get("delta")
        if not isinstance(call_id, str):
            continue
        match chunk.get("type"):
            case "start" if isinstance(name, str) and name:
                names[call_id], arguments[call_id] = name, []
            case "args" if call_id in names and isinstance(delta, str):
                arguments[call_id].append(delta)
            case "result":
                names.pop(call_id, None)
    calls = [
        {"index": index, "id": call_id, "function": {"name": name, "arguments": "".join(arguments[call_id])}}
        for index, (call_id, name) in enumerate(names.items())
    ]
    return convert(calls, list[CallDelta])
