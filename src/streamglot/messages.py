"""Requests, their messages and parts, and the response that a stream adds up to.

They are the same for every dialect. Fields that only one dialect has are in ``Request.extra`` or in a ``NativePart``. They are
sent only to an upstream of that dialect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, get_args

import msgspec
from msgspec import Struct, field

from .errors import ToolCallParseError, error_of, excerpt
from .events import CallKind, Citation, Echo, Extra, StopReason, StreamError
from .json_types import JsonObject

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content", "reasoning_details", "all"]
"""The field with the text of reasoning, in dialects whose servers invented several. Each client reads its own."""


class _Part(Struct, omit_defaults=True, tag_field="type"):
    """``cache`` asks the provider to cache the prompt up to here; it is the time to live ("5m", "1h"; "" = default). ``echo`` and ``native`` are
    opaque state and the form of the part for its own provider."""


class TextPart(_Part, tag="text"):
    """A piece of ``text``, with the ``citations`` of its sources."""

    text: str
    citations: list[Citation] = field(default_factory=list)
    echo: Echo | None = None
    cache: str | None = None


class RefusalPart(_Part, tag="refusal"):
    """The ``text`` of a refusal, where the provider marks it as one."""

    text: str


class ReasoningPart(_Part, tag="reasoning"):
    """The ``text`` of the reasoning; ``summary`` if it is a summary of it, ``redacted`` if the provider hid it."""

    text: str
    summary: bool = False
    redacted: bool = False
    echo: Echo | None = None


class ToolCallPart(_Part, tag="tool_call"):
    """A call of a tool. ``name`` is the tool, ``call_id`` the id that its result repeats, ``arguments`` JSON text (free text for a custom
    tool), and ``json()`` the same decoded. ``complete`` is False for a call that broke off: it is never run. ``kind`` is "server" for a
    call that the provider or a tool loop runs. ``echo`` and ``native`` are state of its provider, ``cache`` as for all parts."""

    call_id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    complete: bool = True
    echo: Echo | None = None
    native: Echo | None = None
    cache: str | None = None

    def json(self) -> JsonObject:
        """The arguments, decoded. No arguments are an empty object. Raises ``ToolCallParseError`` for a call that broke off and for
        arguments that are not a JSON object."""
        if not self.complete:
            raise ToolCallParseError(f"the call of the tool {self.name!r} broke off: do not run it, ask the model again")
        if not self.arguments.strip():
            return {}
        try:
            decoded: object = msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolCallParseError(
                f"the arguments of the tool {self.name!r} are not JSON: {error}: {excerpt(self.arguments)}"
            ) from None
        if not isinstance(decoded, dict):
            raise ToolCallParseError(f"the arguments of the tool {self.name!r} are not an object: {excerpt(self.arguments)}")
        return decoded


class MediaPart(_Part, tag="media"):
    """An image, audio or a document: ``MediaPart(url="https://…")``, or ``MediaPart("image/png", data=base64_text)``. ``mime`` is its type. One of
    ``data`` (base64), ``url`` and ``file_id`` refers to its content. ``filename``, ``detail`` and ``id`` are what providers know it by;
    ``transcript`` is the text of audio."""

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
    """A block or item that only one ``dialect`` knows, as its ``data``. ``text`` is its text for other dialects."""

    dialect: str
    data: JsonObject
    text: str = ""


class ToolResultPart(_Part, tag="tool_result"):
    """The result of a tool: ``ToolResultPart(call.call_id, "22 °C")``, or with parts as ``content``. ``call_id`` is that of the call, and
    ``is_error`` says that the tool failed. ``name`` is kept if the dialect has it, because some dialects match results by name. ``kind`` is
    that of the call."""

    call_id: str
    content: list[TextPart | MediaPart | NativePart]
    is_error: bool = False
    name: str = ""
    kind: CallKind = "function"
    native: Echo | None = None
    cache: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            call_id: str,
            content: str | Iterable[TextPart | MediaPart | NativePart],
            is_error: bool = False,
            name: str = "",
            kind: CallKind = "function",
            native: Echo | None = None,
            cache: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if type(self.content) is not list:
            self.content = [TextPart(self.content)] if isinstance(self.content, str) else list(self.content)

    @property
    def text(self) -> str:
        """The text of the result."""
        return text_of(self.content)


Part: TypeAlias = TextPart | RefusalPart | ReasoningPart | ToolCallPart | ToolResultPart | MediaPart | NativePart


_PARTS: Final = frozenset(get_args(Part))


def _part(given: object) -> Part:
    """A part of a message, as it may be written by hand."""
    if isinstance(given, str):
        return TextPart(given)
    if type(given) not in _PARTS:
        raise TypeError(
            f"a part of a message is a str or a part such as TextPart, not {type(given).__name__}; messages in the form of a dialect "
            "are parsed by its parse_request"
        )
    return given  # type: ignore[return-value]  # it is one of them


class Message(Struct, omit_defaults=True):
    """One turn of a conversation: ``Message("user", "Hello")``, or with ``parts``: ``Message("user", [TextPart("What is this?"),
    MediaPart(url="https://…")])``. ``role`` is system, developer, user, assistant or tool; ``name`` the name of the speaker. ``echo`` is
    state of the whole message (an id, a phase) for its provider. Raises ``TypeError`` for parts that are none."""

    role: Role
    parts: list[Part]
    name: str = ""
    echo: Echo | None = None

    if TYPE_CHECKING:

        def __init__(
            self, role: Role, parts: str | Part | Iterable[str | Part], name: str = "", echo: Echo | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        parts = self.parts
        if type(parts) is not list:
            if isinstance(parts, str) or type(parts) in _PARTS:
                parts = self.parts = [_part(parts)]
            elif isinstance(parts, Iterable) and not isinstance(parts, (bytes, dict)):
                parts = self.parts = list(parts)
            else:
                raise TypeError(f"the parts of a message are a str or parts such as TextPart, not {type(parts).__name__}")
        for part in parts:
            if type(part) not in _PARTS:
                self.parts = [_part(each) for each in parts]
                break

    @property
    def text(self) -> str:
        """The text of the message."""
        return text_of(self.parts)


class ToolSpec(Struct, omit_defaults=True):
    """A tool that the model may call: ``ToolSpec("weather", "The weather of a city", schema)``. ``kind`` is "function", with a JSON schema as
    ``parameters``; "custom", which takes free text of a ``format``; or "server", which the provider runs, its whole definition in ``native``.
    ``name`` and ``description`` are for the model. ``strict`` asks the provider to keep to the schema; ``cache`` is as for parts."""

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
    """How much to reason, as a word (``effort``) or as a number of tokens (``budget_tokens``), and whether to: ``enabled``. ``summary`` asks for
    a summary of it. The builder of an upstream's dialect decides which of the two it sends. ``native`` has the client's own fields for it, for
    an upstream of the same dialect."""

    effort: Effort | None = None
    budget_tokens: int | None = None
    enabled: bool | None = None
    summary: str | None = None
    native: Echo | None = None


class OutputFormat(Struct, omit_defaults=True):
    """The form of the answer: ``kind`` is "text", "json_object", or "json_schema" with a ``schema``, its ``name`` and ``description``. ``strict`` asks
    the provider to keep to the schema."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str = ""
    schema: JsonObject | None = None
    strict: bool | None = None


class Request(Struct, omit_defaults=True):
    """A request: ``Request("m", "Hello")``, or with messages: ``Request("m", [Message("user", "Hello")], stream=True)``. It is the same
    for every dialect. None means that a field is not set, so that the upstream decides.

    - ``model``, ``messages``, ``tools``, ``tool_choice``, ``parallel_tool_calls``: what is asked of whom, and the tools it may call.
    - ``stream``: whether the answer is wanted as a stream; ``include_usage``: whether the stream tells the usage.
    - ``max_tokens``, ``stop``, ``n``: how long an answer may be, where it stops, and how many of them.
    - ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``frequency_penalty``, ``presence_penalty``, ``repetition_penalty``, ``logit_bias``,
      ``seed``: how tokens are chosen. ``logprobs``, ``top_logprobs``: their probabilities.
    - ``reasoning``, ``output``, ``verbosity``, ``modalities``, ``audio``: how to reason, and the form of the answer.
    - ``service_tier``, ``cache_key``, ``store``, ``user``, ``metadata``, ``previous_response_id``: for the provider's own records.
    - ``functions``: the client declared its tools in the old field of this name, and expects calls in the old form.
    - ``dialect``, ``extra``, ``essential``: the client's dialect, the fields that only it knows, and the names of those that change what
      the answer is.

    Raises ``TypeError`` for messages that are none."""

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

    if TYPE_CHECKING:

        def __init__(
            self,
            model: str = "",
            messages: str | Message | Iterable[Message] = ...,
            tools: list[ToolSpec] = ...,
            tool_choice: ToolChoice | None = None,
            parallel_tool_calls: bool | None = None,
            stream: bool = False,
            include_usage: bool = False,
            functions: bool = False,
            max_tokens: int | None = None,
            stop: list[str] = ...,
            temperature: float | None = None,
            top_p: float | None = None,
            top_k: int | None = None,
            min_p: float | None = None,
            frequency_penalty: float | None = None,
            presence_penalty: float | None = None,
            repetition_penalty: float | None = None,
            logit_bias: dict[str, float] | None = None,
            seed: int | None = None,
            n: int | None = None,
            logprobs: bool | None = None,
            top_logprobs: int | None = None,
            reasoning: Reasoning | None = None,
            output: OutputFormat | None = None,
            verbosity: str | None = None,
            modalities: list[str] | None = None,
            audio: JsonObject | None = None,
            service_tier: str | None = None,
            cache_key: str | None = None,
            store: bool | None = None,
            user: str | None = None,
            metadata: JsonObject | None = None,
            previous_response_id: str | None = None,
            dialect: str = "",
            extra: JsonObject = ...,
            essential: list[str] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        messages = self.messages
        if type(messages) is not list:
            if isinstance(messages, str):
                self.messages = [Message("user", [TextPart(messages)])]
            elif isinstance(messages, Message):
                self.messages = [messages]
            elif isinstance(messages, Iterable) and not isinstance(messages, (bytes, dict)):
                self.messages = list(messages)
            else:
                raise TypeError(f"the messages of a request are a str or Message objects, not {type(messages).__name__}")
        if self.messages and not isinstance(self.messages[0], Message):  # the others are like the first
            raise TypeError(
                f"a message is a Message, not {type(self.messages[0]).__name__}; a body in the form of a dialect is parsed by its "
                "parse_request, or prepared by prepare(body, target, source='…')"
            )


class Built(Struct):
    """The ``body`` of a request in a dialect, and in ``dropped`` the names of what this dialect cannot express. ``state`` is what the next
    request of the conversation needs to know of this one, for an upstream that keeps the conversation itself."""

    body: JsonObject
    dropped: list[str] = field(default_factory=list)
    state: JsonObject = field(default_factory=dict)

    def drop(self, name: str) -> None:
        """Lists a name as dropped, once."""
        if name not in self.dropped:
            self.dropped.append(name)


class TokenCounts(Struct):
    """The usage of a whole answer, or of one of its steps. ``input_tokens`` include ``cached_tokens`` and ``cache_write_tokens``,
    ``output_tokens`` include ``reasoning_tokens``. None is unknown. ``raw`` is the provider's own object."""

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
    """One answer. ``parts`` are those of all its steps, in order; ``steps`` is empty for an answer of one model turn. ``index`` is its number,
    ``stop_reason`` why it ended, ``raw_stop_reason`` the provider's own word for it, and ``stop_sequence`` the sequence that ended it. ``extras``
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
        """The visible text."""
        return text_of(self.parts)

    @property
    def reasoning(self) -> str:
        """The reasoning, as far as the provider shows it."""
        return reasoning_of(self.parts)

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The calls that the program is to run. Those that the provider or a tool loop ran (kind "server") are only in ``parts``."""
        return calls_of(self.parts)


class Response(Struct):
    """The answer that a stream adds up to. ``text``, ``reasoning``, ``tool_calls`` and ``stop_reason`` are those of the first choice;
    ``print(response)`` shows it.

    ``id``, ``model`` and ``created`` are the provider's. ``choices`` has the answers with their parts, usually one. ``usage`` is the sum
    over all steps. With an ``error``, the parts are those that came before it. ``extras`` are pieces that only one dialect has.
    ``extensions`` are the pieces of reasoning and calls as they arrived, if they were requested (docs/library/answers.md).
    """

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ResponseChoice] = field(default_factory=list)
    usage: TokenCounts = field(default_factory=TokenCounts)
    error: StreamError | None = None
    extras: list[Extra] = field(default_factory=list)
    extensions: JsonObject | None = None

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
        """The calls of the first choice that the program is to run. Those that the provider or a tool loop ran are only in its
        parts. A call with ``complete=False`` broke off."""
        return self.choices[0].tool_calls if self.choices else []

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the first choice ended; None if it did not."""
        return self.choices[0].stop_reason if self.choices else None

    @property
    def complete(self) -> bool:
        """Whether the answer reached its own end: no error, and every choice has ended. An answer that ran into the limit of tokens has
        ended; its ``stop_reason`` is "length"."""
        return is_complete(self.error, [choice.stop_reason for choice in self.choices])

    def raise_for_error(self) -> Self:
        """Raises the ``error`` of the answer as the exception that it is, such as ``UpstreamTruncated``. Returns the response if there is
        none."""
        if self.error is not None:
            raise error_of(self.error)
        return self

    def __str__(self) -> str:
        return shown(
            self.model, [(choice.index, choice.parts, choice.stop_reason) for choice in self.choices], self.usage, self.error
        )


# --- what an answer and a snapshot of it have in common


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def reasoning_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ReasoningPart))


def calls_of(parts: Iterable[Part]) -> list[ToolCallPart]:
    return [part for part in parts if isinstance(part, ToolCallPart) and part.kind != "server"]


def is_complete(error: StreamError | None, reasons: list[StopReason | None]) -> bool:
    return error is None and bool(reasons) and all(reason not in (None, "cancelled") for reason in reasons)


def shown(
    model: str, choices: Iterable[tuple[int, list[Part], StopReason | None]], usage: TokenCounts, error: StreamError | None
) -> str:
    """An answer as text for a person: its parts, then why it ended and what it used."""
    lines: list[str] = []
    end = ""
    for index, parts, reason in choices:
        if index:
            lines.append(f"[choice {index}: {reason or 'unfinished'}]")
        else:
            end = reason or ""
        lines += [line for part in parts if (line := _line(part))]
    facts = [end or ("" if error is not None else "unfinished"), model]
    facts += [
        f"{count} {word}" for count, word in ((usage.input_tokens, "in"), (usage.output_tokens, "out")) if count is not None
    ]
    if error is not None:
        facts.insert(0, f"error {error.code}: {error.message}")
    return "\n".join([*lines, f"[{', '.join(filter(None, facts))}]"])


def _line(part: Part) -> str:
    match part:
        case TextPart():
            return part.text
        case RefusalPart():
            return f"[refusal] {part.text}"
        case ReasoningPart():
            return f"[reasoning] {part.text}" if part.text else ""
        case ToolCallPart():
            return f"[call] {part.name}({part.arguments}){'' if part.complete else ' [broken off]'}"
        case ToolResultPart():
            return f"[result] {part.text}"
        case MediaPart():
            return f"[{part.mime or 'media'}] {part.url or part.transcript or part.filename}".rstrip()
        case _:
            return f"[{part.dialect}] {part.text}".rstrip()
