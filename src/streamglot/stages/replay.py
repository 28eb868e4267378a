"""Turns a whole Response into a stream of events. Every upstream that does not stream reaches a streaming client this way."""

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
    StepEnd,
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
    ResponseChoice,
    TextPart,
    TokenCounts,
    ToolCallPart,
    ToolResultPart,
)


def replay(response: Response) -> list[Event]:
    """The events of a stream that would add up to this ``response``.

    Gives a list of events: ``collect(replay(response)) == response``. If an error follows, the last part of an unfinished choice counts as
    incomplete, because nothing shows that it was complete. Raises nothing."""
    events: list[Event] = [StreamStart(response.id, response.model, response.created), *response.extras]
    first = ResponseChoice(0)
    for choice in sorted(response.choices, key=lambda choice: choice.index):
        broken = response.error is not None and choice.stop_reason is None
        replayed = list(_replay_steps(choice))
        if broken and replayed and isinstance(replayed[-1], (TextEnd, ReasoningEnd)):
            replayed[-1] = structs.replace(replayed[-1], complete=False)
        if choice.index:
            ended = [] if broken else [_end_of(choice)]
            events += [Choice(choice.index, event) for event in (*choice.extras, *replayed, *ended)]
        else:
            first = choice
            events += replayed
    last = _usage_of(_last_usage(response, first))
    if last is not None:
        events.append(last)
    events.append(_end_of(first) if response.error is None else response.error)
    return events


def _replay_steps(choice: ResponseChoice) -> Iterator[BareEvent]:
    """The parts of a choice, with the usage and the end of each step that a ``StepEnd`` ended."""
    begin = 0
    for step in choice.steps:
        if step.reason is not None:
            for part in choice.parts[begin : step.end]:
                yield from replay_part(part)
            begin = step.end
            usage = _usage_of(step.usage)
            if usage is not None:
                yield usage
            yield StepEnd(step.number, step.reason)
    for part in choice.parts[begin:]:
        yield from replay_part(part)


def _last_usage(response: Response, first: ResponseChoice) -> TokenCounts:
    """The usage of the step after the last ``StepEnd``; for an answer of one model turn, the usage of the whole answer."""
    if not first.steps:
        return response.usage
    return first.steps[-1].usage if first.steps[-1].reason is None else TokenCounts()


def _usage_of(counts: TokenCounts) -> Usage | None:
    usage = Usage(*(getattr(counts, name) for name in TokenCounts.__struct_fields__))
    return None if usage == Usage() else usage


def _end_of(choice: ResponseChoice) -> StreamEnd:
    return StreamEnd(choice.stop_reason or "other", choice.raw_stop_reason, choice.stop_sequence)


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
