"""Reads Responses events: what each says about the response or one of its items.

``Items`` rebuilds the items as blocks, however much of their lifecycle the server omits; ``Slots`` matches them although servers
change their ids and indexes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Unpack

from ...errors import UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import BareEvent, Echo, Extra, KeepAlive, Media, ReasoningStart, StopReason, TextStart, ToolResult, Usage
from ...framing import Frame
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.blocks import Block, BlockStart
from ..common.lenient import json_text, loads
from ..common.reader import Reader, ReaderOptions
from .tools import SEARCH, arguments_of, flat_name, image_of, is_client_search, name_of, read_annotation, result_of
from .wire import (
    CALL_FIELDS,
    CALL_ITEMS,
    DIALECT,
    ENDS,
    INCOMPLETE,
    LIFECYCLE,
    OUTPUT_ITEMS,
    USAGE,
    Event,
    event_decoder,
    is_kind,
    string_of,
    texts,
    whole_number,
)


class Part:
    """A text inside an item: its block, and the text so far, to find what a final text adds."""

    __slots__ = ("block", "cited", "received")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.received: list[str] = []
        self.cited = 0


class OutputSlot:
    """One item. ``block`` is that of a call; texts have theirs in ``parts``. ``received`` has the arguments of a call so far."""

    __slots__ = ("block", "done", "held_size", "id", "index", "item", "kind", "parts", "received")

    def __init__(self, kind: str, item: JsonObject, item_id: str, index: int | None) -> None:
        self.kind = kind
        self.id = item_id
        self.index = index
        self.item = item
        self.done = False
        self.block: Block | None = None
        self.parts: dict[tuple[str, int], Part] = {}
        self.received: list[str] = []
        self.held_size = 0

    def is_item(self, item: JsonObject, last: bool = False) -> bool:
        """Whether this can be the item of the slot. A slot that is known from deltas only accepts any item of its kind, and the
        final version (``last``) of an open item may have a new id."""
        is_call = self.kind in CALL_ITEMS
        if last and not is_call and not self.done:
            return True
        name = "call_id" if is_call else "id"
        known, given = string_of(self.item, name), string_of(item, name)
        return not known or not given or known == given


class Slots:
    """Servers change an item's id in mid-stream, omit indexes, or give several items the same index. If index and id refer to
    different items, the id wins, unless the item at the index has it too; if neither is known, the newest item is meant."""

    def __init__(self) -> None:
        self.of_kind: dict[str, list[OutputSlot]] = {}
        self._at: dict[tuple[str, int], OutputSlot] = {}
        self._by_id: dict[tuple[str, str], OutputSlot] = {}
        self._by_call: dict[str, OutputSlot] = {}

    def add(self, kind: str, item: JsonObject, index: int | None, item_id: str | None) -> OutputSlot:
        slot = OutputSlot(kind, item, item_id or "", index)
        self.of_kind.setdefault(kind, []).append(slot)
        if index is not None:
            self._at[kind, index] = slot
        if item_id:
            self._by_id[kind, item_id] = slot
        return slot

    def named(self, slot: OutputSlot) -> None:
        """Registers the call id of this slot's item."""
        call_id = string_of(slot.item, "call_id")
        if call_id and slot.kind in CALL_ITEMS:
            self._by_call[call_id] = slot

    def find(self, kind: str, event: Event, last: bool = False) -> OutputSlot | None:
        """The slot that this event refers to. ``last``: it is a final version, so the item may have ended already."""
        index, item_id = event.output_index, event.item_id
        placed = self._at.get((kind, index)) if index is not None else None
        known = self._by_id.get((kind, item_id)) if item_id else None
        if known is not None:
            return placed if placed is not None and placed.id == item_id else known
        if placed is None and kind in self.of_kind:
            newest = self.of_kind[kind][-1]
            if (index is None or newest.index is None) and (not item_id or not newest.id):
                placed = newest
        return placed if placed is not None and (last or not placed.done) else None

    def find_item(self, kind: str, item: JsonObject, number: int) -> OutputSlot | None:
        """The slot of an item in a final list: by its call id, else as the n-th of its kind."""
        call_id = string_of(item, "call_id") if kind in CALL_ITEMS else ""
        if call_id in self._by_call:
            return self._by_call[call_id]
        slots = self.of_kind.get(kind, [])
        return slots[number] if number < len(slots) and (not call_id or slots[number].is_item(item)) else None


# --- items as blocks

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
            slot = self._slots.find(kind, _only_address(event))
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
            slot = self._slots.find(kind, _only_address(event), last=True)
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


def _only_address(event: Event) -> Event:
    return Event(item_id=string_of(event.item or {}, "id") or event.item_id, output_index=event.output_index)


# --- events

_ADDRESS: Final = frozenset(("sequence_number", "item_id", "output_index", "obfuscation"))
"""Fields that only locate an event. A writer generates them again."""
_KEEP_ALIVE: Final = frozenset(("keepalive", "ping", "response.keepalive", "response.ping"))
_NOTHING_NEW: Final = frozenset(
    (
        "response.content_part.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.custom_tool_call_input.done",
        "response.mcp_call_arguments.done",
        "response.audio.done",
        "response.audio.transcript.done",
    )
)
"""Events that repeat what other events contain."""
_AUDIO_ID: Final = "audio"


class ResponsesReader(Reader):
    dialect = DIALECT

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._usage: Usage | None = None
        self._emitted: JsonObject = {}
        items = self._items = Items(self)
        self._rules: dict[str, Callable[[Event], None]] = {
            "response.output_text.delta": lambda event: items.piece(event, "message", "text", event.content_index),
            "response.output_text.done": lambda event: items.last(event, "message", "text", event.content_index, event.text),
            "response.refusal.delta": lambda event: items.piece(event, "message", "refusal", event.content_index),
            "response.refusal.done": lambda event: items.last(event, "message", "refusal", event.content_index, event.refusal),
            "response.reasoning_text.delta": lambda event: items.piece(event, "reasoning", "content", event.content_index),
            "response.reasoning_text.done": lambda event: items.last(
                event, "reasoning", "content", event.content_index, event.text
            ),
            "response.reasoning_summary_text.delta": lambda event: items.piece(
                event, "reasoning", "summary", event.summary_index
            ),
            "response.reasoning_summary_text.done": lambda event: items.last(
                event, "reasoning", "summary", event.summary_index, event.text
            ),
            "response.reasoning.delta": lambda event: items.piece(event, "reasoning", "content", event.content_index),
            "response.reasoning_summary.delta": lambda event: items.piece(event, "reasoning", "summary", event.summary_index),
            "response.function_call_arguments.delta": lambda event: items.arguments(event, "function_call"),
            "response.function_call_arguments.done": lambda event: items.arguments_done(
                event, "function_call", json_text(event.arguments)
            ),
            "response.custom_tool_call_input.delta": lambda event: items.arguments(event, "custom_tool_call"),
            "response.custom_tool_call_input.done": lambda event: items.arguments_done(
                event, "custom_tool_call", event.input or ""
            ),
            "response.mcp_call_arguments.delta": lambda event: items.arguments(event, "mcp_call"),
            "response.output_item.added": items.added,
            "response.output_item.done": items.done,
            "response.content_part.done": items.part_done,
            "response.output_text.annotation.added": items.annotation,
            "response.audio.delta": lambda event: self._audio(data=event.delta),
            "response.audio.transcript.delta": lambda event: self._audio(transcript=event.delta),
            "response.created": self._lifecycle,
            "response.queued": self._lifecycle,
            "response.in_progress": self._lifecycle,
        }

    def read(self, frame: Frame) -> None:
        data = frame.data
        if data[:1] != b"{" and data.strip(b' \t"') == b"[DONE]":
            return
        event = self.decode(event_decoder, data)
        kind = event.type or frame.event
        rule = self._rules.get(kind)
        if rule is not None:
            rule(event)
        elif kind in ENDS:
            self._read_end(kind, event)
        elif kind not in _NOTHING_NEW:
            self._read_other(kind, event, data)

    def is_chunk(self, value: JsonObject) -> bool:
        return str(value.get("type", "")).startswith("response.")

    def whole(self, body: JsonObject) -> None:
        status = string_of(body, "status")
        if status in ("queued", "in_progress"):
            raise UpstreamTruncated(f"the response is still {status}: request it again when it is done")
        if not isinstance(body.get("output"), list) and status not in ("failed", "cancelled"):
            raise UpstreamProtocolError(f"the upstream sent a JSON body without output instead of a stream: {excerpt(body)}")
        self._read_end("response.completed", Event(response=body))

    # --- the response

    def _lifecycle(self, event: Event) -> None:
        response = event.response or {}
        self.start(string_of(response, "id"), string_of(response, "model"), whole_number(response.get("created_at")) or 0)
        changed = {
            name: value
            for name, value in response.items()
            if name not in LIFECYCLE and (name not in self._emitted or self._emitted[name] != value)
        }
        if changed:
            self._emitted.update(changed)
            self.emit(Extra(self.dialect, {"response": changed}))
        raw = response.get("usage")
        if isinstance(raw, dict) and raw and (self._usage is None or self._usage.raw != raw):
            self._usage = USAGE.read(raw)
            self.emit(self._usage)

    def _read_end(self, kind: str, event: Event) -> None:
        response = event.response or {}
        status = string_of(response, "status") or None
        self._lifecycle(event)
        error = response.get("error") or event.error
        if kind == "response.failed" or status == "failed" or upstream_errors.is_error(error):
            raise upstream_errors.refusal(error or {"message": "the upstream reported a failed response without a reason"})
        self._items.settle(response.get("output"))
        reason: StopReason = "end"
        if kind == "response.cancelled" or status == "cancelled":
            reason = "cancelled"
        elif kind == "response.incomplete" or status == "incomplete":
            details = response.get("incomplete_details")
            reason = INCOMPLETE.get(string_of(details, "reason") if isinstance(details, dict) else "", "other")
        blocks = self.blocks()
        self._items.finish(cut=reason != "end")
        if reason == "end" and blocks.calls:
            reason = "tool_calls"
        elif reason == "end" and self._items.refused and not self._items.answered:
            reason = "refusal"
        self.end(reason, status)

    def _read_other(self, kind: str, event: Event, data: bytes) -> None:
        if kind in _KEEP_ALIVE:
            self.emit(KeepAlive(kind))
        elif kind in ("error", "response.error") or upstream_errors.is_error(event.error):
            raise upstream_errors.refusal(loads(data)[0])
        elif kind and self.started:
            fields = {name: value for name, value in loads(data)[0].items() if name not in _ADDRESS}
            self.emit(Extra(self.dialect, {"event": {**fields, "type": kind}}), media=len(string_of(fields, "partial_image_b64")))

    def _audio(self, data: object = None, transcript: object = None) -> None:
        data, transcript = (value if isinstance(value, str) else "" for value in (data, transcript))
        if data or transcript:
            self.blocks().put(Media("audio/*", data, id=_AUDIO_ID, transcript=transcript))
