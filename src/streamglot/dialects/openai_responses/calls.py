"""Writes calls and results as items of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...events import ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from ...json_types import JsonObject
from ..own_tools import OWN_SERVER
from .output import OPEN
from .tools import Origin, origin_of
from .wire import CALL_FIELDS, OUTPUT_ITEMS, RESULT_OF, SERVER_ITEMS, arguments_object, own

if TYPE_CHECKING:
    from .writer import ResponsesWriter

_CALL_ITEM: Final = {"function": "function_call", "custom": "custom_tool_call"}
_CLIENT_ITEMS: Final = frozenset((*_CALL_ITEM.values(), "tool_search_call"))
_WITH_STATUS: Final = frozenset(("mcp_call",))
"""Items of server-side tools whose provider omits a status that clients require."""


class CallWriter:
    """``origins``: the tools behind flat names that the client declared in a namespace, or as a search. Clients match calls by
    both names and by the type of the item, and drop all others."""

    def __init__(self, writer: ResponsesWriter, origins: dict[str, Origin]) -> None:
        self._writer = writer
        self._origins = origins
        self._kinds: dict[str, str] = {}
        self._call: ToolCallStart | None = None
        self._own: dict[str, tuple[str, list[str]]] = {}
        """Names and arguments of calls that a tool loop runs. Their items are written with their results."""
        self._own_open: list[str] | None = None
        self._search: JsonObject | None = None
        self._arguments: list[str] = []

    def start(self, event: ToolCallStart) -> None:
        self._writer.close_item()
        native = event.native.data if event.native is not None else {}
        if event.kind == "server":
            self._start_server(event, native)
            return
        self._call = event
        call_id = event.call_id
        while call_id in self._kinds:
            call_id = f"{event.call_id}_{len(self._kinds)}"
        self._kinds[call_id] = event.kind
        origin = origin_of(event.name, [native] if native.get("type") in _CLIENT_ITEMS else [], self._origins)
        if origin is not None and origin.is_search:
            known = {"id": native["id"]} if "id" in native else {}
            self._search = {"type": "tool_search_call", **known, "call_id": call_id, "execution": "client"}
            self._arguments.clear()
            return
        kind = _CALL_ITEM[event.kind]
        more = {name: value for name, value in native.items() if native.get("type") == kind and name not in CALL_FIELDS}
        named = {"name": event.name} if origin is None else {"name": origin.name, "namespace": origin.namespace}
        self._writer.output.open(kind, {**OPEN, **more, "call_id": call_id, **named})

    def _start_server(self, event: ToolCallStart, native: JsonObject) -> None:
        self._call = event if native.get("type") in SERVER_ITEMS else None
        if self._call is not None:
            status = OPEN if native["type"] in _WITH_STATUS else {}
            self._writer.output.open(native["type"], {**status, **native})
        elif event.native is None:
            self._own_open = []
            self._own[event.call_id] = event.name, self._own_open
        else:
            self._writer.lose(event)

    def delta(self, event: ToolCallDelta) -> None:
        if self._own_open is not None:
            self._own_open.append(event.args)
        elif self._search is not None:
            self._arguments.append(event.args)
        elif self._call is not None and (self._call.kind != "server" or self._writer.output.kind == "mcp_call"):
            self._writer.output.delta(event.args)

    def end(self, event: ToolCallEnd) -> None:
        self._own_open = None
        call, self._call = self._call, None
        if self._search is not None:
            self._end_search(event, self._search)
            return
        item = self._writer.output.item
        if call is None or item is None:
            return
        if not event.complete:
            self._writer.abandon_item()
            return
        original = own(event.echo, item["type"])
        status: str | None = "completed"
        if call.kind == "server":
            item.update({name: value for name, value in (original or {}).items() if name != "id"})
            if original is None:
                status = "incomplete"
            elif item["type"] not in _WITH_STATUS or "status" in original:
                status = None
        elif original is not None:
            item.update({name: value for name, value in original.items() if name not in CALL_FIELDS and name != "id"})
        self._writer.close_item(status)
        if original is None and event.echo is not None:
            self._writer.carry(event.echo, item.get("call_id", ""))

    def _end_search(self, event: ToolCallEnd, item: JsonObject) -> None:
        """A search has its arguments as an object and no delta events, so it is written whole or not at all."""
        text, self._search = "".join(self._arguments), None
        self._arguments.clear()
        if not event.complete:
            self._writer.lose(event)
            return
        self._writer.output.whole({**item, "arguments": arguments_object(text), "status": "completed"})
        if event.echo is not None and own(event.echo, "tool_search_call") is None:
            self._writer.carry(event.echo, item["call_id"])

    def result(self, event: ToolResult) -> None:
        self._writer.close_item()
        if event.call_id in self._own and event.native is None:
            self._own_call(event)
            return
        original = own(event.native, *OUTPUT_ITEMS)
        kind = self._kinds.get(event.call_id)
        if original is not None:
            self._writer.output.whole(original)
        elif kind is not None:
            item = {"type": RESULT_OF[kind], "call_id": event.call_id, "output": event.content, "status": "completed"}
            self._writer.output.whole(item)
        elif own(event.native, *SERVER_ITEMS) is None:
            self._writer.lose(event)

    def _own_call(self, event: ToolResult) -> None:
        """A call that a tool loop ran, with its result, in the form of a remote server's call, which no client runs."""
        name, pieces = self._own.pop(event.call_id)
        output = self._writer.output
        fields = {"server_label": OWN_SERVER, "name": name, "output": None, "error": None}
        item = output.open("mcp_call", {**OPEN, "id": event.call_id, **fields})
        output.event("response.mcp_call.in_progress", output.place())
        output.delta("".join(pieces) or "{}")
        if event.is_error:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": event.content}]}
        else:
            item["output"] = event.content
        status = "failed" if event.is_error else "completed"
        self._writer.close_item(status)
