"""Converts blocks of events to pieces, and builds the events of a block after a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import structs

from ...events import (
    BareEvent,
    Citation,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from ...json_types import JsonObject
from ..pieces import Kind, Piece
from ..verdicts import Forward, Refuse, Replace, Rewrite, Verdict

End: TypeAlias = TextEnd | ReasoningEnd | ToolCallEnd
Whole: TypeAlias = ToolResult | Citation | Media

KIND_OF: Final[dict[type, Kind]] = {
    TextStart: "text",
    ReasoningStart: "reasoning",
    ToolCallStart: "tool_call",
    ToolResult: "tool_result",
    Citation: "citation",
    Media: "media",
}


def texts_of(deltas: Sequence[BareEvent]) -> list[str]:
    """The texts of deltas that are all of one type."""
    if type(deltas[0]) is ToolCallDelta:
        return [delta.args for delta in deltas]  # type: ignore[union-attr]  # all of one type
    return [delta.text for delta in deltas]  # type: ignore[union-attr]  # text or reasoning


def delta_of(kind: Kind, text: str) -> BareEvent:
    if kind == "text":
        return TextDelta(text)
    return ReasoningDelta(text) if kind == "reasoning" else ToolCallDelta(text)


def without_echo(end: End) -> End:
    """The end of a block whose content was changed: the provider's signature is dropped, because it is no longer valid."""
    return structs.replace(end, echo=None)


def text_block(text: str) -> list[BareEvent]:
    return [TextStart(), TextDelta(text), TextEnd()] if text else []


def trimmed(run: list[BareEvent], texts: list[str], before: str, cut: int, kind: Kind) -> list[BareEvent]:
    """The deltas of a run for ``before`` and their own texts without the last ``cut`` characters. Deltas that are not cut stay
    as they are."""
    last = len(run) - 1
    while last >= 0 and cut and cut >= len(texts[last]):
        cut -= len(texts[last])
        last -= 1
    if last < 0:
        return [delta_of(kind, before[: len(before) - cut])] if cut < len(before) else []
    kept = run[: last + 1] if last + 1 < len(run) else run
    if not before and not cut:
        return kept
    kept = list(kept)
    if before:
        text = before + texts[0]
        kept[0] = delta_of(kind, text[: len(text) - cut] if last == 0 else text)
    if cut and (last or not before):
        kept[-1] = delta_of(kind, texts[last][: len(texts[last]) - cut])
    return kept


def piece_of_block(events: Sequence[BareEvent]) -> Piece:
    """A whole block as a piece."""
    start, end = events[0], events[-1]
    text = "".join(
        event.args if isinstance(event, ToolCallDelta) else event.text
        for event in events
        if isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta))
    )
    if isinstance(start, ToolCallStart):
        complete = not isinstance(end, ToolCallEnd) or end.complete
        return Piece("tool_call", text, name=start.name, call_id=start.call_id, call_kind=start.kind, complete=complete)
    return Piece("reasoning" if isinstance(start, ReasoningStart) else "text", text)


def piece_of_whole(event: Whole, names: dict[str, str]) -> Piece:
    """An event that is a whole block, as a piece. ``names`` are the tools of the calls so far, by call id."""
    match event:
        case ToolResult():
            name = names.get(event.call_id, "")
            return Piece("tool_result", event.content, name=name, call_id=event.call_id, is_error=event.is_error)
        case Citation():
            return Piece("citation", event.cited_text, data={"url": event.url, "title": event.title})
        case Media():
            return Piece("media", event.transcript, data={"mime": event.mime, "url": event.url})


def block_after(events: list[BareEvent], verdict: Verdict) -> list[BareEvent]:
    """The events of a whole block after this verdict. Events inside it that are not its text stay, except for citations."""
    start, end = events[0], events[-1]
    kind = KIND_OF[type(start)]
    beside: list[BareEvent] = [
        event
        for event in events[1:-1]
        if not isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta, Citation)) and not quotes_text(event)
    ]
    match verdict:
        case Rewrite() if verdict.text is not None or verdict.name is not None:
            if isinstance(start, ToolCallStart):
                start = structs.replace(start, name=verdict.name or start.name, native=None)
            text = piece_of_block(events).text if verdict.text is None else verdict.text
        case Replace(text=text) | Refuse(message=text):
            if kind == "tool_call":
                return [*beside, *text_block(text)]
        case _:
            return events
    if not text and kind != "tool_call":
        return beside
    return [start, *([delta_of(kind, text)] if text else []), *beside, without_echo(end)]  # type: ignore[arg-type]  # the end


def whole_after(event: Whole, verdict: Verdict) -> list[BareEvent]:
    """An event that is a whole block, after this verdict."""
    match verdict:
        case Forward():
            return [event]
        case Rewrite(text=None):
            return [event]
        case Rewrite(text=str() as text) | Replace(text=text) | Refuse(message=text):
            if isinstance(event, ToolResult):
                refused = isinstance(verdict, Refuse)
                return [structs.replace(event, content=text, is_error=event.is_error or refused, native=None)]
            if isinstance(event, Citation) and isinstance(verdict, Rewrite):
                return [structs.replace(event, cited_text=text, native=None)]
    return []


def without_offsets(citation: Citation) -> Citation:
    """A citation without offsets: its text was changed, so they are no longer valid."""
    return structs.replace(citation, start=None, end=None, native=None)


def quotes_text(event: BareEvent) -> bool:
    """Whether this is an Extra that repeats the text token by token, as log probabilities do."""
    return isinstance(event, Extra) and _has_log_probabilities(event.data)


def _has_log_probabilities(data: JsonObject) -> bool:
    return any(
        "logprob" in name.lower() or (isinstance(value, dict) and _has_log_probabilities(value)) for name, value in data.items()
    )
