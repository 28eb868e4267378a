"""Rebuilds the items of a stream as blocks, however much of their lifecycle the server omits."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ...errors import UpstreamProtocolError, excerpt
from ...events import BareEvent, Echo, Extra, Media, ReasoningStart, TextStart, ToolResult
from ...json_types import JsonObject
from ..blocks import Block, BlockStart
from ..lenient import json_text
from ..reader import Reader
from .server_items import arguments_of, image_of, name_of, read_annotation, result_of
from .slots import OutputSlot, Part, Slots
from .tools import SEARCH, flat_name, is_client_search
from .wire import CALL_FIELDS, CALL_ITEMS, DIALECT, OUTPUT_ITEMS, Event, is_kind, string_of, texts

_IDENTITY: Final = ("type", "id", "call_id", "phase")
"""The fields of an item that are kept after its end, to recognize repetitions of it."""
_NO_CALL: Final = OUTPUT_ITEMS | {"message", "reasoning", "compaction"}
_PARTS: Final = {
    "output_text": ("message", "text", "text"),
    "text": ("message", "text", "text"),
    "refusal": ("message", "refusal", "refusal"),
    "reasoning_text": ("reasoning", "content", "text"),
}
"""For the type of a part: the kind of its item, its family in the item, and the field of its text."""


class Items:
    """Reads what events say about items, and opens, fills and ends their blocks.

    Nothing is emitted twice: deltas are recorded, and a final text adds only what they lacked. ``refused`` and ``answered`` say
    whether the answer was a refusal.
    """

    def __init__(self, reader: Reader) -> None:
        self.refused = False
        self.answered = False
        self._reader = reader
        self._slots = Slots()
        self._open = 0
        self._waiting: list[BareEvent] = []

    # --- texts

    def piece(self, event: Event, kind: str, family: str, number: int | None) -> None:
        delta = event.delta
        if isinstance(delta, dict):
            delta = delta.get("text")
        if not delta or not isinstance(delta, str):
            return
        slot = self._slots.find(kind, event) or self._slots.add(kind, {}, event.output_index, event.item_id)
        part = self._part(slot, family, number or 0)
        if event.logprobs:
            self._reader.emit(Extra(DIALECT, {"logprobs": event.logprobs}))
        part.received.append(delta)
        self._reader.blocks().add(part.block, delta)

    def last(self, event: Event, kind: str, family: str, number: int | None, text: str | None) -> None:
        """The whole text of a part, after its deltas or instead of them."""
        if text:
            slot = self._slots.find(kind, event, last=True)
            slot = slot or self._slots.add(kind, {}, event.output_index, event.item_id)
            self._fill(slot, family, number or 0, text)

    def part_done(self, event: Event) -> None:
        part = event.part or {}
        kind, family, field = _PARTS.get(string_of(part, "type"), ("", "", ""))
        if not kind:
            return
        self.last(event, kind, family, event.content_index, string_of(part, field))
        slot = self._slots.find(kind, event, last=True)
        if slot is not None and kind == "message":
            self._cite(slot, event.content_index or 0, part)
            self._end_parts(slot)

    def annotation(self, event: Event) -> None:
        slot = self._slots.find("message", event, last=True)
        part = slot.parts.get(("text", event.content_index or 0)) if slot is not None else None
        if part is not None:
            part.cited += 1
        if event.annotation:
            self._reader.blocks().put(read_annotation(event.annotation, self._reader.provider))

    def _part(self, slot: OutputSlot, family: str, number: int) -> Part:
        part = slot.parts.get((family, number))
        if part is not None and not part.block.ended:
            return part
        self._end_parts(slot)
        item_id = string_of(slot.item, "id")
        if not slot.parts and item_id:
            phase = string_of(slot.item, "phase")
            hint = {"type": slot.kind, "id": item_id, **({"phase": phase} if phase else {})}
            self._reader.start()
            self._reader.emit(Extra(DIALECT, {"item": hint}))
        if slot.kind == "message":
            block = self._open_block(TextStart(refusal=family == "refusal"))
            self.refused |= family == "refusal"
            self.answered |= family == "text"
            block.echo = self._phase(slot.item)
        else:
            block = self._open_block(ReasoningStart(summary=family == "summary"))
        if part is None:
            part = slot.parts[family, number] = Part(block)
        part.block = block
        return part

    def _fill(self, slot: OutputSlot, family: str, number: int, text: str) -> None:
        part = slot.parts.get((family, number))
        streamed = "".join(part.received) if part is not None else ""
        if len(text) > len(streamed) and text.startswith(streamed):
            part = self._part(slot, family, number)
            part.received = [text]
            self._reader.blocks().add(part.block, text[len(streamed) :])
        elif part is not None:
            part.received = [streamed]

    def _cite(self, slot: OutputSlot, number: int, content: JsonObject) -> None:
        """Emits the annotations of a part that did not arrive as events."""
        part = slot.parts.get(("text", number))
        annotations = content.get("annotations")
        if part is not None and isinstance(annotations, list):
            for annotation in annotations[part.cited :]:
                part.cited += 1
                if isinstance(annotation, dict):
                    self._reader.blocks().put(read_annotation(annotation, self._reader.provider))

    def _end_parts(self, slot: OutputSlot, echo: Echo | None = None) -> None:
        for part in slot.parts.values():
            self._end_block(part.block, echo)

    def _phase(self, item: JsonObject) -> Echo | None:
        """The phase of a message, which is returned with it. Its id is not needed."""
        item_fields = {name: item[name] for name in ("type", "id", "phase") if string_of(item, name)}
        return Echo(self._reader.provider, item_fields) if "phase" in item_fields else None

    # --- calls

    def arguments(self, event: Event, kind: str) -> None:
        delta = event.delta
        if not delta or not isinstance(delta, str):
            return
        slot = self._slots.find(kind, event) or self._slots.add(kind, {}, event.output_index, event.item_id)
        slot.received.append(delta)
        if slot.block is not None:
            self._reader.blocks().add(slot.block, delta)
            return
        slot.held_size += len(delta)
        if slot.held_size > self._reader.limits.block_chars:
            raise self._reader.limits.exceeded("block_chars")

    def arguments_done(self, event: Event, kind: str, text: str) -> None:
        slot = self._slots.find(kind, event, last=True) or self._slots.add(kind, {}, event.output_index, event.item_id)
        self._fill_arguments(slot, text)

    def _fill_arguments(self, slot: OutputSlot, text: str) -> None:
        streamed = "".join(slot.received)
        if len(text) > len(streamed) and text.startswith(streamed):
            if slot.block is not None and not slot.block.ended:
                self._reader.blocks().add(slot.block, text[len(streamed) :])
            streamed = text
        slot.received = [streamed]

    def _name(self, slot: OutputSlot) -> None:
        """Opens the block of a call once its name is known, with what arrived before."""
        item = slot.item
        if slot.block is not None or not item or slot.kind in _NO_CALL:
            return
        blocks, provider = self._reader.blocks(), self._reader.provider
        if slot.kind in CALL_ITEMS:
            name, namespace = string_of(item, "name"), string_of(item, "namespace")
            if not name:
                return
            item_fields = {key: value for key, value in item.items() if key not in CALL_FIELDS or key == "type"}
            native = Echo(provider, {**item_fields, "name": name} if namespace else item_fields)
            flat = flat_name(namespace, name)
            slot.block = blocks.open_call(string_of(item, "call_id", "id"), flat, CALL_ITEMS[slot.kind], native)
            if set(item_fields) - {"type", "id"}:
                blocks.keep(slot.block, native)
        elif is_client_search(item):
            native = Echo(provider, {key: value for key, value in item.items() if key not in CALL_FIELDS or key == "type"})
            slot.block = blocks.open_call(string_of(item, "call_id", "id"), SEARCH, native=native)
        else:
            slot.block = blocks.open_call(string_of(item, "call_id", "id"), name_of(item), "server", Echo(provider, item))
        self._open += 1
        self._slots.named(slot)
        for piece in slot.received:
            blocks.add(slot.block, piece)

    def _end_call(self, slot: OutputSlot, cut: bool) -> None:
        block = slot.block
        if block is None:
            if cut:
                return
            raise UpstreamProtocolError(
                f"a tool call has no name: {excerpt(slot.item or slot.received)}", code="tool_call_without_name"
            )
        if not block.ended:
            block.complete = not cut or (block.kind == "function" and not block.blank())
            self._end_block(block)

    # --- items

    def added(self, event: Event) -> None:
        item = event.item or {}
        kind = string_of(item, "type")
        if kind:
            slot = self._slots.find(kind, _address(event))
            self._reader.tally.extra(item)
            if slot is None or not slot.is_item(item):
                self._begin(kind, item, event.output_index)
            elif not slot.item:
                slot.item = item
                self._name(slot)

    def done(self, event: Event) -> None:
        item = event.item or {}
        kind = string_of(item, "type")
        if kind:
            slot = self._slots.find(kind, _address(event), last=True)
            if slot is None or not slot.is_item(item, last=True):
                slot = self._begin(kind, item, event.output_index)
            self._finish(slot, item)

    def settle(self, output: object) -> None:
        """Emits what the final list of items contains beyond the stream."""
        seen: Counter[str] = Counter()
        for item in output if isinstance(output, list) else ():
            kind = string_of(item, "type") if isinstance(item, dict) else ""
            if kind:
                slot = self._slots.find_item(kind, item, seen[kind])
                seen[kind] += 1
                self._finish(slot or self._begin(kind, item, None), item)

    def finish(self, cut: bool) -> None:
        """Ends the response. ``cut``: something stopped the model."""
        for kind in CALL_ITEMS:
            for slot in self._slots.of_kind.get(kind, ()):
                self._end_call(slot, cut)
        self._reader.blocks().finish(cut)
        self._flush()

    def _begin(self, kind: str, item: JsonObject, index: int | None) -> OutputSlot:
        slot = self._slots.add(kind, item, index, string_of(item, "id"))
        self._name(slot)
        return slot

    def _finish(self, slot: OutputSlot, item: JsonObject) -> None:
        """Emits what a complete item adds to its deltas. A repetition adds nothing."""
        if not slot.done:
            slot.item = {**slot.item, **item}
            self._name(slot)
        if slot.kind == "message":
            self._finish_message(slot, item)
        elif not slot.done:
            if slot.kind == "reasoning":
                self._finish_reasoning(slot, item)
            elif slot.kind == "compaction":
                block = self._open_block(ReasoningStart())
                block.redacted = True
                self._end_block(block, Echo(self._reader.provider, item))
            elif slot.kind in CALL_ITEMS:
                self._fill_arguments(slot, json_text(item.get("arguments" if slot.kind == "function_call" else "input")))
                self._end_call(slot, item.get("status") == "incomplete")
            elif is_client_search(slot.item) and slot.kind not in OUTPUT_ITEMS:
                self._fill_arguments(slot, arguments_of(item))
                self._end_call(slot, item.get("status") == "incomplete")
            elif slot.kind in OUTPUT_ITEMS:
                self._result(item)
            else:
                self._finish_server(slot, item)
        slot.done = True
        slot.item = {name: slot.item[name] for name in _IDENTITY if name in slot.item}

    def _finish_message(self, slot: OutputSlot, item: JsonObject) -> None:
        content = item.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if is_kind(part, "output_text", "text"):
                new = ("text", number) not in slot.parts
                self._fill(slot, "text", number, string_of(part, "text"))
                self._cite(slot, number, part)
                if new and ("text", number) in slot.parts and part.get("logprobs"):
                    self._reader.emit(Extra(DIALECT, {"logprobs": part["logprobs"]}))
            elif is_kind(part, "refusal"):
                self._fill(slot, "refusal", number, string_of(part, "refusal"))
        self._end_parts(slot, self._phase(slot.item))

    def _finish_reasoning(self, slot: OutputSlot, item: JsonObject) -> None:
        """Emits raw reasoning or its summary, whichever was streamed; if none was, the summary, else the raw reasoning."""
        final_texts = {
            "summary": texts(item.get("summary"), "summary_text", "text"),
            "content": texts(item.get("content"), "reasoning_text", "text"),
        }
        streamed = {family for family, _ in slot.parts}
        families = streamed or {"summary" if any(final_texts["summary"]) else "content"}
        for family in sorted(families):
            for number, text in enumerate(final_texts[family]):
                self._fill(slot, family, number, text)
        hidden = bool(string_of(item, "encrypted_content"))
        if not slot.parts and (hidden or string_of(item, "id")):
            self._part(slot, "content", 0).block.redacted = hidden
        self._end_parts(slot, Echo(self._reader.provider, item))

    def _finish_server(self, slot: OutputSlot, item: JsonObject) -> None:
        assert slot.block is not None
        self._fill_arguments(slot, arguments_of(item))
        self._end_block(slot.block, Echo(self._reader.provider, item))
        image = image_of(item) if slot.kind == "image_generation_call" else None
        if image is not None:
            self._later(image)
        elif slot.kind != "image_generation_call":
            self._result(item)

    def _result(self, item: JsonObject) -> None:
        content, is_error = result_of(item)
        if content or is_error or string_of(item, "type") in OUTPUT_ITEMS:
            self._later(ToolResult(string_of(item, "call_id", "id"), content, is_error, Echo(self._reader.provider, item)))

    # --- blocks, and events that may only stand between two of them

    def _open_block(self, start: BlockStart) -> Block:
        self._open += 1
        return self._reader.blocks().open(start)

    def _end_block(self, block: Block, echo: Echo | None = None) -> None:
        if not block.ended:
            self._open -= 1
            self._reader.blocks().end(block, echo)
            if not self._open:
                self._flush()

    def _later(self, event: ToolResult | Media) -> None:
        self._reader.start()
        self._reader.tally.count(event)
        self._waiting.append(event)
        if not self._open:
            self._flush()

    def _flush(self) -> None:
        for event in self._waiting:
            self._reader.emit_counted(event)
        self._waiting.clear()


def _address(event: Event) -> Event:
    return Event(item_id=string_of(event.item or {}, "id") or event.item_id, output_index=event.output_index)
