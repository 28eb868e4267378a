"""Citations: citationMetadata and groundingMetadata to events, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...events import Citation, Echo
from ...json_types import JsonObject
from ..echo import is_native
from ..lenient import objects_in, string_in
from .offsets import Offsets
from .signature import DIALECT

_SOURCES: Final = ("web", "retrievedContext", "maps", "image")


class CitationReader:
    """The citations of one candidate. Metadata may be repeated, longer each time; nothing is emitted twice."""

    def __init__(self) -> None:
        self.text = Offsets()
        self.base = 0
        """Where the newest text block begins in the whole text of the candidate."""
        self._emitted: set[tuple[str, str, str, int | None, int | None]] = set()

    def read(self, citation_metadata: object, grounding_metadata: object) -> Iterator[Citation]:
        for citation in (*self._cited(citation_metadata), *self._grounded(grounding_metadata)):
            key = (citation.url, citation.title, citation.cited_text, citation.start, citation.end)
            if key not in self._emitted:
                self._emitted.add(key)
                yield citation

    def _cited(self, metadata: object) -> Iterator[Citation]:
        for entry in _objects(metadata, "citations") + _objects(metadata, "citationSources"):
            start, end = self._place(entry)
            yield Citation(string_in(entry, "uri"), string_in(entry, "title"), "", start, end, Echo(DIALECT, {"citation": entry}))

    def _grounded(self, metadata: object) -> Iterator[Citation]:
        chunks = metadata.get("groundingChunks") if isinstance(metadata, dict) else None
        if not isinstance(chunks, list):
            return
        used: set[int] = set()
        for support in _objects(metadata, "groundingSupports"):
            segment = support.get("segment")
            start, end = self._place(segment) if isinstance(segment, dict) else (None, None)
            indices = support.get("groundingChunkIndices")
            for number in indices if isinstance(indices, list) else ():
                if isinstance(number, int) and 0 <= number < len(chunks):
                    used.add(number)
                    yield from _source(chunks[number], start, end)
        for number, chunk in enumerate(chunks):
            if number not in used:
                yield from _source(chunk)

    def _place(self, entry: JsonObject) -> tuple[int | None, int | None]:
        """Converts byte offsets to character offsets. The wire omits a start of 0."""
        start, end = entry.get("startIndex", 0), entry.get("endIndex", -1)
        if not _is_place(start) or not _is_place(end):
            return None, None
        first, last = self.text.characters(start) - self.base, self.text.characters(end) - self.base
        return (first, last) if 0 <= first <= last else (None, None)


def _source(chunk: object, start: int | None = None, end: int | None = None) -> Iterator[Citation]:
    for kind in _SOURCES:
        source = chunk.get(kind) if isinstance(chunk, dict) else None
        if isinstance(source, dict):
            url = string_in(source, "uri") or string_in(source, "sourceUri")
            native = Echo(DIALECT, {"groundingChunk": chunk})
            yield Citation(url, string_in(source, "title"), string_in(source, "text"), start, end, native)


def write_citation(citation: Citation, text: Offsets, base: int = 0) -> JsonObject | None:
    """An entry of ``citationSources``, which every client reads. None if the metadata contains it already, or there is no source
    to name."""
    if citation.native is not None and is_native(citation.native, DIALECT):
        return None
    entry: JsonObject = {"uri": citation.url} if citation.url else {}
    if citation.title:
        entry["title"] = citation.title
    if entry and citation.start is not None and citation.end is not None:
        entry["startIndex"], entry["endIndex"] = text.bytes(base + citation.start), text.bytes(base + citation.end)
    return entry or None


def _objects(metadata: object, name: str) -> list[JsonObject]:
    return objects_in(metadata.get(name)) if isinstance(metadata, dict) else []


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
