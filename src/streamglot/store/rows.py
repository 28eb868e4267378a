"""Converts queued entries to rows: messages and requests by their hash, histories as a tree, everything else as it is. Pure.

A batch of entries becomes one ``Rows``; a message, a node or a turn that occurs twice in it is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..json_types import JsonObject
from ..messages import Message, Part, Request, TextPart
from .contents import Cut, Hashes, cut, cut_request, hashed, packed, piece_row
from .database.sql import SqlRow
from .provider_state import carries_echo
from .search import scope_of, wording
from .turns import (
    BARE_BYTES,
    MAX_TOKENS,
    UNFIT_ERRORS,
    EndingRow,
    Finished,
    Turn,
    TurnRow,
    answer_weight,
    as_json,
    bare_response,
    clean,
    ending_row,
    short_request,
    short_response,
    turn_row,
    weight,
)

TEXT_CHARS: Final = 65_536
"""Characters of a turn that the search index contains."""
SHORT_BYTES: Final = 2**16
"""Bytes of a turn with shortened contents. A turn with more messages than fit is stored without contents."""
CONTENTS: Final = "contents"
"""The key in ``more`` of an ending that says that contents were ``cut`` or ``dropped`` for lack of room."""

STEP_CONTENTS: Final = frozenset(("arguments", "result"))
"""The fields of a step that are contents."""

Row: TypeAlias = SqlRow
_encoder = msgspec.json.Encoder()


class Entry(Struct, kw_only=True):
    """Something to write. ``kind`` is the counter that it belongs to, ``weight`` its approximate size in bytes."""

    kind: str
    weight: int = 256

    def lighter(self) -> Entry | None:
        """The same entry with less content, for a full queue or a database that refuses it whole; None if everything in it is
        required."""
        return None


class TurnEntry(Entry, kw_only=True):
    """The start or the end of a turn. ``request`` replaces the turn's request if only a part of it is stored. ``written`` is called
    when the ending is in the database. ``ended`` replaces ``finished`` if contents are not stored: the row was made at once, so that
    nothing else of the turn stays in memory. Its ``cost`` may be asked for later."""

    turn: Turn
    process: str
    content: bool
    finished: Finished | None = None
    tip: bytes | None = None
    request: Request | None = None
    ended: EndingRow | None = None
    cost: Callable[[], float | None] | None = None
    written: Callable[[], None] | None = None

    def lighter(self) -> TurnEntry | None:
        """First shortens the contents, then drops them. The ending and the usage always stay."""
        if not self.content:
            return None
        short = self._short() if self.request is None else None
        return short if short is not None and short.weight <= SHORT_BYTES else self._without_contents()

    def _short(self) -> TurnEntry:
        request, finished = short_request(self.turn.started.request), self.finished
        size = weight(request)
        if finished is not None:
            response = short_response(finished.response) if finished.response is not None else None
            more = {**finished.more, CONTENTS: "cut"}
            finished = replace(finished, response=response, upstream_request=None, verdicts=[], more=more)
            size += answer_weight(response)
        return replace(self, weight=size, request=request, finished=finished)

    def _without_contents(self) -> TurnEntry:
        finished = self.finished
        if finished is not None:
            response = bare_response(finished.response) if finished.response is not None else None
            more = {**finished.more, CONTENTS: "dropped"}
            finished = replace(finished, response=response, upstream_request=None, verdicts=[], more=more)
            self.turn.forget_request()
        return replace(self, weight=BARE_BYTES, content=False, finished=finished)


class FrameEntry(Entry, kw_only=True):
    turn_id: str
    number: int
    direction: str
    at: float
    data: bytes


class StepEntry(Entry, kw_only=True):
    """A step of a tool loop. Arguments and results can be left out; the fact that the tool ran cannot."""

    turn_id: str
    number: int
    step: JsonObject

    def lighter(self) -> StepEntry | None:
        return self.without_contents() if self.step.keys() & STEP_CONTENTS else None

    def without_contents(self) -> StepEntry:
        bare = {name: value for name, value in self.step.items() if name not in STEP_CONTENTS}
        return StepEntry(kind=self.kind, turn_id=self.turn_id, number=self.number, step=bare)


class StreamEntry(Entry, kw_only=True):
    """A resumable stream that was opened, or (with ``last``) has ended."""

    row: Row


class ChunkEntry(Entry, kw_only=True):
    stream_id: str
    first: int
    last: int
    data: bytes


class TrimEntry(Entry, kw_only=True):
    """Removes the chunks of a stream up to a number."""

    stream_id: str
    number: int


class Rows(Struct):
    """The rows of a batch. ``messages`` has whole bodies. ``cuts`` and ``packed`` have what is probably new: messages without their
    pieces, and pieces as they are written."""

    sessions: dict[str, Row] = field(default_factory=dict)
    messages: dict[bytes, str] = field(default_factory=dict)
    cuts: dict[bytes, Cut] = field(default_factory=dict)
    requests: dict[bytes, Cut] = field(default_factory=dict)
    packed: dict[bytes, bytes] = field(default_factory=dict)
    nodes: dict[bytes, Row] = field(default_factory=dict)
    turns: dict[str, TurnRow] = field(default_factory=dict)
    endings: dict[str, EndingRow] = field(default_factory=dict)
    answers: list[Row] = field(default_factory=list)
    texts: list[Row] = field(default_factory=list)
    frames: list[Row] = field(default_factory=list)
    steps: dict[tuple[str, int], Row] = field(default_factory=dict)
    streams: dict[str, Row] = field(default_factory=dict)
    chunks: list[Row] = field(default_factory=list)
    trims: dict[str, int] = field(default_factory=dict)
    unfit: dict[str, int] = field(default_factory=dict)
    generation: int = 1


def rows_of(entries: Iterable[Entry], generation: int = 1, known: Container[Hashable] = ()) -> Rows:
    """All rows of these entries, for a database of this generation. An entry that cannot be written as it is loses content. One
    that cannot be written at all is counted and does not affect the others. ``known`` messages are in the database."""
    rows = Rows(generation=generation)
    hashes: Hashes = {}
    frames: dict[str, list[tuple[int, float, str, bytes]]] = {}
    chunks: dict[str, list[tuple[int, int, bytes]]] = {}
    for entry in entries:
        try:
            match entry:
                case TurnEntry():
                    _turn_or_less(rows, entry, hashes)
                case FrameEntry():
                    frame = (entry.number, entry.at, entry.direction, entry.data)
                    frames.setdefault(entry.turn_id, []).append(frame)
                case StepEntry():
                    body = clean(as_json(entry.step))
                    rows.steps[entry.turn_id, entry.number] = {
                        "turn_id": entry.turn_id,
                        "number": entry.number,
                        "body": body,
                    }
                case ChunkEntry():
                    chunks.setdefault(entry.stream_id, []).append((entry.first, entry.last, entry.data))
                case StreamEntry():
                    rows.streams[entry.row["id"]] = entry.row
                case TrimEntry():
                    rows.trims[entry.stream_id] = entry.number
        except UNFIT_ERRORS:
            rows.unfit[entry.kind] = rows.unfit.get(entry.kind, 0) + 1
    rows.cuts = {mark: cut(body) for mark, body in rows.messages.items() if mark not in known}
    for found in (*rows.cuts.values(), *rows.requests.values()):
        rows.packed |= {mark: piece_row(data) for mark, data in found.pieces if mark not in known and mark not in rows.packed}
    rows.frames = [_frame_row(turn, found) for turn, found in frames.items()]
    rows.chunks = [row for stream, found in chunks.items() for row in _chunk_rows(stream, found)]
    return rows


def _frame_row(turn: str, frames: list[tuple[int, float, str, bytes]]) -> Row:
    """The frames of one turn in a batch become one row."""
    return {"turn_id": turn, "number": frames[0][0], "body": msgspec.msgpack.encode([frame[1:] for frame in frames])}


def _chunk_rows(stream: str, chunks: list[tuple[int, int, bytes]]) -> Iterator[Row]:
    """The consecutive chunks of one stream in a batch become one row. It is compressed: frames of a stream resemble each other,
    and compressing costs less than writing them in full."""
    begin = 0
    for end in range(1, len(chunks) + 1):
        if end == len(chunks) or chunks[end][0] != chunks[end - 1][1] + 1:
            body = packed(msgspec.msgpack.encode([chunk[1:] for chunk in chunks[begin:end]]))
            yield {"stream_id": stream, "number": chunks[begin][0], "last": chunks[end - 1][1], "body": body}
            begin = end


def _turn_or_less(rows: Rows, entry: TurnEntry, hashes: Hashes) -> None:
    """Adds the rows of a turn. If its contents cannot be written, the ending must be written without them, or its conversation
    would stay locked."""
    while True:
        try:
            _turn(rows, entry, hashes)
        except UNFIT_ERRORS:
            lighter = entry.lighter()
            if lighter is None:
                raise
            entry = lighter
        else:
            return


def _turn(rows: Rows, entry: TurnEntry, hashes: Hashes) -> None:
    turn, finished = entry.turn, entry.finished
    started, session = turn.started, turn.session
    if turn.written != rows.generation and turn.id not in rows.turns:
        request = entry.request or started.request
        turn.node = _history(rows, request.messages, hashes) if entry.content else None
        row = turn.row or turn_row(turn, entry.process, request, entry.content)
        if entry.content:
            row.settings = _settings(rows, turn, request)
        rows.turns[turn.id] = row
        if session.id not in rows.sessions:
            rows.sessions[session.id] = {
                "id": session.id,
                "caller": clean(session.caller),
                "name": clean(session.name),
                "directory": clean(session.directory),
                "started": session.started,
            }
    if entry.ended is not None:
        rows.endings[turn.id] = entry.ended
        if entry.cost is not None:
            entry.ended.cost = entry.cost()
    elif finished is not None:
        rows.endings[turn.id] = _ending(rows, entry, finished, hashes)


def _ending(rows: Rows, entry: TurnEntry, finished: Finished, hashes: Hashes) -> EndingRow:
    response, turn = finished.response, entry.turn
    row = ending_row(turn, finished, entry.tip, entry.content)
    row.cost = finished.cost() if callable(finished.cost) else finished.cost
    if entry.content and finished.upstream_request is not None:
        row.upstream_node = _upstream_node(rows, turn, finished.upstream_request, hashes)
        row.upstream_settings = _settings(rows, turn, finished.upstream_request)
    if entry.content and response is not None:
        parts: list[Part] = []
        for choice in response.choices:
            message = Message("assistant", choice.parts, echo=finished.echo if choice.index == 0 else None)
            mark, index = _message(rows, message), min(choice.index, MAX_TOKENS)
            echo_session = turn.session.id if index == 0 and carries_echo(message) else None
            rows.answers.append({"turn_id": turn.id, "choice": index, "message": mark, "echo_session": echo_session})
            parts += choice.parts
        body = _words(entry.request or turn.started.request, parts)
        rows.texts.append({"turn_id": turn.id, "body": body, "scope": scope_of(row.caller)})
    return row


def _history(rows: Rows, messages: Iterable[Message], hashes: Hashes) -> bytes | None:
    """Adds a history to the tree and returns the node of its last message."""
    node: bytes | None = None
    for depth, message in enumerate(messages):
        known = hashes.get(id(message))
        mark = known[1] if known is not None else _message(rows, message)
        if known is None:
            hashes[id(message)] = message, mark
        parent, node = node, hashed((node or b"") + mark)
        if node not in rows.nodes:
            rows.nodes[node] = {"hash": node, "parent": parent, "message": mark, "depth": depth}
    return node


def _settings(rows: Rows, turn: Turn, request: Request) -> bytes:
    """Adds a request without its messages, which are in the tree, and returns its hash. The request to the upstream usually has the
    tools of the client's."""
    mark, found = cut_request(request, turn.hashes)
    rows.requests[mark] = found
    return mark


def _upstream_node(rows: Rows, turn: Turn, upstream_request: Request, hashes: Hashes) -> bytes | None:
    """The node of the upstream request. It usually has the messages of the client's request, whose node exists already."""
    return (
        turn.node
        if upstream_request.messages is turn.started.request.messages
        else _history(rows, upstream_request.messages, hashes)
    )


def _message(rows: Rows, message: Message) -> bytes:
    body = _encoder.encode(message)
    mark = hashed(body)
    if mark not in rows.messages:
        rows.messages[mark] = body.decode()
    return mark


def _words(request: Request, parts: Iterable[Part]) -> str:
    question = next((message.text for message in reversed(request.messages) if message.role == "user" and message.text), "")
    return words(question, "\n".join(part.text for part in parts if isinstance(part, TextPart)))


def words(question: str, answer: str = "") -> str:
    """The indexed text: the last user message and the answer. It is normalized to words; some single characters become many."""
    return wording(f"{question[: TEXT_CHARS // 2]}\n{answer}"[:TEXT_CHARS])[: 2 * TEXT_CHARS]
