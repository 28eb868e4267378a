"""Requests, their messages and parts, and the response that a stream adds up to.

They are the same for every dialect. Fields that only one dialect has are in ``Request.extra`` or in a ``NativePart``. They are
sent only to an upstream of that dialect.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct, field

from .events import CallKind, Citation, Echo, Extra, StopReason, StreamError
from .json_types import JsonObject

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content", "reasoning_details", "all"]
"""The field with the text of reasoning, in dialects whose servers invented several. Each client reads its own."""


class _Part(Struct, omit_defaults=True, tag_field="type"):
    """``cache`` asks the provider to cache the prompt up to here; it is the time to live ("5m", "1h"; "" = default)."""


class TextPart(_Part, tag="text"):
    text: str
    citations: list[Citation] = field(default_factory=list)
    echo: Echo | None = None
    cache: str | None = None


class RefusalPart(_Part, tag="refusal"):
    text: str


class ReasoningPart(_Part, tag="reasoning"):
    text: str
    summary: bool = False
    redacted: bool = False
    echo: Echo | None = None


class ToolCallPart(_Part, tag="tool_call"):
    """``arguments`` is JSON text (free text for a custom tool). ``complete`` is False for a truncated call."""

    call_id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    complete: bool = True
    echo: Echo | None = None
    native: Echo | None = None
    cache: str | None = None


class MediaPart(_Part, tag="media"):
    """An image, audio or a document. One of ``data`` (base64), ``url`` and ``file_id`` refers to its content."""

    mime: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    filename: str = ""
    detail: str = ""
    id: str = ""
    transcript: str = ""
    cache: str | None = None


class NativePart(_Part, tag="native"):
    """A block or item that only one dialect knows. ``text`` is its text for other dialects."""

    dialect: str
    data: JsonObject
    text: str = ""


class ToolResultPart(_Part, tag="tool_result"):
    """The result of a tool. ``name`` is kept if the dialect has it, because some dialects match results by name."""

    call_id: str
    content: list[TextPart | MediaPart | NativePart]
    is_error: bool = False
    name: str = ""
    kind: CallKind = "function"
    native: Echo | None = None
    cache: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


Part: TypeAlias = TextPart | RefusalPart | ReasoningPart | ToolCallPart | ToolResultPart | MediaPart | NativePart


class Message(Struct, omit_defaults=True):
    """One turn. ``echo`` is state of the whole message (an id, a phase) for its provider."""

    role: Role
    parts: list[Part]
    name: str = ""
    echo: Echo | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class ToolSpec(Struct, omit_defaults=True):
    """A tool that the model may call: a function with a JSON schema, a custom tool with a text format, or a tool that the
    provider runs (kind "server", its whole definition in ``native``)."""

    name: str
    description: str = ""
    parameters: JsonObject | None = None
    strict: bool | None = None
    kind: CallKind = "function"
    format: JsonObject | None = None
    native: Echo | None = None
    cache: str | None = None


class ToolChoice(Struct, omit_defaults=True):
    """``tools`` names the only allowed ones (one for "must call this tool"); ``mode`` says whether one must be called."""

    mode: Literal["auto", "none", "required"] = "auto"
    tools: list[str] = field(default_factory=list)


class Reasoning(Struct, omit_defaults=True):
    """How much to reason, as a word or as a number of tokens, and whether to show it. The builder of an upstream's dialect
    decides which of the two it sends. ``native`` has the client's own fields for it, for an upstream of the same dialect."""

    effort: Effort | None = None
    budget_tokens: int | None = None
    enabled: bool | None = None
    summary: str | None = None
    native: Echo | None = None


class OutputFormat(Struct, omit_defaults=True):
    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str = ""
    schema: JsonObject | None = None
    strict: bool | None = None


class Request(Struct, omit_defaults=True):
    """The request of a client. None means that the client did not set the field, so the upstream decides. ``extra`` has the
    fields that only the client's ``dialect`` knows; ``essential`` names those of them that change what the answer is.
    ``include_usage``: the client asked for the usage at the end of a stream. ``functions``: it declared its tools in the old
    field of this name, and expects calls in the old form."""

    model: str = ""
    messages: list[Message] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool = False
    include_usage: bool = False
    functions: bool = False
    max_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning: Reasoning | None = None
    output: OutputFormat | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    audio: JsonObject | None = None
    service_tier: str | None = None
    cache_key: str | None = None
    store: bool | None = None
    user: str | None = None
    metadata: JsonObject | None = None
    previous_response_id: str | None = None
    dialect: str = ""
    extra: JsonObject = field(default_factory=dict)
    essential: list[str] = field(default_factory=list)


class Built(Struct):
    """The body of a request in a dialect, and the names of what this dialect cannot express. ``state`` is what the next request
    of the conversation needs to know of this one, for an upstream that keeps the conversation itself."""

    body: JsonObject
    dropped: list[str] = field(default_factory=list)
    state: JsonObject = field(default_factory=dict)

    def drop(self, name: str) -> None:
        """Lists a name as dropped, once."""
        if name not in self.dropped:
            self.dropped.append(name)


class TokenCounts(Struct):
    """The usage of a whole answer, or of one of its steps. The fields are those of the ``Usage`` event."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: JsonObject | None = None


class Step(Struct, omit_defaults=True):
    """One model turn of an answer with several. ``end`` is an index into the parts of the choice: the step has the parts before
    it that no earlier step has. ``number`` and ``reason`` are those of its ``StepEnd``; ``reason`` is None for a last step that
    the end of the stream ended. ``usage`` is that of this step only; only steps of choice 0 have it."""

    end: int
    number: int = 0
    reason: StopReason | None = None
    usage: TokenCounts = field(default_factory=TokenCounts)


class ResponseChoice(Struct):
    """One answer. ``parts`` are those of all its steps, in order; ``steps`` is empty for an answer of one model turn. ``extras``
    are the extras of this choice; those of choice 0 are in the response."""

    index: int
    parts: list[Part] = field(default_factory=list)
    stop_reason: StopReason | None = None
    raw_stop_reason: str | None = None
    stop_sequence: str | None = None
    extras: list[Extra] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class Response(Struct):
    """The answer that a stream adds up to. With an ``error``, the parts are those that came before it. ``usage`` is the sum over
    all steps. ``extensions`` are the pieces of reasoning and calls as they arrived, if they were requested (docs/library.md)."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ResponseChoice] = field(default_factory=list)
    usage: TokenCounts = field(default_factory=TokenCounts)
    error: StreamError | None = None
    extras: list[Extra] = field(default_factory=list)
    extensions: JsonObject | None = None
