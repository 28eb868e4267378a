"""Emulates custom tools, which take free text, for upstreams that know functions only.

Such a tool is declared as a function with one text parameter, ``input``. The model's calls are converted back to custom calls:
``CustomCalls`` extracts the text from the arguments while they stream, wherever they are split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import is_
from typing import Final

import msgspec
from msgspec import structs

from ...events import EVENT_KINDS, BareEvent, ToolCallDelta, ToolCallEnd, ToolCallStart, as_list
from ...json.tokenizer import escape, run
from ...json_types import JsonObject
from ...messages import Message, Part, Request, ToolCallPart, ToolResultPart, ToolSpec
from .lenient import clean, is_json, loads

FREE_TEXT: Final[JsonObject] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_HOW: Final = 'Give the whole input as one string in "input".'


def as_function(tool: ToolSpec) -> ToolSpec:
    """The function that replaces a custom tool. A grammar for its input becomes part of the description."""
    paragraphs = [tool.description, _HOW, _grammar(tool.format)]
    description = "\n\n".join(text for text in paragraphs if text)
    return structs.replace(tool, description=description, parameters=FREE_TEXT, kind="function", format=None)


def with_functions_only(request: Request) -> Request:
    """The request with functions for its custom tools, also in its messages. It is returned as it is if it has none."""
    tools = [as_function(tool) if tool.kind == "custom" else tool for tool in request.tools]
    messages = [_with_function_calls(message) for message in request.messages]
    if all(map(is_, tools, request.tools)) and all(map(is_, messages, request.messages)):
        return request
    return structs.replace(request, tools=tools, messages=messages)


def _with_function_calls(message: Message) -> Message:
    if not any(getattr(part, "kind", "") == "custom" for part in message.parts):
        return message
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCallPart(kind="custom"):
                part = call_as_function(part)
            case ToolResultPart(kind="custom"):
                part = result_as_function(part)
        parts.append(part)
    return structs.replace(message, parts=parts)


def call_as_function(part: ToolCallPart) -> ToolCallPart:
    arguments = msgspec.json.encode({"input": part.arguments}).decode()
    return structs.replace(part, arguments=arguments, kind="function")


def result_as_function(part: ToolResultPart) -> ToolResultPart:
    return structs.replace(part, kind="function")


def _grammar(form: JsonObject | None) -> str:
    grammar = (form or {}).get("grammar")
    if not isinstance(grammar, dict) or not grammar.get("definition"):
        return ""
    return f"The input must follow this grammar ({grammar.get('syntax', 'lark')}):\n\n{grammar['definition']}"


class CustomCalls:
    """A box for the events of one choice: calls of the functions ``names`` become calls of custom tools."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._input: _Input | None = None

    def feed(self, events: Iterable[BareEvent] | BareEvent) -> list[BareEvent]:
        if type(events) in EVENT_KINDS:
            return self._event(events)  # type: ignore[arg-type]  # it is one event
        return [given for event in as_list(events) for given in self._event(event)]  # type: ignore[arg-type]  # no Choice

    def _event(self, event: BareEvent) -> list[BareEvent]:
        if type(event) is ToolCallStart:
            if event.kind != "function" or event.name not in self._names:
                return [event]
            self._input = _Input()
            return [ToolCallStart(event.call_id, event.name, "custom", event.native)]
        if self._input is None:
            return [event]
        if type(event) is ToolCallDelta:
            return _delta(self._input.feed(event.args))
        if type(event) is ToolCallEnd:
            rest, self._input = self._input.close(), None
            return [*_delta(rest), event]
        return [event]

    def close(self) -> list[BareEvent]:
        return []


def _delta(text: str) -> list[BareEvent]:
    return [ToolCallDelta(text)] if text else []


_HEAD: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HEAD_BEGINS: Final = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?\Z')
_HEAD_CHARS: Final = 200
"""Maximum characters before the text. Models write fewer than 20; the head is parsed again with each piece."""
_SPECIAL: Final = re.compile(r'["\\]')
_UNICODE_CHARS: Final = 6
r"""The length of ``\uXXXX``."""
_REPLACEMENT: Final = "\ufffd"


class _Input:
    """Extracts the text of ``{"input": "…"}`` as it streams. Arguments in another form are held back and parsed at the end."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._head = ""
        self._state = "head"
        self._escape = ""

    def feed(self, piece: str) -> str:
        if self._state == "string":
            return self._text(piece)
        if self._state == "head":
            self._head += piece
            found = _HEAD.match(self._head)
            if found is not None:
                self._state = "string"
                return self._text(self._head[found.end() :])
            if len(self._head) > _HEAD_CHARS or _HEAD_BEGINS.match(self._head) is None:
                self._held, self._state = [self._head], "held"
        elif self._state == "held":
            self._held.append(piece)
        return ""

    def close(self) -> str:
        if self._state == "held":
            return _free_text("".join(self._held))
        if self._state == "head":
            return _free_text(self._head)
        return _REPLACEMENT if self._escape.startswith("\\u") and len(self._escape) >= _UNICODE_CHARS else ""

    def _text(self, piece: str) -> str:
        if not self._escape and _SPECIAL.search(piece) is None:
            return piece
        decoded: list[str] = []
        piece, self._escape = self._escape + piece, ""
        position = 0
        while True:
            position, text = run(piece, position)
            decoded.append(text)
            if position == len(piece):
                break
            if piece[position] == '"':
                self._state = "over"
                break
            escaped = escape(piece, position)
            end, text = escaped or (0, "")
            if end == position:  # not an escape of JSON
                end, text = position + _UNICODE_CHARS, _REPLACEMENT
            if escaped is None or end > len(piece):
                self._escape = piece[position:]
                break
            decoded.append(_REPLACEMENT if "\ud800" <= text <= "\udfff" else text)
            position = end
        return "".join(decoded)


def _free_text(arguments: str) -> str:
    """The text that is meant by arguments of another form: the one text in them, or all of them."""
    if not is_json(arguments):
        return arguments
    value = clean(loads(arguments.encode("utf-8", "replace"))[0])
    if isinstance(value, dict) and "input" in value:
        value = value["input"]
    elif isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, str):
        return value
    return "" if value in (None, {}) else msgspec.json.encode(value).decode()
