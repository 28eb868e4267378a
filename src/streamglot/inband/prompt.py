"""The request side: describes tools in the prompt, for a model without tool support.

The declared tools become a text in the system message, with the notation that the in-band parser reads; earlier calls become text
in that notation, and results become text in a user message, each with the name and the id of its call. ``tool_choice`` and
``parallel_tool_calls`` become sentences. The given request is not changed.
"""

from __future__ import annotations

from msgspec import structs

from ..json_types import JsonObject
from ..messages import Message, Part, Request, TextPart, ToolCallPart, ToolChoice, ToolResultPart, ToolSpec
from .engines import WrittenCall, dumped
from .format import Format
from .profiles import find_format

_INTRODUCTION = "You can call tools. These are the tools, each with the JSON schema of its parameters:"
_HOW = "To call a tool, write the call exactly like this, and nothing behind it:"
_SEVERAL = "Several calls may follow each other. The results come in the next message."
_ONE = "Write one call at most. Its result comes in the next message."
_MUST = "You must call one of these tools now."
_MUST_THIS = "You must call the tool {name} now."
_MAY = "Call a tool only if it helps; otherwise just answer."


def as_prompt(request: Request, format: str | Format = "auto") -> Request:
    """The same request with its tools as text. Tools that the provider runs are not changed."""
    row = find_format(format, request.model)
    names = {part.call_id: part.name for message in request.messages for part in message.parts if isinstance(part, ToolCallPart)}
    messages: list[Message] = []
    for message in request.messages:
        _append(messages, _in_words(message, row, names))
    offered = _offered(request)
    if offered:
        messages = _with_system(messages, _tools_text(offered, row, request))
    return structs.replace(
        request,
        messages=messages,
        tools=[tool for tool in request.tools if tool.kind == "server"],
        tool_choice=None,
        parallel_tool_calls=None,
    )


def _offered(request: Request) -> list[ToolSpec]:
    """The tools that may be called; empty if the tool choice forbids calls."""
    choice = request.tool_choice or ToolChoice()
    if choice.mode == "none":
        return []
    return [tool for tool in request.tools if tool.kind != "server" and (not choice.tools or tool.name in choice.tools)]


def _tools_text(tools: list[ToolSpec], row: Format, request: Request) -> str:
    choice = request.tool_choice or ToolChoice()
    lines = [_INTRODUCTION, ""]
    for tool in tools:
        shown: JsonObject = {"name": tool.name}
        if tool.description:
            shown["description"] = tool.description
        shown["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        lines.append(dumped(shown))
    lines += ["", _HOW, "", row.write([_example(tools[0])]), ""]
    lines.append(_ONE if request.parallel_tool_calls is False else _SEVERAL)
    if choice.mode == "required":
        lines.append(_MUST_THIS.format(name=tools[0].name) if len(tools) == 1 and choice.tools else _MUST)
    else:
        lines.append(_MAY)
    return "\n".join(lines)


_SAMPLES: JsonObject = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


def _example(tool: ToolSpec) -> WrittenCall:
    properties = (tool.parameters or {}).get("properties") or {}
    members = {}
    for key, schema in properties.items():
        kind = schema.get("type") if isinstance(schema, dict) else None
        members[key] = _SAMPLES.get(kind, "value") if isinstance(kind, str) else "value"
    return WrittenCall(tool.name, dumped(members), "0")


def _in_words(message: Message, row: Format, names: dict[str, str]) -> Message:
    """The message with its calls and results as text. Results become user text."""
    parts: list[Part] = []
    calls: list[WrittenCall] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart) and part.kind != "server":
            calls.append(WrittenCall(part.name, part.arguments or "{}", part.call_id))
            continue
        if calls:
            parts.append(TextPart(_on_new_line(parts, row.write(calls))))
            calls = []
        if isinstance(part, ToolResultPart) and part.kind != "server":
            parts += _result(part, names)
        else:
            parts.append(part)
    if calls:
        parts.append(TextPart(_on_new_line(parts, row.write(calls))))
    role = "user" if message.role == "tool" else message.role
    return structs.replace(message, role=role, parts=parts)


def _on_new_line(parts: list[Part], text: str) -> str:
    last = parts[-1] if parts else None
    return f"\n{text}" if isinstance(last, TextPart) and last.text and not last.text.endswith("\n") else text


def _result(part: ToolResultPart, names: dict[str, str]) -> list[Part]:
    from html import escape  # 1 ms, which only upstreams without tools need

    name = part.name or names.get(part.call_id, "")
    failed = ' error="true"' if part.is_error else ""
    head = f'<tool_response name="{escape(name)}" id="{escape(part.call_id)}"{failed}>\n'
    others: list[Part] = [item for item in part.content if not isinstance(item, TextPart)]
    return [TextPart(f"{head}{part.text}\n</tool_response>\n", cache=part.cache), *others]


def _append(messages: list[Message], message: Message) -> None:
    """Adds the message. Consecutive messages with results are merged."""
    last = messages[-1] if messages else None
    if last is not None and last.role == "user" == message.role and _only_results(last) and _only_results(message):
        messages[-1] = structs.replace(last, parts=[*last.parts, *message.parts])
    else:
        messages.append(message)


def _only_results(message: Message) -> bool:
    first = message.parts[0] if message.parts else None
    return isinstance(first, TextPart) and first.text.startswith("<tool_response ")


def _with_system(messages: list[Message], text: str) -> list[Message]:
    """Adds the text to the end of the first system message, or in a new one."""
    for index, message in enumerate(messages):
        if message.role in ("system", "developer"):
            joined = structs.replace(message, parts=[*message.parts, TextPart(f"\n\n{text}" if message.text else text)])
            return [*messages[:index], joined, *messages[index + 1 :]]
        if message.role != "user":
            break
    return [Message("system", [TextPart(text)]), *messages]
