"""State belongs to its maker, and travels inside another dialect's opaque field.

``Echo.provider`` names the maker of opaque state: the format of the API, and after an ``@`` who answered there
(``openai_chat@deepseek``, ``anthropic@10.0.0.5:8000``). A client that returns a native field of its dialect cannot say who made
it: such state has the name of the format alone, and every upstream that speaks the format is offered it.

A client of dialect A keeps and returns A's opaque fields (a signature, encrypted reasoning) and nothing else. State in the format
of A is written into them unchanged. State in another format is packed into them with a prefix, together with its maker, and
unpacked when the client sends the conversation back. It is sent to its maker, and to no other.

``StateFilter`` is the only place that decides which state an upstream gets: a builder sends every state that is left in its
messages.
"""

from __future__ import annotations

import base64
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from ...events import Echo
from ...json_types import JSON_ERRORS
from ...messages import Built, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

OURS = "streamglot"
"""The provider of marks that are no provider's state."""
UNREADABLE = "unreadable"
_MARK = "sglot1."
AT: Final = "@"
"""Stands between the format and who answers, so that its absence says that nobody is named."""
_decoder = msgspec.json.Decoder(Echo)
_IDENTIFYING: Final = (
    *("id", "encrypted_content", "signature", "data", "redactedContent", "thoughtSignature", "encryptedValue"),
    *("extra_content", "reasoning_details", "providerMetadata"),
)
"""Fields of which one is enough to recognize state: clients remove other fields, and writers add some."""


def pack(echo: Echo) -> str:
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(echo)).decode()


def unpack(text: str) -> Echo | None:
    """The echo that ``pack`` encoded, or None if the text is not one. A text that was changed is state of nobody, so that it is not
    taken for state of the client's own format."""
    if not text.startswith(_MARK):
        return None
    try:
        return _decoder.decode(base64.urlsafe_b64decode(text[len(_MARK) :]))
    except JSON_ERRORS:
        return Echo(OURS, {UNREADABLE: True})


def maker(dialect: str, provider: str | None) -> str:
    """The maker of state in this dialect. ``provider`` is who answers there, or the maker itself; without it, nobody is named."""
    if not provider or provider == dialect or AT in provider:
        return provider or dialect
    return f"{dialect}{AT}{provider}"


def in_format(provider: str, dialect: str) -> str:
    """The same maker for an inner dialect: a service that carries the format of another one."""
    return dialect + provider[len(format_of(provider)) :]


def format_of(provider: str) -> str:
    """The dialect in whose format this maker's state is."""
    return provider.partition(AT)[0]


def is_native(echo: Echo | None, dialect: str) -> bool:
    """Whether this state is in the format of the dialect, whoever made it."""
    return echo is not None and (echo.provider == dialect or format_of(echo.provider) == dialect)


def belongs_to(echo: Echo, provider: str) -> bool:
    """Whether this maker may get the state: it made it, or it speaks the format and nobody is named."""
    return echo.provider == provider or echo.provider == format_of(provider)


def same_state(one: Echo, other: Echo) -> bool:
    """Whether both are the same state, perhaps with fields that a client removed or a writer added."""
    if format_of(one.provider) != format_of(other.provider):
        return False
    return one.data == other.data or any((value := one.data.get(name)) and value == other.data.get(name) for name in _IDENTIFYING)


# --- what one upstream may get

_REASONING: Final = "messages.reasoning"
_ADDRESS: Final = frozenset(("type", "id", "status"))
"""Fields that only say which item this was. Nothing is lost without them."""

_Stateful = TypeVar("_Stateful", TextPart, ToolCallPart)


class StateFilter:
    """Keeps the state of a conversation that one upstream may get, and names what it must not get. ``provider`` is the maker that
    is asked, in the format of its ``dialect``."""

    def __init__(self, dialect: str, provider: str, built: Built) -> None:
        self._dialect = dialect
        self._provider = provider
        self._built = built

    def kept(self, parts: list[Part]) -> list[Part]:
        """The parts with the state that the upstream may get, without those that are nothing without their state."""
        left: list[Part] = []
        waiting = False
        for part in parts:
            if isinstance(part, ReasoningPart) and part.summary and part.echo is None:
                waiting = True  # one of several summaries: the last one has the state of them all
                continue
            kept = self._part(part)
            if waiting and not isinstance(kept, ReasoningPart):
                self._built.drop(_REASONING)
            waiting = False
            if kept is not None:
                left.append(kept)
        if waiting:
            self._built.drop(_REASONING)
        return left

    def _part(self, part: Part) -> Part | None:
        match part:
            case TextPart():
                return part if part.echo is None else self._text(part)
            case ReasoningPart():
                return self._reasoning(part)
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart() if part.native is not None:
                return self._result(part)
        return part

    def _reasoning(self, part: ReasoningPart) -> ReasoningPart | None:
        echo = part.echo
        if echo is not None and is_native(echo, self._dialect):
            if belongs_to(echo, self._provider):
                return part
            if "field" in echo.data:  # plain text, which nobody signed; its writer's name of the field is not this upstream's
                return structs.replace(part, echo=Echo(self._provider, {"field": ""}))
        self._built.drop(_REASONING)
        return None

    def _call(self, part: ToolCallPart) -> ToolCallPart | None:
        if part.kind == "server":
            state = part.native or part.echo
            if state is not None and is_native(state, self._dialect) and belongs_to(state, self._provider):
                return part
            self._built.drop(f"messages.{part.name if state is None else _item_name(state)}")
            return None
        if part.native is not None and not is_native(part.native, self._dialect):
            part = structs.replace(part, native=None)
        return part if part.echo is None else self._without_foreign(part, "messages.tool_calls.state")

    def _result(self, part: ToolResultPart) -> ToolResultPart | None:
        assert part.native is not None
        if not is_native(part.native, self._dialect):
            if part.kind == "server":
                self._built.drop(f"messages.{_item_name(part.native)}")
                return None
            return structs.replace(part, native=None)
        if part.kind == "server" and not belongs_to(part.native, self._provider):
            self._built.drop(f"messages.{_item_name(part.native)}")
            return None
        return part

    def _text(self, part: TextPart) -> TextPart | None:
        kept = self._without_foreign(part, "messages.text.state")
        return kept if kept.text or kept.echo is not None else None

    def _without_foreign(self, part: _Stateful, name: str) -> _Stateful:
        echo = part.echo
        assert echo is not None
        if is_native(echo, self._dialect) and belongs_to(echo, self._provider):
            return part
        if not _ADDRESS.issuperset(echo.data):
            self._built.drop(name)
        return structs.replace(part, echo=None)


def _item_name(state: Echo) -> str:
    """The name of an item that only its maker knows: its type, else its first field."""
    kind = state.data.get("type")
    return kind if isinstance(kind, str) else next(iter(state.data), "state")
