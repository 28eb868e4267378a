"""The items of a response while it streams, matched although servers change their ids and indexes."""

from __future__ import annotations

from ...json_types import JsonObject
from ..blocks import Block
from .wire import CALL_ITEMS, Event, string_of


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
