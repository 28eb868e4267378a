"""Calls and results as items of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...events import ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from .output import OPEN
from .wire import OUTPUT_ITEMS, RESULT_OF, SERVER_ITEMS, own

if TYPE_CHECKING:
    from .writer import ResponsesWriter

_CALL_ITEM: Final = {"function": "function_call", "custom": "custom_tool_call"}
_CALL_FIELDS: Final = frozenset(("type", "status", "arguments", "input", "call_id", "name"))
_WITH_STATUS: Final = frozenset(("mcp_call",))
"""Calls of the provider's own tools of which it leaves out a status that clients want."""


class CallWriter:
    def __init__(self, writer: ResponsesWriter) -> None:
        self._writer = writer
        self._kinds: dict[str, str] = {}
        self._call: ToolCallStart | None = None

    def start(self, event: ToolCallStart) -> None:
        self._writer.close_item()
        native = event.native.data if event.native is not None else {}
        if event.kind == "server":
            self._call = event if native.get("type") in SERVER_ITEMS else None
            if self._call is not None:
                status = OPEN if native["type"] in _WITH_STATUS else {}
                self._writer.output.open(native["type"], {**status, **native})
            else:
                self._writer.lose(event)
            return
        self._call = event
        kind = _CALL_ITEM[event.kind]
        call_id = event.call_id
        while call_id in self._kinds:
            call_id = f"{event.call_id}_{len(self._kinds)}"
        self._kinds[call_id] = event.kind
        more = {name: value for name, value in native.items() if native.get("type") == kind and name not in _CALL_FIELDS}
        self._writer.output.open(kind, {**OPEN, **more, "call_id": call_id, "name": event.name})

    def delta(self, event: ToolCallDelta) -> None:
        if self._call is not None and (self._call.kind != "server" or self._writer.output.kind == "mcp_call"):
            self._writer.output.delta(event.args)

    def end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        item = self._writer.output.item
        if call is None or item is None:
            return
        if not event.complete:
            self._writer.abandon_item()
            return
        told = own(event.echo, item["type"])
        status: str | None = "completed"
        if call.kind == "server":
            item.update({name: value for name, value in (told or {}).items() if name != "id"})
            if told is None:
                status = "incomplete"
            elif item["type"] not in _WITH_STATUS or "status" in told:
                status = None
        elif told is not None:
            item.update({name: value for name, value in told.items() if name not in _CALL_FIELDS and name != "id"})
        self._writer.close_item(status)
        if told is None and event.echo is not None:
            self._writer.carry(event.echo, item.get("call_id", ""))

    def result(self, event: ToolResult) -> None:
        self._writer.close_item()
        told = own(event.native, *OUTPUT_ITEMS)
        kind = self._kinds.get(event.call_id)
        if told is not None:
            self._writer.output.whole(told)
        elif kind is not None:
            item = {"type": RESULT_OF[kind], "call_id": event.call_id, "output": event.content, "status": "completed"}
            self._writer.output.whole(item)
        elif own(event.native, *SERVER_ITEMS) is None:
            self._writer.lose(event)
