"""A snapshot of what a ``Collect`` has collected so far.

A snapshot notes how much there is and copies nothing: taking one costs the same however long the answer is, so it may be
taken after every event. The collector only appends to the lists that a snapshot refers to, so a snapshot stays as it was
while more events come. Reading from a snapshot costs the length of what is read.
"""

from __future__ import annotations

from msgspec import Struct

from ..events import Citation, Echo, Extra, ReasoningStart, StopReason, StreamError, TextStart, ToolCallStart, Usage
from ..grammar import BlockStart
from ..json_types import JsonValue
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
    return TokenCounts(
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.raw,
    )
