"""Builds a request from a string, ``Message`` objects, or the fields of a dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final

from msgspec import Struct, structs

from ..dialects import dialect
from ..errors import excerpt
from ..json_types import JsonObject
from ..messages import Message, OutputFormat, Reasoning, Request, TextPart, ToolChoice, ToolSpec
from ..upstream import Upstream

DIALECT = Upstream().dialect
"""The default dialect of requests, which is also the default dialect of upstreams."""
FIELDS = frozenset(Request.__struct_fields__)
OBJECTS: Final[dict[str, type[Struct]]] = {
    "tools": ToolSpec,
    "tool_choice": ToolChoice,
    "reasoning": Reasoning,
    "output": OutputFormat,
}
"""Fields that may hold streamglot objects, or values in the form of a dialect."""

_Parse = Callable[[JsonObject], Request]
_Messages = list[Message | JsonObject]


def make_request(
    request: Request | str | None,
    model: str,
    messages: str | Iterable[Message | JsonObject],
    system: str,
    written_in: str,
    fields: dict[str, Any],  # Any: each field has its own type, as in ``_object``
) -> Request:
    """Builds a request. ``messages`` may be a string.

    If a dialect is named or a message is a dict, the fields are those of the dialect ``written_in``; otherwise they are those of
    a ``Request``. Streamglot objects such as messages and tools are accepted in both.
    """
    if isinstance(request, Request):
        return structs.replace(request, stream=True)
    if request is not None:
        if messages or not isinstance(request, str):
            raise TypeError(f"a request is a Request, or one text without `messages`, not {excerpt(request)}")
        messages = request
    listed: _Messages = [Message("user", messages)] if isinstance(messages, str) else list(messages)
    parse = dialect(written_in or DIALECT).parse_request
    ours = [message for message in listed if isinstance(message, Message)]
    if written_in or not ours or len(ours) < len(listed):
        made = _of_dialect(parse, model, listed, fields)
    else:
        unknown = set(fields) - FIELDS
        if unknown:
            raise TypeError(
                f"a request has no field {', '.join(sorted(unknown))}; for fields of a dialect, name the dialect with `dialect`"
            )
        made = Request(model=model, messages=ours, **{name: _object(name, value, parse) for name, value in fields.items()})
    if system:
        made.messages = [Message("system", [TextPart(system)]), *made.messages]
    made.stream = True
    return made


def _of_dialect(parse: _Parse, model: str, messages: _Messages, fields: dict[str, Any]) -> Request:  # Any: as above
    ours = {name: _object(name, value, parse) for name, value in fields.items() if _has_ours(name, value)}
    body = {"model": model, **{name: value for name, value in fields.items() if name not in ours}}
    if any(isinstance(message, Message) for message in messages):
        made = parse({**body, "messages": []})
        for _, run in groupby(messages, type):
            some = list(run)
            made.messages += [one for one in some if isinstance(one, Message)] or parse({"messages": some}).messages
    else:
        made = parse({**body, "messages": messages})
    return structs.replace(made, **ours)


def _has_ours(name: str, value: object) -> bool:
    kind = OBJECTS.get(name)
    return kind is not None and any(isinstance(one, kind) for one in (value if isinstance(value, list) else [value]))


def _object(name: str, value: Any, parse: _Parse) -> Any:  # Any: each field has its own type
    """A field of a ``Request``, from a streamglot object or from a value in the form of the dialect."""
    kind = OBJECTS.get(name)
    if name == "tools":
        return [spec for tool in value or () for spec in ([tool] if isinstance(tool, ToolSpec) else parse({name: [tool]}).tools)]
    if kind is None or value is None or isinstance(value, kind):
        return value
    parsed = getattr(parse({name: value}), name)
    if parsed is None:
        raise TypeError(f"{name} must be of the type {kind.__name__}, not {excerpt(value)}")
    return parsed
