"""Opens, orders, numbers, closes and counts the blocks of every reader.

Wire formats describe blocks in two ways. Some name each block and mark its start and end: their readers use ``open``, ``add`` and
``end``. Others only send pieces (a delta has text, or a fragment of call 2): their readers use ``text``, ``reasoning`` and
``call``, and ``Blocks`` determines where one block ends and the next begins.

The events contain one block at a time. The oldest unfinished block is *live*: its pieces are emitted as they arrive. Blocks that
were opened after it wait in a queue with their pieces until it ends. So a call whose JSON is incomplete holds back what follows;
a call whose JSON is complete ends as soon as the next block begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from ...errors import UpstreamProtocolError, excerpt
from ...events import (
    BareEvent,
    CallKind,
    Citation,
    Echo,
    Extra,
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
    ToolResult,
)
from ...framing.lines import Surrogates
from ...json.tokenizer import JsonDepth
from ...json_types import JsonValue
from ...limits import DEFAULT_LIMITS, Limits
from .lenient import is_json

_encoder = msgspec.json.Encoder()


def json_size(value: JsonValue) -> int:
    """The length of a value as JSON, or nearly that."""
    if isinstance(value, str):
        return len(value)
    try:
        return len(_encoder.encode(value))
    except (ValueError, OverflowError, RecursionError):  # a lone surrogate, a huge number, too many levels
        return _walked_size(value)


def _walked_size(value: JsonValue) -> int:
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            size += 2 + sum(len(name) + 4 for name in item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            size += 2 + len(item)
            waiting.extend(item)
        else:
            size += len(str(item))
    return size


class Tally:
    """What one response contains besides the text of its blocks, all choices together: opaque state, extras, results and media.
    It is kept until the answer ends, however many events it comes in."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._extra_bytes = 0
        self._media_chars = 0

    def count(self, event: BareEvent, media: int = 0) -> None:
        """Counts an event that does not belong to a block. ``media``: how many of its characters belong to media."""
        if isinstance(event, Media):
            media = len(event.data) + len(event.url) + len(event.transcript)
        elif isinstance(event, Extra):
            self.extra(event.data, -media)
        elif isinstance(event, ToolResult):
            self.extra(event.native.data if event.native is not None else "", len(event.content))
        elif isinstance(event, Citation) and event.native is not None:
            self.extra(event.native.data)
        if media:
            self.media(media)

    def media(self, chars: int) -> None:
        self._media_chars += chars
        if self._media_chars > self._limits.media_chars:
            raise self._limits.exceeded("media_chars")

    def extra(self, value: JsonValue, more: int = 0) -> None:
        self._extra_bytes += json_size(value) + more
        if self._extra_bytes > self._limits.extra_bytes:
            raise self._limits.exceeded("extra_bytes")


BlockStart = TextStart | ReasoningStart | ToolCallStart


class Block:
    """One block. ``start`` is None for a call whose name has not arrived yet; ``echo`` may be set at its end. ``room`` is the most
    that ``size`` may become; opaque state reduces it. ``kept`` is the size of that state."""

    __slots__ = (
        "call_id",
        "complete",
        "depth",
        "echo",
        "ended",
        "held",
        "kept",
        "kind",
        "name",
        "native",
        "pieces",
        "redacted",
        "room",
        "size",
        "start",
        "surrogates",
    )

    def __init__(self, start: BlockStart | None, kind: CallKind | None = None, room: int = 0) -> None:
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
        self.room = room
        self.kept = 0
        self.held: list[BareEvent] = []
        self.pieces: list[str] = []
        self.depth: JsonDepth | None = None
        self.surrogates: Surrogates | None = None

    def whole(self) -> bool:
        """Whether all brackets and strings of the arguments are closed. A custom tool takes free text, which may stop
        anywhere."""
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
    """The blocks of one answer. ``emit`` receives the events in order."""

    def __init__(
        self,
        emit: Callable[[BareEvent], None],
        limits: Limits = DEFAULT_LIMITS,
        call_prefix: str = "call",
        tally: Tally | None = None,
    ) -> None:
        self.lone_surrogates = False
        """Set by the reader once the wire has split a surrogate pair; from then on halves are held back and joined."""
        self.calls = 0
        """Calls so far that the client has to run. They decide the stop reason, whatever the provider sends."""
        self.unreadable: list[str] = []
        """The names of ended calls that cannot be run because their arguments are truncated or are not JSON."""
        self.count = 0
        self._citations = 0
        self._emit = emit
        self._limits = limits
        self._call_prefix = call_prefix
        self._tally = tally or Tally(limits)
        self._queue: deque[Block] = deque()
        self._held_chars = 0
        self._by_id: dict[str, Block] = {}
        self._by_index: dict[int, Block] = {}
        self._latest_call: Block | None = None

    # --- wire formats that name their blocks

    def open(self, start: BlockStart | None, kind: CallKind | None = None) -> Block:
        block = Block(start, kind, self._limits.block_chars)
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
        if native is not None:
            self._use_room(block, json_size(native.data))
        self._name(block, call_id, name, native)
        return block

    def add(self, block: Block, piece: str) -> None:
        """Adds the next piece of this block's text or arguments."""
        if self.lone_surrogates:
            block.surrogates = block.surrogates or Surrogates()
            piece = block.surrogates.feed(piece)
        if not piece or block.ended:
            self._late(block, piece)
            return
        block.size += len(piece)
        if block.size > block.room:
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

    def keep(self, block: Block, echo: Echo) -> None:
        """Sets the opaque state of this block, in place of an earlier one."""
        self.count_opaque(block, json_size(echo.data) - block.kept)
        block.echo = echo

    def count_opaque(self, block: Block, size: int) -> None:
        """Counts a piece of opaque state towards the limit of this block. The reader joins the pieces itself."""
        block.kept += size
        self._use_room(block, size)

    def put(self, event: Citation | Media, counted: bool = False) -> None:
        """Adds a citation or a medium, inside the newest text or on its own. ``counted``: its pieces were counted before."""
        if not counted:
            self._tally.count(event)
        if type(event) is Citation:
            self._citations += 1
            if self._citations > self._limits.citations:
                raise self._limits.exceeded("citations")
        tail = self._queue[-1] if self._queue else None
        if tail is None or (tail is self._queue[0] and type(tail.start) is TextStart):
            self._emit(event)
        elif type(tail.start) is TextStart:
            self._hold(tail, event, 0)
        else:
            self._end_if_complete()
            if self._queue:
                block = self.open(TextStart())
                self._hold(block, event, 0)
                self.end(block)
            else:
                self._emit(event)

    def end(self, block: Block, echo: Echo | None = None) -> None:
        """Ends this block."""
        if block.ended:
            return
        if echo is not None:
            self.keep(block, echo)
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
        self._advance_queue()

    # --- wire formats that only send pieces

    def text(self, piece: str, refusal: bool = False) -> None:
        block = self._queue[-1] if self._queue else None
        if block is None or type(block.start) is not TextStart or block.start.refusal is not refusal or block.ended:
            self._end_if_complete()
            block = self.open(TextStart(refusal))
        self.add(block, piece)

    def reasoning(self, piece: str = "", summary: bool = False) -> Block:
        block = self._queue[-1] if self._queue else None
        if block is None or type(block.start) is not ReasoningStart or block.start.summary is not summary or block.ended:
            self._end_if_complete()
            block = self.open(ReasoningStart(summary))
        if piece:
            self.add(block, piece)
        return block

    def call(self, index: int | None, call_id: str, name: str, args: str, kind: CallKind = "function") -> Block:
        """Adds a fragment of a call. A new id or a new name starts a call; everything else continues one."""
        block = self._find_call(index, call_id, name, args)
        if block is None:
            self._end_if_complete()
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

    # --- the end of the stream

    def finish(self, cut: bool = False) -> None:
        """Ends all open blocks. ``cut``: the model was stopped, so an open custom call is incomplete. The arguments of a
        function show by themselves whether they are complete."""
        for block in list(self._queue):
            if block.start is None:
                raise UpstreamProtocolError(
                    f"a tool call has no name (id {excerpt(block.call_id)}, {block.size} characters of arguments)",
                    code="tool_call_without_name",
                )
            if cut and not block.ended and (block.kind == "custom" or (block.kind == "function" and block.blank())):
                block.complete = False
            self.end(block)

    def abort(self) -> None:
        """Closes the open blocks after a broken stream and marks them as incomplete."""
        head = self._queue[0] if self._queue else None
        self._queue = deque(block for block in self._queue if block.start is not None)
        if self._queue and self._queue[0] is not head:
            self._begin(self._queue[0])
            self._advance_queue()
        for block in list(self._queue):
            block.complete = block.complete and block.ended
            block.surrogates = None
            self.end(block)

    def half_call(self) -> bool:
        """Whether a call with incomplete arguments is open."""
        return any(block.kind is not None and not block.ended and not block.whole() for block in self._queue)

    # --- internals

    def _use_room(self, block: Block, size: int) -> None:
        block.room -= size
        if block.size > block.room:
            raise self._limits.exceeded("block_chars")

    def _find_call(self, index: int | None, call_id: str, name: str, args: str) -> Block | None:
        if call_id and (known := self._by_id.get(call_id)) is not None:
            return None if name and self._starts_again(known, index, name, args) else known
        block = self._latest_call if index is None else self._by_index.get(index)
        if call_id:
            # A new id starts a call. Without a name it is a late or changed id of the current call.
            return None if name else block
        if name:
            if block is None or (block.name and (block.name != name or block.whole())):
                return None
            return block
        return block or self._latest_call

    def _starts_again(self, known: Block, index: int | None, name: str, args: str) -> bool:
        """Whether a fragment with the id of a known call starts another one: some servers give all calls of an answer one id.
        Others repeat id and name in every fragment, so the known call must be complete."""
        if not known.name or not (known.ended or known.whole()):
            return False
        moved = index is not None and self._by_index.get(index) is not known
        return name != known.name or moved or (known.kind != "custom" and bool(args.strip()))

    def _name(self, block: Block, call_id: str, name: str, native: Echo | None = None) -> None:
        if block.kind != "server":
            self.calls += 1
        block.call_id = call_id or f"{self._call_prefix}_{self.calls}"
        block.name = name
        block.start = ToolCallStart(block.call_id, name, block.kind or "function", native)
        if block is self._queue[0]:
            self._begin(block)

    def _begin(self, block: Block) -> None:
        """Emits what a block holds when it becomes the first of the queue."""
        if block.start is None:
            return
        self._emit(block.start)
        for event in block.held:
            self._emit(event)
        if block.held:
            self._held_chars -= block.size
            block.held = []

    def _advance_queue(self) -> None:
        """Removes ended blocks from the head of the queue and makes the next one live."""
        while self._queue and self._queue[0].ended:
            self._emit(self._end_event(self._queue.popleft()))
            if self._queue:
                self._begin(self._queue[0])

    def _end_if_complete(self) -> None:
        """Ends the newest block if the next one can begin."""
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
                f"the block {excerpt(block.call_id or block.start)} has ended, but another piece of it arrived: {excerpt(piece)}",
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
