"""A request reduced to what an upstream accepts. What it does not accept is removed or expressed in another way, and reported; the
given request is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import is_
from typing import TypeVar

from msgspec import structs

from ...errors import Unsupported
from ...json_types import JsonObject, JsonValue
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    Part,
    Request,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from .abilities import Abilities
from .custom_tools import as_function, call_as_function, result_as_function
from .fields import PARAMETERS, drop, is_harmless
from .state import StateFilter, is_native

_Answerable = TypeVar("_Answerable", ToolCallPart, ToolResultPart)
_SYSTEM = ("system", "developer")
_DIALOGUE = ("user", "assistant")


def adapt(request: Request, dialect: str, abilities: Abilities, provider: str = "") -> tuple[Request, list[str]]:
    """The request for an upstream of this dialect with these abilities, and the names of what was changed. ``provider`` is the
    maker of the state that the upstream may get."""
    built = Built({})
    changes = _Tools(dialect, abilities, built).changes(request) if request.tools else {}
    if not _is_plain_text(request.messages):
        messages = _Messages(dialect, abilities, built, provider or dialect).adapted(request.messages)
        if messages is not None:
            changes["messages"] = messages
    _adapt_fields(request, abilities, built, changes)
    return (structs.replace(request, **changes) if changes else request), built.dropped


def _is_plain_text(messages: list[Message]) -> bool:
    """Whether the messages are a conversation in text that every upstream accepts unchanged. This is the usual case."""
    for number, message in enumerate(messages):
        if message.role not in _DIALOGUE and (number or message.role != "system"):
            return False
        for part in message.parts:
            if type(part) is not TextPart or part.cache is not None or part.echo is not None:
                return False
    return True


def emulated_tools(request: Request, abilities: Abilities) -> frozenset[str]:
    """The custom tools whose calls come back as function calls."""
    if abilities.custom_tools:
        return frozenset()
    return frozenset(tool.name for tool in request.tools if tool.kind == "custom")


# --- tools


class _Tools:
    def __init__(self, dialect: str, abilities: Abilities, built: Built) -> None:
        self._dialect = dialect
        self._abilities = abilities
        self._built = built

    def changes(self, request: Request) -> JsonObject:
        missing = [tool.name for tool in request.tools if self._is_foreign(tool)]
        tools = [self._adapted(tool) for tool in request.tools if not self._is_foreign(tool)]
        if not missing:
            return {} if _same(tools, request.tools) else {"tools": tools}
        for name in missing:
            self._built.drop(f"tools.{name}")
        changes = {"tools": tools, "tool_choice": _choice_without(missing, request.tool_choice, tools)}
        return changes if tools else {**changes, "parallel_tool_calls": None}

    def _is_foreign(self, tool: ToolSpec) -> bool:
        """Whether another provider runs this tool."""
        return tool.kind == "server" and not is_native(tool.native, self._dialect)

    def _adapted(self, tool: ToolSpec) -> ToolSpec:
        if tool.cache is not None and not self._abilities.cache_control:
            self._built.drop("cache_control")
            tool = structs.replace(tool, cache=None)
        if tool.kind == "custom" and not self._abilities.custom_tools:
            if tool.format is not None and tool.format.get("type") != "text":
                self._built.drop(f"tools.{tool.name}.format")
            tool = as_function(tool)
        return tool


def _choice_without(missing: list[str], choice: ToolChoice | None, tools: list[ToolSpec]) -> ToolChoice | None:
    """The tool choice without the missing tools. Raises if it requires one of them."""
    if choice is None or choice.mode == "none":
        return choice if tools else None
    left = [name for name in choice.tools if name not in missing]
    if choice.mode == "required" and (not tools or (choice.tools and not left)):
        wanted = next((name for name in choice.tools if name in missing), missing[0])
        raise Unsupported(
            f"tool_choice requires the tool {wanted!r}, which another provider runs and the chosen upstream does not have; leave "
            "the choice to the model, or choose an upstream that has the tool",
            detail={"param": "tool_choice"},
        )
    if not tools:
        return None
    return ToolChoice("none") if choice.tools and not left else ToolChoice(choice.mode, left)


# --- messages


class _Messages:
    def __init__(self, dialect: str, abilities: Abilities, built: Built, provider: str) -> None:
        self._dialect = dialect
        self._abilities = abilities
        self._built = built
        self._state = StateFilter(dialect, provider, built)
        self._server_calls: set[str] = set()

    def adapted(self, messages: list[Message]) -> list[Message] | None:
        """The adapted messages; None if nothing changes."""
        parts = (part for message in messages for part in message.parts)
        self._server_calls = {part.call_id for part in parts if isinstance(part, ToolCallPart) and part.kind == "server"}
        adapted = [self._message(message) for message in messages]
        if not self._abilities.inner_system:
            adapted = self._with_one_system_message(adapted)
        return None if _same(adapted, messages) else adapted

    def _message(self, message: Message) -> Message:
        role = message.role
        if role == "developer" and not self._abilities.developer_role:
            self._built.drop("messages.developer")
            role = "system"
        parts = [self._part(part) for part in self._state.kept(message.parts)]
        if role == message.role and _same(parts, message.parts):
            return message
        return structs.replace(message, role=role, parts=parts)

    def _part(self, part: Part) -> Part:
        match part:
            case TextPart() | MediaPart():
                return part if part.cache is None else self._without_cache(part)
            case ToolCallPart():
                if part.kind == "custom" and not self._abilities.custom_tools:
                    part = call_as_function(part)
                return self._with_id(part if part.cache is None else self._without_cache(part))
            case ToolResultPart():
                if part.call_id in self._server_calls and part.kind != "server":
                    part = structs.replace(part, kind="server")
                elif part.kind == "custom" and not self._abilities.custom_tools:
                    part = result_as_function(part)
                return self._with_id(self._in_words(part if part.cache is None else self._without_cache(part)))
            case NativePart() if part.dialect != self._dialect and part.text:
                self._built.drop(f"messages.{part.data.get('type', 'part')}")
                return TextPart(part.text)
        return part

    def _without_cache(self, part: JsonValue) -> JsonValue:
        """The part without its ``cache`` mark."""
        if self._abilities.cache_control:
            return part
        self._built.drop("cache_control")
        return structs.replace(part, cache=None)

    def _with_id(self, part: _Answerable) -> _Answerable:
        max_chars = self._abilities.call_id_chars
        if not max_chars or part.kind == "server" or _fits(part.call_id, max_chars, bool(self._abilities.call_id_fixed)):
            return part
        return structs.replace(part, call_id=_digest(part.call_id, max_chars))

    def _in_words(self, part: ToolResultPart) -> ToolResultPart:
        """The result with parts of other dialects converted to text, or without them if they have none."""
        content = [adapted for piece in part.content if (adapted := self._piece(piece)) is not None]
        return part if _same(content, part.content) else structs.replace(part, content=content)

    def _piece(self, piece: TextPart | MediaPart | NativePart) -> Part | None:
        adapted = self._part(piece)
        if isinstance(adapted, NativePart) and adapted.dialect != self._dialect:
            self._built.drop(f"messages.{adapted.data.get('type', 'part')}")
            return None
        return adapted

    def _with_one_system_message(self, messages: list[Message]) -> list[Message]:
        """Puts one system message at the beginning. Later ones stay in place as user messages, but never between a call and its
        result."""
        first = next((place for place, message in enumerate(messages) if message.role not in _SYSTEM), len(messages))
        leading = messages[:first]
        adapted = leading if len(leading) < 2 else [_joined(leading)]
        waiting: list[Message] = []
        for message in messages[first:]:
            if message.role in _SYSTEM:
                self._built.drop("messages.system")
                message = structs.replace(message, role="user")
                (waiting if adapted and _calls(adapted[-1]) else adapted).append(message)
            elif message.role == "tool":
                adapted += [message, *waiting]
                waiting = []
            else:
                adapted += [*waiting, message]
                waiting = []
        return [*adapted, *waiting]


def _joined(messages: list[Message]) -> Message:
    parts: list[Part] = []
    for message in messages:
        if parts:
            parts.append(TextPart("\n\n"))
        parts += message.parts
    return structs.replace(messages[0], parts=parts)


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) and part.kind != "server" for part in message.parts)


def _same(new: Sequence[object], old: Sequence[object]) -> bool:
    """Whether both sequences contain the same objects."""
    return len(new) == len(old) and all(map(is_, new, old))


def _fits(call_id: str, max_chars: int, fixed: bool) -> bool:
    return len(call_id) == max_chars and call_id.isascii() and call_id.isalnum() if fixed else len(call_id) <= max_chars


def _digest(text: str, max_chars: int) -> str:
    """A short, stable replacement for a long id: letters and digits."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:max_chars]


# --- parameters


def _adapt_fields(request: Request, abilities: Abilities, built: Built, changes: JsonObject) -> None:
    user, max_chars = request.user, abilities.user_chars
    if user is not None and max_chars is not None and len(user) > max_chars:
        built.drop("user")
        changes["user"] = _digest(user, max_chars) if max_chars else None
    for name in abilities.refused or ():
        value = getattr(request, name)
        if value is None or value == []:
            continue
        if not is_harmless(name, value):
            drop(built, name, PARAMETERS[name].absent == "refuse", PARAMETERS[name].meaning)
        changes[name] = [] if isinstance(value, list) and name == "stop" else None
