"""Collects a stream of events into a Response. A Response with an error keeps what came before the error.

A ``Snapshot`` is what a ``Collect`` has collected so far. It notes how much there is and copies nothing: taking one costs the
same however long the answer is, so it may be taken after every event. The collector only appends to the lists that a snapshot
refers to, so a snapshot stays as it was while more events come. Reading from a snapshot costs the length of what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from ..events import (
    EVENT_KINDS,
    Choice,
    Citation,
    Echo,
    Event,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StopReason,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
    as_events,
    not_an_event,
)
from ..grammar import BlockStart, OpenBlocks
from ..json_types import JsonObject, JsonValue
from ..messages import (
    MediaPart,
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    ResponseChoice,
    Step,
    TextPart,
    TokenCounts,
    ToolCallPart,
    ToolResultPart,
    calls_of,
    is_complete,
    reasoning_of,
    shown,
)


class Medium(Struct):
    """A medium whose pieces are still coming: its place among the parts, and the pieces."""

    place: int
    part: MediaPart
    data: list[str]
    transcript: list[str]


class ChoiceSnapshot(Struct):
    """One choice of a ``Snapshot``. ``open`` is the start of the block that is not finished yet. ``index``, ``stop_reason``, ``raw_stop_reason``
    and ``stop_sequence`` are those of a ``ResponseChoice``; so are ``parts``, ``text``, ``reasoning`` and ``tool_calls``."""

    index: int
    open: BlockStart | None
    stop_reason: StopReason | None
    raw_stop_reason: str | None
    stop_sequence: str | None
    _parts: list[Part]
    _part_count: int
    _pieces: list[str]
    _piece_count: int
    _citations: list[Citation]
    _citation_count: int
    _media: list[tuple[Medium, int]]
    _steps: list[Step]
    _step_count: int
    _extras: list[Extra]
    _extra_count: int

    @property
    def parts(self) -> list[Part]:
        """The finished parts, and what there is of the open one. A call in it has ``complete=False``."""
        parts = self._parts[: self._part_count]
        for medium, count in self._media:
            data, transcript = "".join(medium.data[:count]), "".join(medium.transcript[:count])
            parts[medium.place] = MediaPart(medium.part.mime, data, medium.part.url, id=medium.part.id, transcript=transcript)
        if self.open is not None:
            text = "".join(self._pieces[: self._piece_count])
            parts.append(finished_part(self.open, text, self._citations[: self._citation_count], complete=False))
        return parts

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return reasoning_of(self.parts)

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The calls so far that the program is to run. The last one may have ``complete=False`` because it still grows."""
        return calls_of(self.parts)

    @property
    def text(self) -> str:
        """The visible text."""
        pieces = [part.text for part in self._parts[: self._part_count] if isinstance(part, TextPart)]
        if self.open == _PLAIN_TEXT:
            pieces += self._pieces[: self._piece_count]
        return "".join(pieces)

    def _choice(self, usage: TokenCounts) -> ResponseChoice:
        steps, parts = self._steps[: self._step_count], self.parts
        add_last_step(steps, len(parts), usage)
        extras = self._extras[: self._extra_count]
        return ResponseChoice(self.index, parts, self.stop_reason, self.raw_stop_reason, self.stop_sequence, extras, steps)


class Snapshot(Struct):
    """An answer that may still be growing. It has what a ``Response`` has: ``id``, ``model``, ``created``, ``choices``, ``usage`` (the sum
    over all steps so far) and ``error``; ``text``, ``reasoning``, ``tool_calls`` and ``stop_reason`` are those of the first choice.
    ``response()`` makes a ``Response`` of it."""

    id: str
    model: str
    created: int
    choices: list[ChoiceSnapshot]
    usage: TokenCounts
    error: StreamError | None
    _step_usage: TokenCounts
    _extras: list[Extra]
    _extra_count: int
    _extensions: list[tuple[str, list[JsonValue], int]] | None

    @property
    def text(self) -> str:
        """The visible text of the first choice."""
        return self.choices[0].text if self.choices else ""

    @property
    def reasoning(self) -> str:
        """The reasoning of the first choice, as far as the provider shows it."""
        return self.choices[0].reasoning if self.choices else ""

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The calls of the first choice that the program is to run. The last one may have ``complete=False`` because it still
        grows."""
        return self.choices[0].tool_calls if self.choices else []

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the first choice ended; None if it did not, or not yet."""
        return self.choices[0].stop_reason if self.choices else None

    @property
    def complete(self) -> bool:
        """Whether the answer has reached its own end."""
        return is_complete(self.error, [choice.stop_reason for choice in self.choices])

    def __str__(self) -> str:
        return shown(
            self.model, [(choice.index, choice.parts, choice.stop_reason) for choice in self.choices], self.usage, self.error
        )

    def response(self) -> Response:
        """A ``Response`` of its own that the collector does not change. It costs the length of the answer."""
        extensions = self._extensions
        return Response(
            self.id,
            self.model,
            self.created,
            [choice._choice(TokenCounts() if choice.index else self._step_usage) for choice in self.choices],
            self.usage,
            self.error,
            self._extras[: self._extra_count],
            None if extensions is None else {name: entries[:count] for name, entries, count in extensions},
        )


# --- the collector

_PLAIN_TEXT = TextStart()


def finished_part(
    start: BlockStart | None,
    text: str,
    citations: list[Citation],
    echo: Echo | None = None,
    redacted: bool = False,
    complete: bool = True,
) -> Part:
    """The finished part of a block."""
    match start:
        case ToolCallStart():
            return ToolCallPart(start.call_id, start.name, text, start.kind, complete, echo, start.native)
        case ReasoningStart():
            return ReasoningPart(text, start.summary, redacted, echo)
        case TextStart(refusal=True):
            return RefusalPart(text)
        case _:
            return TextPart(text, citations, echo)


def add_last_step(steps: list[Step], end: int, usage: TokenCounts) -> None:
    """Adds the step that the end of the events ended, where there were steps before it and it has anything."""
    if steps and steps[-1].reason is not None and (steps[-1].end < end or usage != TokenCounts()):
        steps.append(Step(end, usage=usage))


def counts_of(usage: Usage) -> TokenCounts:
    """The counts of a Usage event."""
    return TokenCounts(
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.raw,
    )


REASONING_SUMMARY: Final = "reasoning_summary"
"""The field of the extensions with the summaries that the gateway had made."""
_Extensions = dict[str, list[JsonValue]]


class Collect:
    """Adds events up: ``feed`` takes them, ``close`` gives the Response, ``snapshot`` shows what there is so far.
    ``extensions``: also keep every piece of reasoning and of tool calls as it came. Raises nothing: an error of the stream is in
    ``Response.error``."""

    def __init__(self, *, extensions: bool = False) -> None:
        self.response = Response()
        self._extensions: _Extensions | None = None
        if extensions:
            self._extensions = {"reasoning_chunks": [], "reasoning_summaries": [], "tool_call_chunks": []}
        self._summaries: list[JsonValue] = []
        self._choices: dict[int, _ChoiceParts] = {}
        self._blocks = OpenBlocks()
        self._usage = Usage()
        """The usage of the current step."""
        self._usage_before = Usage()
        """The usage of all earlier steps."""

    def feed(self, events: Iterable[Event] | Event) -> list[Response]:
        """Adds the events of one read, or one event. The list that it gives is empty: ``close`` gives the answer."""
        if type(events) is not list:
            events = as_events(events)
        first = self._choices.get(0)
        for event in events:
            if type(event) is TextDelta and first is not None:  # the usual case
                first.pieces.append(event.text)
                continue
            rule = _OF_CHOICE.get(type(event))
            if rule is not None:
                if first is None:
                    first = self._choice(0)
                rule(first, event)
            elif type(event) is Choice:
                self._of_another(event)
            elif type(event) in _OF_ALL:
                _OF_ALL[type(event)](self, event)
                first = self._choices.get(0)
            elif type(event) not in EVENT_KINDS:
                raise not_an_event(event)
        return []

    feed_all = feed

    def close(self) -> list[Response]:
        """The whole answer. A block that is still open is kept as it is; a call in it is marked as incomplete."""
        response = self.response
        for index, choice in self._choices.items():
            choice.close(TokenCounts() if index else counts_of(self._usage))
        response.choices = [self._choices[index].choice for index in sorted(self._choices)]
        response.usage = counts_of(self._usage_before.plus(self._usage))
        response.extensions = self._extensions
        if self._summaries:
            response.extensions = {**(self._extensions or {}), REASONING_SUMMARY: self._summaries}
        return [response]

    def snapshot(self) -> Snapshot:
        """The answer so far. Taking a snapshot costs a few steps for each choice and for each medium that comes
        in pieces, and nothing for the length of the answer, so it may be taken after every event. The text is joined when
        it is read from the snapshot, which costs its length."""
        response, extensions = self.response, self._extensions
        return Snapshot(
            response.id,
            response.model,
            response.created,
            [self._choices[index].snapshot() for index in sorted(self._choices)],
            counts_of(self._usage_before.plus(self._usage)),
            response.error,
            counts_of(self._usage),
            response.extras,
            len(response.extras),
            None if extensions is None else [(name, entries, len(entries)) for name, entries in extensions.items()],
        )

    def _choice(self, index: int) -> _ChoiceParts:
        if index not in self._choices:
            self._choices[index] = _ChoiceParts(index, self._blocks, self._extensions)
        return self._choices[index]

    def _of_another(self, wrapped: Choice) -> None:
        """An event of a choice above 0."""
        event = wrapped.event
        if type(event) is StepEnd:
            if wrapped.index in self._choices:
                self._choices[wrapped.index].end_step(event, TokenCounts())
            return
        rule = _OF_ANOTHER.get(type(event))
        if rule is not None:
            rule(self._choice(wrapped.index), event)

    # --- events of the whole answer

    def _start(self, event: StreamStart) -> None:
        response = self.response
        response.id, response.model, response.created = event.id, event.model, event.created

    def _count(self, event: Usage) -> None:
        self._usage = event

    def _end_step(self, event: StepEnd) -> None:
        self._choice(0).end_step(event, counts_of(self._usage))
        self._usage_before, self._usage = self._usage_before.plus(self._usage), Usage()

    def _extra(self, event: Extra) -> None:
        self.response.extras.append(event)
        extensions = event.data.get("extensions")
        if isinstance(extensions, dict):
            self._summaries += extensions.get(REASONING_SUMMARY) or ()

    def _error(self, event: StreamError) -> None:
        self.response.error = event


# Any: each method takes the events of its key
_OF_ALL: Final[dict[type, Callable[[Collect, Any], None]]] = {
    StreamStart: Collect._start,
    Usage: Collect._count,
    StepEnd: Collect._end_step,
    Extra: Collect._extra,
    StreamError: Collect._error,
}


class _ChoiceParts:
    """The parts of one choice. Pieces are joined when their block ends, so that a long block costs its length. A snapshot
    may refer to any of the lists here: they are appended to or replaced, never shortened."""

    def __init__(self, index: int, blocks: OpenBlocks, extensions: _Extensions | None) -> None:
        self.choice = ResponseChoice(index)
        self._extensions = extensions
        self.pieces: list[str] = []
        self._blocks = blocks
        self._citations: list[Citation] = []
        self._last_text: TextPart | None = None
        self._media: dict[str, Medium] = {}

    def close(self, usage: TokenCounts) -> None:
        if self._open is not None:
            self._end(None, complete=False)
        for medium in self._media.values():
            medium.part.data, medium.part.transcript = "".join(medium.data), "".join(medium.transcript)
        add_last_step(self.choice.steps, len(self.choice.parts), usage)

    def snapshot(self) -> ChoiceSnapshot:
        choice = self.choice
        return ChoiceSnapshot(
            choice.index,
            self._open,
            choice.stop_reason,
            choice.raw_stop_reason,
            choice.stop_sequence,
            choice.parts,
            len(choice.parts),
            self.pieces,
            len(self.pieces),
            self._citations,
            len(self._citations),
            [(medium, len(medium.data)) for medium in self._media.values()],
            choice.steps,
            len(choice.steps),
            choice.extras,
            len(choice.extras),
        )

    # --- blocks

    @property
    def _open(self) -> BlockStart | None:
        return self._blocks.starts.get(self.choice.index)

    def text(self, event: TextDelta) -> None:
        self.pieces.append(event.text)

    def start(self, event: BlockStart) -> None:
        self._blocks.follow(event, self.choice.index)
        if self._extensions is not None:
            self._note("start", event)

    def reasoning(self, event: ReasoningDelta) -> None:
        self.pieces.append(event.text)
        if self._extensions is not None:
            self._extensions["reasoning_chunks"].append(event.text)

    def arguments(self, event: ToolCallDelta) -> None:
        self.pieces.append(event.args)
        if self._extensions is not None:
            self._note("args", self._open, event.args)

    def end_text(self, event: TextEnd) -> None:
        self._end(event.echo)

    def end_reasoning(self, event: ReasoningEnd) -> None:
        self._end(event.echo, redacted=event.redacted)

    def end_call(self, event: ToolCallEnd) -> None:
        self._end(event.echo, complete=event.complete)

    def _end(self, echo: Echo | None, redacted: bool = False, complete: bool = True) -> None:
        text = "".join(self.pieces)
        self.pieces = []
        start = self._blocks.starts.pop(self.choice.index, None)
        part = finished_part(start, text, self._citations, echo, redacted, complete)
        if isinstance(part, TextPart):
            self._citations, self._last_text = [], part
        self.choice.parts.append(part)
        if self._extensions is None:
            return
        if complete:
            self._note("end", start)
        if isinstance(start, ReasoningStart) and start.summary and text:
            self._extensions["reasoning_summaries"].append(text)

    # --- between blocks

    def result(self, event: ToolResult) -> None:
        if self._extensions is not None:
            self._extensions["tool_call_chunks"].append(result_chunk(event))
        self.choice.parts.append(ToolResultPart(event.call_id, [TextPart(event.content)], event.is_error, native=event.native))

    def cite(self, event: Citation) -> None:
        """A citation after its text belongs to that text."""
        if type(self._open) is TextStart:
            self._citations.append(event)
        elif self._last_text is not None:
            self._last_text.citations.append(event)
        else:
            self._last_text = TextPart("", [event])
            self.choice.parts.append(self._last_text)

    def medium(self, event: Media) -> None:
        if not event.id:
            self.choice.parts.append(MediaPart(event.mime, event.data, event.url, transcript=event.transcript))
            return
        medium = self._media.get(event.id)
        if medium is None:
            part = MediaPart(event.mime, url=event.url, id=event.id)
            medium = self._media[event.id] = Medium(len(self.choice.parts), part, [], [])
            self.choice.parts.append(part)
        medium.data.append(event.data)
        medium.transcript.append(event.transcript)

    def end_step(self, event: StepEnd, usage: TokenCounts) -> None:
        self.choice.steps.append(Step(len(self.choice.parts), event.step, event.reason, usage))

    def stop(self, event: StreamEnd) -> None:
        choice = self.choice
        choice.stop_reason, choice.raw_stop_reason, choice.stop_sequence = event.reason, event.raw_reason, event.sequence

    def extra(self, event: Extra) -> None:
        self.choice.extras.append(event)

    def _note(self, step: str, start: object, delta: str | None = None) -> None:
        """A piece of a call, for the extensions."""
        if self._extensions is None or not isinstance(start, ToolCallStart):
            return
        chunk: JsonObject = {"type": step, "tool_call_id": start.call_id}
        if step == "start":
            chunk["tool_name"] = start.name
        if delta is not None:
            chunk["delta"] = delta
        self._extensions["tool_call_chunks"].append(chunk)


# Any: the same
_OF_CHOICE: Final[dict[type, Callable[[_ChoiceParts, Any], None]]] = {
    TextDelta: _ChoiceParts.text,
    ReasoningDelta: _ChoiceParts.reasoning,
    ToolCallDelta: _ChoiceParts.arguments,
    TextStart: _ChoiceParts.start,
    ReasoningStart: _ChoiceParts.start,
    ToolCallStart: _ChoiceParts.start,
    TextEnd: _ChoiceParts.end_text,
    ReasoningEnd: _ChoiceParts.end_reasoning,
    ToolCallEnd: _ChoiceParts.end_call,
    ToolResult: _ChoiceParts.result,
    Citation: _ChoiceParts.cite,
    Media: _ChoiceParts.medium,
    StreamEnd: _ChoiceParts.stop,
}
# Any: the same
_OF_ANOTHER: Final[dict[type, Callable[[_ChoiceParts, Any], None]]] = {**_OF_CHOICE, Extra: _ChoiceParts.extra}


def result_chunk(event: ToolResult) -> JsonObject:
    """A result as an entry of ``tool_call_chunks``."""
    chunk = {"type": "result", "tool_call_id": event.call_id, "content": event.content}
    return {**chunk, "is_error": True} if event.is_error else chunk


def collect(events: Iterable[Event], *, extensions: bool = False) -> Response:
    """Collects ``events``, the events of a stream, into an answer.

        answer = streamglot.collect(streamglot.read(body, "anthropic"))

    Takes an iterable of events; ``extensions`` also keeps every piece of reasoning and of calls as it came. Gives a ``Response``. A stream that broke
    off has ``complete=False`` and its ``error``. Raises ``TypeError`` for what is not an event."""
    box = Collect(extensions=extensions)
    box.feed(events)
    return box.close()[0]
