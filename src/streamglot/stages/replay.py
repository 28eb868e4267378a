"""A Response at rest as a stream of events again: the way of every non-streaming upstream to a streaming client."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from ..events import (
    BareEvent,
    Choice,
    Event,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from ..messages import (
    MediaPart,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)


def replay(response: Response) -> list[Event]:
    """The events of a stream that would add up to this response. Before an error, the last part of a choice that was not
    finished counts as broken off: nothing says that it was whole."""
    events: list[Event] = [StreamStart(response.id, response.model, response.created), *response.extras]
    for choice in sorted(response.choices, key=lambda choice: choice.index):
        broken = response.error is not None and choice.stop_reason is None
        said: list[BareEvent] = [event for part in choice.parts for event in replay_part(part)]
        if broken and said and isinstance(said[-1], (TextEnd, ReasoningEnd)):
            said[-1] = structs.replace(said[-1], complete=False)
        if choice.index:
            if not broken:
                said.append(StreamEnd(choice.stop_reason or "other", choice.raw_stop_reason, choice.stop_sequence))
            events += [Choice(choice.index, event) for event in (*choice.extras, *said)]
        else:
            events += said
    counts = response.usage
    usage = Usage(
        counts.input_tokens,
        counts.output_tokens,
        counts.cached_tokens,
        counts.cache_write_tokens,
        counts.reasoning_tokens,
        counts.raw,
    )
    if usage != Usage():
        events.append(usage)
    if response.error is not None:
        events.append(response.error)
    else:
        first = next((choice for choice in response.choices if choice.index == 0), None)
        events.append(
            StreamEnd(first.stop_reason or "other", first.raw_stop_reason, first.stop_sequence) if first else StreamEnd("other")
        )
    return events


def replay_part(part: Part) -> Iterator[BareEvent]:
    match part:
        case TextPart():
            yield TextStart()
            if part.text:
                yield TextDelta(part.text)
            yield from part.citations
            yield TextEnd(part.echo)
        case RefusalPart():
            yield TextStart(refusal=True)
            if part.text:
                yield TextDelta(part.text)
            yield TextEnd()
        case ReasoningPart():
            yield ReasoningStart(part.summary)
            if part.text:
                yield ReasoningDelta(part.text)
            yield ReasoningEnd(part.echo, part.redacted)
        case ToolCallPart():
            yield ToolCallStart(part.call_id, part.name, part.kind, part.native)
            if part.arguments:
                yield ToolCallDelta(part.arguments)
            yield ToolCallEnd(part.echo, part.complete)
        case ToolResultPart():
            yield ToolResult(part.call_id, part.text, part.is_error, part.native)
        case MediaPart():
            yield Media(part.mime, part.data, part.url, part.id, part.transcript)
        case NativePart():  # pragma: no branch  # the last kind of part there is
            yield Extra(part.dialect, part.data)
