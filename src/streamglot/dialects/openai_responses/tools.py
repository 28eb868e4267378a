"""The tools of a request in both directions, and the items of tools that the provider runs.

Only this dialect has tools in namespaces and a search that loads more of them. Elsewhere they are functions in one list: a member
of a namespace has a flat name made of both, a client-side search is the function ``tool_search``, and the tools that it found are
taken from its results. ``Origin`` maps a flat name back, to name a call as its tool was declared.

If a tool of ours answers a tool that the client expects its provider to host, the call becomes an item of the provider's own
kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from ...events import Citation, Echo, Event, Extra, Media, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from ...json_types import JsonObject
from ...messages import ToolChoice, ToolSpec
from ..common import function_tools
from ..common.fields import Fields
from ..common.function_tools import build_function
from ..common.lenient import json_text
from ..common.server_tools import HostedCall, own_id, sources_of
from ..common.state import is_native
from .wire import DIALECT, string_of, whole_number

NAME_CHARS: Final = 64
"""The maximum length of a function name in all dialects."""
SEARCH: Final = "tool_search"
TOP_LEVEL: Final = "functions"
"""The namespace of tools without a namespace."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LOADED: Final = "streamglot_loaded"
"""Marks a tool from the result of a search. The upstream knows it from there."""
_DIGEST_CHARS: Final = 8
"""Characters of a digest in a name: enough for the tools of one request."""


class Origin(Struct, frozen=True):
    """The tool that a flat name refers to. A search has no namespace."""

    name: str
    namespace: str = ""

    @property
    def is_search(self) -> bool:
        return not self.namespace


def flat_name(namespace: str, name: str) -> str:
    """The stable name of a tool where there are no namespaces."""
    if namespace in ("", TOP_LEVEL, name):  # a namespace with one tool has the name of its tool
        return name
    qualified = f"{namespace}__{name}"
    plain = _NO_NAME.sub("_", qualified)
    return qualified if plain == qualified and len(qualified) <= NAME_CHARS else _unique_name(plain, qualified)


def _unique_name(name: str, qualified: str) -> str:
    """A name that no other tool has."""
    return f"{name[: NAME_CHARS - _DIGEST_CHARS - 1]}_{sha256(qualified.encode('utf-8', 'replace')).hexdigest()[:_DIGEST_CHARS]}"


def origins(tools: Iterable[ToolSpec]) -> dict[str, Origin]:
    """The origins of these tools' names, except for plain functions."""
    found: dict[str, Origin] = {}
    for tool in tools:
        data = _own(tool)
        space = data.get("namespace")
        if isinstance(space, dict):
            found[tool.name] = Origin(data["name"], space["name"])
        elif tool.kind == "function" and data.get("type") == SEARCH:
            found[tool.name] = Origin(SEARCH)
    return found


def origin_of(name: str, states: Iterable[JsonObject], declared: dict[str, Origin]) -> Origin | None:
    """The origin of a call with this name: as its own ``states`` say, else as its tool was ``declared``."""
    for state in states:
        if state.get("type") == "tool_search_call":
            return Origin(SEARCH)
        if isinstance(state.get("namespace"), str):
            return Origin(str(state.get("name", name)), state["namespace"])
    return declared.get(name)


def is_client_search(item: JsonObject) -> bool:
    """Whether this is a tool search that the client runs, or its result."""
    return item.get("type") in ("tool_search_call", "tool_search_output") and item.get("execution") == "client"


def _own(tool: ToolSpec) -> JsonObject:
    return tool.native.data if tool.native is not None and is_native(tool.native, DIALECT) else {}


# --- the client's tools


def parse_tools(fields: Fields) -> list[ToolSpec]:
    """The declared tools, followed by those that searches have loaded."""
    declared = fields.objects("tools")
    parser = _ToolParser(name for tool in declared if isinstance(name := tool.rest.get("name"), str))
    for tool in declared:
        parser.add(tool)
    items = fields.rest.get("input")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == "tool_search_output" and is_client_search(item):
            for tool in Fields(item, f"{fields.where('input')}[{number}]").objects("tools"):
                parser.add(tool, {_LOADED: True})
    return parser.tools


def found_tools(item: JsonObject) -> list[dict[str, str]]:
    """The result of a search with flat names, for a model that reads it as text."""
    parser = _ToolParser()
    for tool in Fields(item).objects("tools"):
        parser.add(tool)
    return [{"name": tool.name, "description": tool.description} for tool in parser.tools]


class _ToolParser:
    """``names``: the names of tools outside a namespace."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.tools: list[ToolSpec] = []
        self._names = set(names)
        self._known: set[tuple[str, str]] = set()

    def add(self, tool: Fields, marks: JsonObject | None = None) -> None:
        kind = tool.take("type", str, "function")
        match kind:
            case "function" | "custom":
                self._member(kind, tool, marks or {})
            case "namespace":
                members = tool.objects("tools")
                tool.rest.pop("tools", None)
                space = {"namespace": {**tool.rest, "name": tool.need("name", str)}, **(marks or {})}
                for member in members:
                    self._member(member.take("type", str, "function"), member, space)
            case "tool_search" if tool.rest.get("execution") == "client":
                native = Echo(DIALECT, {"type": kind, **tool.rest})
                spec = ToolSpec(SEARCH, tool.take("description", str, ""), tool.take("parameters", dict), native=native)
                self.tools.append(spec)
            case _:
                name = tool.rest.get("server_label") or tool.rest.get("name") or kind
                self.tools.append(ToolSpec(str(name), kind="server", native=Echo(DIALECT, {"type": kind, **tool.rest})))

    def _member(self, kind: str, tool: Fields, marks: JsonObject) -> None:
        """A function or a custom tool, on its own or in a namespace. A search may load one that is known already."""
        name, description = tool.need("name", str), tool.take("description", str, "")
        namespace = marks["namespace"]["name"] if "namespace" in marks else ""
        if _LOADED in marks and (namespace, name) in self._known:
            return
        self._known.add((namespace, name))
        flat = flat_name(namespace, name)
        if namespace and flat in self._names:
            flat = _unique_name(flat, f"{namespace}\0{name}")
        self._names.add(flat)
        if kind == "custom":
            spec = ToolSpec(flat, description, kind="custom", format=_nested(tool.take("format", dict)))
        else:
            spec = ToolSpec(flat, description, tool.take("parameters", dict), tool.take("strict", bool))
        native = {**tool.rest, **marks, **({"name": name} if namespace else {})}
        spec.native = Echo(DIALECT, native) if native else None
        self.tools.append(spec)


def _nested(form: JsonObject | None) -> JsonObject | None:
    """This dialect has the grammar's fields at the top level; ToolSpec has them in an object."""
    if form is None or form.get("type") != "grammar" or "grammar" in form:
        return form
    return {"type": "grammar", "grammar": {name: value for name, value in form.items() if name != "type"}}


def parse_choice(fields: Fields) -> ToolChoice | None:
    value = fields.any("tool_choice")
    match value:
        case None:
            return None
        case "auto" | "none" | "required":
            return ToolChoice(value)
        case {"type": "function" | "custom", "name": str(name)}:
            return ToolChoice("required", [flat_name(string_of(value, "namespace"), name)])
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)} if all(map(_choice, tools)):
            return ToolChoice(mode, [_choice(tool) for tool in tools])
        case {"type": "mcp" | "allowed_tools"}:
            fields.rest["tool_choice"] = value
            return None
        case {"type": str(name)}:
            return ToolChoice("required", [name])
    raise fields.wrong("tool_choice", "auto, none, required, a named tool or allowed_tools", value)


def _choice(tool: object) -> str:
    match tool:
        case {"type": "function" | "custom", "name": str(name), "namespace": str(namespace)}:
            return flat_name(namespace, name)
        case {"type": "function" | "custom", "name": str(name)}:
            return name
        case {"type": "mcp", "server_label": str(name)} | {"type": str(name)}:
            return name
    return ""


# --- the upstream's tools


def build_tools(tools: list[ToolSpec], dialect: str, namespaces: bool) -> list[JsonObject]:
    bodies: list[JsonObject] = []
    spaces: dict[str, JsonObject] = {}
    for tool in tools:
        data = _own(tool)
        if tool.kind == "server" or (namespaces and data.get("type") == SEARCH):
            bodies.append(data)
            continue
        space = data.get("namespace") if namespaces else None
        if namespaces and _LOADED in data:
            continue
        if space is None:
            plain = data if namespaces else {name: value for name, value in data.items() if name != "defer_loading"}
            bodies.append(_build_tool(tool, tool.name, plain, dialect))
            continue
        if space["name"] not in spaces:
            spaces[space["name"]] = {"type": "namespace", **space, "tools": []}
            bodies.append(spaces[space["name"]])
        spaces[space["name"]]["tools"].append(_build_tool(tool, data["name"], data, dialect))
    return bodies


_NOT_OF_A_FUNCTION: Final = frozenset(("type", "execution", "name", "description", "parameters", "namespace", _LOADED))
"""Native fields that belong to the search or the namespace, or are written already."""


def _build_tool(tool: ToolSpec, name: str, data: JsonObject, dialect: str) -> JsonObject:
    body: JsonObject = {"type": tool.kind, **build_function(tool), "name": name}
    if "format" in body:
        body["format"] = _flat(body["format"])
    elif tool.kind != "custom":
        # A missing value means strict here, and not strict in other dialects, so it is written out.
        body.setdefault("strict", None if dialect == DIALECT else False)
    return {**body, **{field: value for field, value in data.items() if field not in _NOT_OF_A_FUNCTION}}


def _flat(form: JsonObject) -> JsonObject:
    grammar = form.get("grammar")
    return {"type": "grammar", **grammar} if isinstance(grammar, dict) else form


def build_choice(choice: ToolChoice, tools: list[ToolSpec], namespaces: bool) -> str | JsonObject:
    known = {tool.name: tool for tool in tools}
    stands_for = origins(tools) if namespaces else {}
    return function_tools.build_choice(
        choice, lambda name: _build_named(name, known.get(name), stands_for.get(name)), nested=False
    )


def _build_named(name: str, tool: ToolSpec | None, origin: Origin | None) -> JsonObject:
    if origin is not None and origin.is_search:
        return {"type": SEARCH}
    if tool is not None and tool.kind == "server" and tool.native is not None:
        label = tool.native.data.get("server_label")
        return {"type": tool.native.data.get("type", name), **({"server_label": label} if label else {})}
    kind = "custom" if tool is not None and tool.kind == "custom" else "function"
    if origin is not None:
        return {"type": kind, "name": origin.name, "namespace": origin.namespace}
    return {"type": kind, "name": name}


# --- tools that the client expects its provider to host, answered by a tool of ours


def _web_search(call: HostedCall) -> JsonObject:
    action: JsonObject = {"type": "search", "query": call.query, "queries": [call.query]}
    sources = [{"type": "url", "url": source.url} for source in sources_of(call.text)]
    return {"action": {**action, "sources": sources} if sources else action}


def _file_search(call: HostedCall) -> JsonObject:
    found = sources_of(call.text)
    results = [{"file_id": source.url, "filename": source.title, "text": source.text} for source in found]
    return {"queries": [call.query], "results": results or [{"file_id": "", "filename": "", "text": call.text}]}


def _code_interpreter(call: HostedCall) -> JsonObject:
    return {"code": call.code, "container_id": "", "outputs": [{"type": "logs", "logs": call.text}]}


def _image_generation(call: HostedCall) -> JsonObject:
    image = next((medium for medium in call.media if medium.data), None)
    if image is None:
        return {"result": None}
    return {"result": image.data, "output_format": image.mime.removeprefix("image/")}


_HOSTED: Final[dict[str, tuple[str, str, tuple[str, ...], Callable[[HostedCall], JsonObject]]]] = {
    "web_search": ("web_search_call", "ws_", ("searching",), _web_search),
    "file_search": ("file_search_call", "fs_", ("searching",), _file_search),
    "code_interpreter": ("code_interpreter_call", "ci_", ("interpreting",), _code_interpreter),
    "image_generation": ("image_generation_call", "ig_", ("generating",), _image_generation),
}
"""By the type of the tool: the type of its items, how their ids begin, what its events say while it runs, and its fields."""


def hosted_events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    declared = str(call.declared.get("type", ""))
    kind = next((name for name in _HOSTED if declared.startswith(name)), None)
    return None if kind is None else list(_hosted_events(call, *_HOSTED[kind]))


def _hosted_events(
    call: HostedCall, kind: str, prefix: str, phases: tuple[str, ...], fields: Callable[[HostedCall], JsonObject]
) -> Iterator[Event]:
    item_id = own_id(prefix, call.call_id)
    item = {"type": kind, "id": item_id, **fields(call), "status": "failed" if call.is_error else "completed"}
    begun: JsonObject = {"type": kind, "id": item_id, "status": "in_progress"}
    if kind == "code_interpreter_call":
        begun |= {"code": "", "container_id": "", "outputs": None}
    elif kind == "file_search_call":
        begun |= {"queries": []}
    yield ToolCallStart(item_id, call.name, "server", Echo(DIALECT, begun))
    for phase in ("in_progress", *phases, *(() if call.is_error else ("completed",))):
        yield Extra(DIALECT, {"event": {"type": f"response.{kind}.{phase}"}})
    yield ToolCallDelta(msgspec.json.encode(call.arguments).decode())
    yield ToolCallEnd(Echo(DIALECT, item))
    if item.get("result"):
        yield Media(f"image/{item['output_format']}", item["result"], id=item_id)
    else:
        yield ToolResult(item_id, call.text, call.is_error, Echo(DIALECT, item))


# --- items of tools that ran on the server

_GIVEN: Final = ("action", "queries", "code", "container_id", "operation", "input")
"""The fields with the input of a tool that has no ``arguments``."""
_FAILED: Final = ("failed", "incomplete")


def name_of(item: JsonObject) -> str:
    """``web_search_call`` is a call of ``web_search``; a remote tool has its own name."""
    return string_of(item, "name") or string_of(item, "type").removesuffix("_call") or "tool"


def arguments_of(item: JsonObject) -> str:
    """The input of the tool as JSON."""
    if item.get("arguments") is not None:
        return json_text(item["arguments"])
    given = {name: item[name] for name in _GIVEN if item.get(name)}
    return json_text(given) if given else ""


def result_of(item: JsonObject) -> tuple[str, bool]:
    """The result of a call as text, and whether it is an error."""
    error = item.get("error")
    if error:
        return (string_of(error, "message") if isinstance(error, dict) else "") or json_text(error), True
    output = next((item[name] for name in ("output", "outputs", "results", "result", "tools") if item.get(name)), None)
    return _text_of(output), item.get("status") in _FAILED


def image_of(item: JsonObject) -> Media | None:
    data = string_of(item, "result")
    return Media(f"image/{string_of(item, 'output_format') or 'png'}", data, id=string_of(item, "id")) if data else None


def read_annotation(annotation: JsonObject, provider: str) -> Citation:
    return Citation(
        string_of(annotation, "url"),
        string_of(annotation, "title", "filename"),
        start=whole_number(annotation.get("start_index")),
        end=whole_number(annotation.get("end_index")),
        native=Echo(provider, annotation),
    )


def _text_of(output: object) -> str:
    """Plain text if the entries are texts, logs or shell output; JSON otherwise."""
    if isinstance(output, list):
        texts = [_entry_text(entry) if isinstance(entry, dict) else None for entry in output]
        if all(text is not None for text in texts):
            return "".join(text for text in texts if text is not None)
    return json_text(output)


def _entry_text(entry: JsonObject) -> str | None:
    if "stdout" in entry or "stderr" in entry:
        return string_of(entry, "stdout") + string_of(entry, "stderr")
    for name, kinds in (("logs", ("logs",)), ("text", ("text", "input_text", "output_text"))):
        if entry.get("type") in kinds and isinstance(entry.get(name), str):
            return str(entry[name])
    return None
