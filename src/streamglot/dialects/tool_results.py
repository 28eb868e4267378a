"""Tool results for wire formats whose tool messages can hold text only."""

from __future__ import annotations

from collections.abc import Iterable

from ..messages import Part, TextPart, ToolResultPart


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
