"""The one tracker that opens, orders, numbers and closes blocks for every reader.

Wires tell about blocks in two ways. Some name each block and say when it starts and stops: their readers use ``open``,
``add`` and ``end``. Others only send pieces (a delta has text, or a fragment of call 2): their readers use ``text``,
``reasoning`` and ``call``, and the tracker finds out where one block ends and the next begins.

Out comes one block at a time. The oldest block that is not finished is *live*: its pieces go out as they come. Blocks
that were opened behind it wait in the queue with their pieces until it ends. A call that was begun and is not yet whole
JSON therefore holds back what comes after it; a call that is whole ends as soon as the next block begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..errors import UpstreamProtocolError, excerpt
from ..events import (
    BareEvent,
    CallKind,
    Citation,
    Echo,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ..framing.json_depth import JsonDepth
from ..framing.utf8 import Surrogates
from ..limits import DEFAULT_LIMITS, Limits
from .lenient import is_json

BlockStart = TextStart | ReasoningStart | ToolCallStart


class Block:
    """One block on its way. ``start`` is None for a call whose name has not come yet; ``echo`` may be made at its end."""

    __slots__ = (
        "call_id",
        "complete",
        "depth",
        "echo",
        "ended",
        "held",
        "kind",
        "name",
        "native",
        "pieces",
        "redacted",
        "size",
        "start",
        "surrogates",
    )

    def __init__(self, start: BlockStart | None, kind: CallKind | None = None) -> None:
        self.start = start
        self.kind = kind
        self.call_id = ""
        self.name = ""
        self.native: Echo | None = None
        self.echo: Echo | Callable[[], Echo | None] | None = None
        self.redacted = False
        self.ended = False
        self.complete = True
        self.size = 0
        self.held: list[BareEvent] = []
        self.pieces: list[str] = []
        self.depth: JsonDepth | None = None
        self.surrogates: Surrogates | None = None

    def whole(self) -> bool:
        """Are all brackets and strings of the arguments closed? A custom tool takes free text, which may stop anywhere."""
        if self.kind == "custom":
            return True
        if self.depth is None:
            self.depth = JsonDepth()
            for piece in self.pieces:
                self.depth.feed(piece)
        return self.depth.complete

    def blank(self) -> bool:
        return not any(piece.strip() for piece in self.pieces) if self.depth is None else not self.depth.seen


class Blocks:
    """The blocks of one answer. ``emit`` takes the events in their order."""

    def __init__(self, emit: Callable[[BareEvent], None], limits: Limits = DEFAULT_LIMITS, call_prefix: str = "call") -> None:
        self.lone_surrogates = False
        """Set by the reader once the wire has cut a surrogate pair: then halves are held and joined."""
        self.calls = 0
        """Calls that the client has to run, so far: they decide the stop reason, whatever word the provider uses."""
        self.unreadable: list[str] = []
        """The names of calls that ended and cannot be run: their arguments are cut off or are not JSON."""
        self.count = 0
        self._emit = emit
        self._limits = limits
        self._call_prefix = call_prefix
        self._queue: deque[Block] = deque()
        self._held_chars = 0
        self._by_id: dict[str, Block] = {}
        self._by_index: dict[int, Block] = {}
        self._latest_call: Block | None = None

    # --- wires that name their blocks

    def open(self, start: BlockStart | None, kind: CallKind | None = None) -> Block:
        block = Block(start, kind)
        self.count += 1
        if self.count > self._limits.blocks:
            raise self._limits.exceeded("blocks")
        self._queue.append(block)
        if len(self._queue) == 1:
            self._begin(block)
        elif len(self._queue) > self._limits.held_blocks:
            raise self._limits.exceeded("held_blocks")
        return block

    def open_call(self, call_id: str, name: str, kind: CallKind = "function", native: Echo | None = None) -> Block:
        block = self.open(None, kind)
        self._name(block, call_id, name, native)
        return block

    def add(self, block: Block, piece: str) -> None:
        """The next piece of this block's text or arguments."""
        if self.lone_surrogates:
            block.surrogates = block.surrogates or Surrogates()
            piece = block.surrogates.feed(piece)
        if not piece or block.ended:
            self._late(block, piece)
            return
        block.size += len(piece)
        if block.size > self._limits.block_chars:
            raise self._limits.exceeded("block_chars")
        if block.kind is None:
            event: BareEvent = TextDelta(piece) if type(block.start) is TextStart else ReasoningDelta(piece)
        else:
            event = ToolCallDelta(piece)
            block.pieces.append(piece)
            if block.depth is not None:
                block.depth.feed(piece)
        if block is self._queue[0] and block.start is not None:
            self._emit(event)
        else:
            self._hold(block, event, len(piece))

    def put(self, event: Citation | Media) -> None:
        """A citation or a medium: inside the newest text, or on its own."""
        tail = self._queue[-1] if self._queue else None
        if tail is None or (tail is self._queue[0] and type(tail.start) is TextStart):
            self._emit(event)
        elif type(tail.start) is TextStart:
            self._hold(tail, event, 0)
        else:
            self._give_way()
            if self._queue:
                block = self.open(TextStart())
                self.put(event)
                self.end(block)
            else:
                self._emit(event)

    def end(self, block: Block, echo: Echo | None = None) -> None:
        """This block has got its last piece."""
        if block.ended:
            return
        if block.surrogates is not None:
            self.lone_surrogates, before = False, self.lone_surrogates
            self.add(block, block.surrogates.close())
            self.lone_surrogates = before
        if block.kind not in (None, "custom") and block.complete:
            if block.blank():
                self.add(block, "{}")
            else:
                block.complete = is_json("".join(block.pieces))
        block.ended = True
        block.pieces.clear()
        if echo is not None:
            block.echo = echo
        self._let_go()

    # --- wires that only send pieces

    def text(self, piece: str, refusal: bool = False) -> None:
        block = self._queue[-1] if self._queue else None
        if block is None or type(block.start) is not TextStart or block.start.refusal is not refusal or block.ended:
            self._give_way()
            block = self.open(TextStart(refusal))
        self.add(block, piece)

    def reasoning(self, piece: str = "", summary: bool = False) -> Block:
        block = self._queue[-1] if self._queue else None
        if block is None or type(block.start) is not ReasoningStart or block.start.summary is not summary or block.ended:
            self._give_way()
            block = self.open(ReasoningStart(summary))
        if piece:
            self.add(block, piece)
        return block

    def call(self, index: int | None, call_id: str, name: str, args: str, kind: CallKind = "function") -> Block:
        """A fragment of a call. A new id, or a new name, starts a call; everything else continues one."""
        block = self._find_call(index, call_id, name)
        if block is None:
            self._give_way()
            block = self.open(None, kind)
        self._latest_call = block
        if call_id:
            self._by_id[call_id] = block
        if index is not None:
            self._by_index[index] = block
        if block.start is None:
            block.call_id = block.call_id or call_id
            if name:
                self._name(block, block.call_id, name)
        if args:
            self.add(block, args)
        if not block.ended and block.start is not None and block is not self._queue[-1] and block.whole():
            self.end(block)
        return block

    # --- the end of it all

    def finish(self, cut: bool = False) -> None:
        """Ends what is open. ``cut``: the model was stopped. A custom call that is open then was cut off; whether the
        arguments of a function are whole, they say themselves."""
        for block in list(self._queue):
            if block.start is None:
                raise UpstreamProtocolError(
                    f"a tool call came without a name (id {excerpt(block.call_id)}, {block.size} characters of arguments)",
                    code="tool_call_without_name",
                )
            if cut and not block.ended and (block.kind == "custom" or (block.kind == "function" and block.blank())):
                block.complete = False
            self.end(block)

    def abort(self) -> None:
        """The stream broke: blocks that nobody ended are closed and marked as incomplete."""
        head = self._queue[0] if self._queue else None
        self._queue = deque(block for block in self._queue if block.start is not None)
        if self._queue and self._queue[0] is not head:
            self._begin(self._queue[0])
            self._let_go()
        for block in list(self._queue):
            block.complete = block.complete and block.ended
            block.surrogates = None
            self.end(block)

    def half_call(self) -> bool:
        """Is there an open call whose arguments are not whole?"""
        return any(block.kind is not None and not block.ended and not block.whole() for block in self._queue)

    # --- inside

    def _find_call(self, index: int | None, call_id: str, name: str) -> Block | None:
        if call_id and call_id in self._by_id:
            return self._by_id[call_id]
        block = self._latest_call if index is None else self._by_index.get(index)
        if call_id:
            # A new id starts a call. Without a name it is a late or changing id of the call that is under way.
            return None if name else block
        if name:
            if block is None or (block.name and (block.name != name or block.whole())):
                return None
            return block
        return block or self._latest_call

    def _name(self, block: Block, call_id: str, name: str, native: Echo | None = None) -> None:
        if block.kind != "server":
            self.calls += 1
        block.call_id = call_id or f"{self._call_prefix}_{self.calls}"
        block.name = name
        block.start = ToolCallStart(block.call_id, name, block.kind or "function", native)
        if block is self._queue[0]:
            self._begin(block)

    def _begin(self, block: Block) -> None:
        """The block is first in the queue now: out with what it holds."""
        if block.start is None:
            return
        self._emit(block.start)
        for event in block.held:
            self._emit(event)
        if block.held:
            self._held_chars -= block.size
            block.held = []

    def _let_go(self) -> None:
        """What has ended and is first in the queue leaves it, and the next one is live."""
        while self._queue and self._queue[0].ended:
            self._emit(self._end_event(self._queue.popleft()))
            if self._queue:
                self._begin(self._queue[0])

    def _give_way(self) -> None:
        """Another block wants to begin: does this end the newest one?"""
        if self._queue:
            tail = self._queue[-1]
            if not tail.ended and (tail.kind is None or (tail.start is not None and tail.whole())):
                self.end(tail)

    def _hold(self, block: Block, event: BareEvent, size: int) -> None:
        block.held.append(event)
        self._held_chars += size
        if self._held_chars > self._limits.held_chars:
            raise self._limits.exceeded("held_chars")

    def _late(self, block: Block, piece: str) -> None:
        if piece.strip() and block.ended:
            raise UpstreamProtocolError(
                f"the block {excerpt(block.call_id or block.start)} had ended, and more came for it: {excerpt(piece)}",
                code="piece_after_end",
            )

    def _end_event(self, block: Block) -> BareEvent:
        echo = block.echo() if callable(block.echo) else block.echo
        if block.kind is not None:
            if not block.complete and block.kind != "server":
                self.unreadable.append(block.name)
            return ToolCallEnd(echo, block.complete)
        if type(block.start) is TextStart:
            return TextEnd(echo, block.complete)
        return ReasoningEnd(echo, block.redacted, block.complete)
