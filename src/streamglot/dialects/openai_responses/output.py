"""Writes the items of a response: one open at a time, each with its whole lifecycle, all repeated at the end."""

from __future__ import annotations

from typing import Final

from ...framing import sse
from ...json_types import JsonObject, JsonValue
from ..common.server_tools import OWN_SERVER
from ..common.writer import encode
from .wire import make_item_id, string_of

OPEN: Final = {"status": "in_progress"}
"""The status of an item while it is written."""
_ITEM_FIELDS: Final[dict[str, JsonObject]] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}
_TEXT_EVENT: Final = {
    "output_text": (b"response.output_text", "text", b',"logprobs":'),
    "refusal": (b"response.refusal", "refusal", b""),
    "reasoning_text": (b"response.reasoning_text", "text", b""),
    "summary_text": (b"response.reasoning_summary_text", "text", b""),
}
"""For the type of a part: its events, the field of its text, and the suffix of its deltas."""
_CALL_EVENT: Final = {
    "function_call": (b"response.function_call_arguments", "arguments"),
    "custom_tool_call": (b"response.custom_tool_call_input", "input"),
    "mcp_call": (b"response.mcp_call_arguments", "arguments"),
}


class Output:
    """Writes items into ``pieces``. ``done`` are the finished ones, ``item`` is the open one, ``part`` the open text in it.
    ``abandoned``: an item is incomplete, and no event reported it as done.

    The pieces of a text are collected and joined once, at its end, because the end of the stream repeats them all.
    """

    def __init__(self, pieces: list[bytes], sequence: int = 0) -> None:
        self.response_id = ""
        self.done: list[JsonObject] = []
        self.abandoned = False
        self.ids: set[str] = set()
        self.item: JsonObject | None = None
        self.part: JsonObject | None = None
        self._pieces = pieces
        self._sequence = sequence
        self._written: list[str] = []
        self._head = b""
        self._tail = b""
        self._place: JsonObject = {}

    def event(self, name: str, fields: JsonObject) -> None:
        body = {"type": name, **fields, "sequence_number": self._sequence}
        self._sequence += 1
        self._pieces.append(sse.event(encode(body), name.encode()))

    @property
    def kind(self) -> str:
        """The type of the open item."""
        return string_of(self.item, "type") if self.item is not None else ""

    def place(self) -> JsonObject:
        """The fields that locate the open item."""
        assert self.item is not None
        return {"item_id": self.item["id"], "output_index": len(self.done)}

    # --- items

    def open(self, kind: str, fields: JsonObject) -> JsonObject:
        """Opens a new item and ends the previous one. ``fields`` may contain an id and a status."""
        self.close()
        empty = _ITEM_FIELDS.get(kind, {})
        item_id = self._id_of(kind, fields)
        item = {"id": item_id, "type": kind, **fields, **empty} | {"id": item_id}
        self.event("response.output_item.added", {"output_index": len(self.done), "item": item})
        self.item = {**item, **{name: [] for name, value in empty.items() if value == []}}
        if kind in _CALL_EVENT:
            self._prepare_deltas(_CALL_EVENT[kind][0])
        return self.item

    def close(self, status: str | None = "completed") -> None:
        """Ends the open item with everything in it. ``status`` is None if the item has its own."""
        if self.item is None:
            return
        self.close_part()
        item = self.item
        if item["type"] in _CALL_EVENT:
            event, field = _CALL_EVENT[item["type"]]
            self._join_call(item, field)
            if item["type"] == "function_call" and not item[field].strip() and status == "completed":
                item[field] = "{}"
            named = {"name": item["name"]} if item["type"] == "function_call" else {}
            self.event(f"{event.decode()}.done", {**self.place(), field: item[field], **named})
        if status is not None:
            item["status"] = status
        if item.get("server_label") == OWN_SERVER:
            self.event(f"response.mcp_call.{status}", self.place())
        self.event("response.output_item.done", {"output_index": len(self.done), "item": item})
        self.done.append(item)
        self.item = None

    def abandon(self) -> None:
        """Leaves the open item incomplete, without an event that it is done. Clients run a call at its ``output_item.done``,
        whatever its status."""
        if self.item is None:
            return
        if self.part is not None:
            self._join_part(self.item, self.part)
        kind = self.item["type"]
        if kind in _CALL_EVENT:
            self._join_call(self.item, _CALL_EVENT[kind][1])
        if kind in _ITEM_FIELDS or "status" in self.item:
            self.item["status"] = "incomplete"
        self.done.append(self.item)
        self.item = self.part = None
        self.abandoned = True

    def whole(self, item: JsonObject) -> None:
        """Writes a complete item."""
        self.close()
        item = {**item, "id": self._id_of(item["type"], item)}
        for step in ("added", "done"):
            self.event(f"response.output_item.{step}", {"output_index": len(self.done), "item": item})
        self.done.append(item)

    def _id_of(self, kind: str, item: JsonObject) -> str:
        """The item's own id, unless it has none or an earlier item has the same: clients would merge the two."""
        item_id = string_of(item, "id")
        if not item_id or item_id in self.ids:
            item_id = make_item_id(kind, self.response_id, len(self.done))
        self.ids.add(item_id)
        return item_id

    # --- texts

    def open_part(self, kind: str) -> None:
        assert self.item is not None
        self.close_part()
        event, field, _ = _TEXT_EVENT[kind]
        self.part = {"type": kind, field: ""}
        if kind == "output_text":
            self.part |= {"annotations": [], "logprobs": []}
        if kind == "summary_text":
            self._place = {"summary_index": len(self.item["summary"])}
        else:
            self._place = {"content_index": len(self.item.setdefault("content", []))}
        self.event(f"response.{_part_event(kind)}.added", {**self.place(), **self._place, "part": self.part})
        self._prepare_deltas(event)

    def close_part(self) -> None:
        if self.part is None or self.item is None:
            return
        kind = self.part["type"]
        event, field, tail = _TEXT_EVENT[kind]
        self._join_part(self.item, self.part)
        more = {"logprobs": self.part["logprobs"]} if tail else {}
        self.event(f"{event.decode()}.done", {**self.place(), **self._place, field: self.part[field], **more})
        self.event(f"response.{_part_event(kind)}.done", {**self.place(), **self._place, "part": self.part})
        self.part = None

    def _join_part(self, item: JsonObject, part: JsonObject) -> None:
        kind = part["type"]
        part[_TEXT_EVENT[kind][1]] = "".join(self._written)
        self._written.clear()
        item["summary" if kind == "summary_text" else "content"].append(part)

    def _join_call(self, item: JsonObject, field: str) -> None:
        item[field] = "".join(self._written) or item.get(field) or ""
        self._written.clear()

    def delta(self, text: str, logprobs: list[JsonValue] | None = None) -> None:
        """Writes the next piece of the open text or call."""
        self._written.append(text)
        tail = self._tail
        if tail:
            tail += encode(logprobs) if logprobs else b"[]"
        if logprobs and self.part is not None and "logprobs" in self.part:
            self.part["logprobs"] += logprobs
        self._pieces.append(b'%b%b%b,"sequence_number":%d}\n\n' % (self._head, encode(text), tail, self._sequence))
        self._sequence += 1

    def annotate(self, annotation: JsonObject) -> None:
        assert self.part is not None
        self.part["annotations"].append(annotation)
        fields = {"annotation_index": len(self.part["annotations"]) - 1, "annotation": annotation}
        self.event("response.output_text.annotation.added", {**self.place(), **self._place, **fields})

    def _prepare_deltas(self, event: bytes) -> None:
        """Prepares the constant part of all deltas of a text or call."""
        place = self.place() if self.part is None else {**self.place(), **self._place}
        self._tail = _TEXT_EVENT[self.part["type"]][2] if self.part is not None else b""
        self._head = b'event: %b.delta\ndata: {"type":"%b.delta",%b,"delta":' % (event, event, encode(place)[1:-1])


def _part_event(kind: str) -> str:
    return "reasoning_summary_part" if kind == "summary_text" else "content_part"
