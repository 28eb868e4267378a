"""One turn: the data that is known when it starts, the data that is known when it ends, and the two rows that store them.

The fields of the rows are the columns of the tables, in the same order. Rows are structs and not dicts, because they take a third
of the memory and are made faster.

Contents that do not fit are shortened: each long part is cut and says so. A shortened conversation can still be continued,
because messages and calls keep their places, ids and order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..events import Echo
from ..json_types import JsonObject, JsonValue
from ..messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    Response,
    ResponseChoice,
    TextPart,
    TokenCounts,
    ToolCallPart,
    ToolResultPart,
)
from .contents import Hashes
from .conversation import Conversation

PART_CHARS: Final = 4096
"""Characters kept of each part: enough to recognize it, little enough for thousands of turns."""
ERROR_CHARS: Final = 500
"""Characters kept of an error message."""
TITLE_CHARS: Final = 120
TITLE_ASKS: Final = 3
"""User messages of a request for a title: the question, with what an agent writes before and after it."""
INSTRUCTION_CHARS: Final = 4000
"""Characters of a system prompt that are searched for what it asks."""
BARE_BYTES: Final = 1024
"""Approximate bytes of the start or the end of a turn without contents."""
BROKEN: Final = ("truncated", "client_gone", "interrupted", "policy", "error")
ID_RANDOM_BYTES: Final = 9
"""Random bytes of an id: enough that ids of the same microsecond differ and nobody finds one by trying."""
TURN: Final = "turn_"
LAST_MICROSECOND: Final = 16**14 - 1
"""The last time that an id can begin with, in microseconds since 1970: in the year 4253."""
IDS_PER_DRAW: Final = 256
"""Ids for which one call of the system draws random bytes. The call costs 5 µs, and 2 KB of them take hardly longer than 9 bytes."""
ENDINGS: Final = (
    *("end", "stop_sequence", "length", "tool_calls", "content_filter", "refusal", "pause", "cancelled", "other"),
    *BROKEN,
)
"""The endings of a turn: first those of complete streams, then those of incomplete ones."""


_NO_REQUEST: Final = Request(model="", messages=[])
"""Replaces the request of a turn whose row exists."""


class TurnRow(Struct, gc=False):
    """A row of ``turns``: what is known when a turn starts."""

    id: str
    session_id: str
    caller: str
    process: str
    request_id: str
    started: float
    dialect: str
    model: str
    stream: bool
    probe: bool
    title: str
    settings: bytes | None
    node: bytes | None
    prompt_hash: bytes | None
    response_id: str
    retrievable: bool
    client_options: str | None
    named: bool


class EndingRow(Struct, gc=False):
    """A row of ``endings``: what is known when a turn ends."""

    turn_id: str
    ended: float
    ending: str
    error_code: str
    error: str | None
    response_id: str
    response: str | None
    tip: bytes | None
    upstream: str
    upstream_dialect: str
    upstream_model: str
    upstream_settings: bytes | None
    upstream_node: bytes | None
    input_tokens: int | None
    output_tokens: int | None
    usage: str | None
    cost: float | None
    timings: str
    verdicts: str
    more: str
    session_id: str
    caller: str
    named: bool


class Session(Struct, kw_only=True):
    """A session. ``new``: nothing was found in the database. ``previous`` is the turn that the request continues, if known."""

    id: str
    caller: str = ""
    name: str = ""
    directory: str = ""
    new: bool = True
    previous: str = ""
    started: float = 0.0
    conversation: Conversation | None = None


class Started(Struct, kw_only=True):
    """The start of a turn. ``caller`` is the name of the key or another value that separates callers. The request must not be
    changed after this. ``probe``: a request that the client's software sends by itself; it sets neither title nor state.
    ``response_id`` is the id that the client receives, if it is known before the end. ``retrievable``: the client may retrieve
    or continue the response by it. ``client_options`` has the client's options that the request does not show: what it
    continues, whether it runs in the background."""

    caller: str = ""
    request_id: str = ""
    dialect: str = ""
    model: str = ""
    request: Request
    probe: bool = False
    response_id: str = ""
    retrievable: bool = True
    client_options: JsonObject = field(default_factory=dict)
    at: float = 0.0


class Finished(Struct, kw_only=True):
    """The end of a turn. ``response`` is the complete or partial response. ``upstream_request`` is the last request that was
    built for an upstream. ``echo`` is state of the conversation that the provider keeps, with which it continues this answer.
    ``response_id`` is the id that the client received, if neither the start nor the response has it.
    ``cost`` may be a function, which is called outside the event loop because the price data is slow to load. ``written`` is
    called when the ending is in the database, and never if it does not get there."""

    ending: str
    response: Response | None = None
    response_id: str = ""
    upstream: str = ""
    upstream_dialect: str = ""
    upstream_model: str = ""
    upstream_request: Request | None = None
    echo: Echo | None = None
    cost: float | Callable[[], float | None] | None = None
    timings: JsonObject = field(default_factory=dict)
    verdicts: list[JsonObject] = field(default_factory=list)
    more: JsonObject = field(default_factory=dict)
    first_event: float = 0.0
    at: float = 0.0
    written: Callable[[], None] | None = None


class TurnSink(Protocol):
    """The parts of the store that a turn uses."""

    def take_frame(self, turn: Turn, direction: str, at: float, data: bytes) -> None: ...
    def take_step(self, turn: Turn, number: int, step: Mapping[str, JsonValue]) -> None: ...
    def take_end(self, turn: Turn, finished: Finished) -> None: ...


class Turn:
    """A running turn. Its methods neither wait nor raise: data that cannot be stored is counted. The writer sets ``written``,
    the generation of the database that has the turn, and ``node``, the end of its history. ``kept``: the queue had room for it;
    there is room for its ending then, too. ``weight``: size of the request in bytes. ``remembered``: the process keeps it in memory
    for requests that continue it at once. ``row``: its row, if contents are not stored. ``hashes`` has those of its tools and other
    large fields."""

    def __init__(self, store: TurnSink, id: str, session: Session, started: Started, raw: bool, remembered: bool = True) -> None:
        self.id = id
        self.session = session
        self.started = started
        self.written = 0
        self.kept = True
        self.weight = 0
        self.node: bytes | None = None
        self.frames = 0
        self.is_finished = False
        self.remembered = remembered
        self.row: TurnRow | None = None
        self.hashes: Hashes = {}
        self._store = store
        self._raw = raw

    def frame(self, direction: str, at: float, data: bytes) -> None:
        """Records the raw bytes of one read or write, if the store keeps them. ``at`` is seconds since the turn began."""
        if self._raw and not self.is_finished:
            self._store.take_frame(self, direction, at, data)
            self.frames += 1

    def step(self, number: int, step: Mapping[str, JsonValue]) -> None:
        """A step of a tool loop: a model turn or a call. A later step with the same number replaces it."""
        if self.kept:
            self._store.take_step(self, number, step)

    def forget_request(self) -> None:
        """Drops the request of an ended turn whose contents are not stored, so that it does not occupy memory until the ending
        is written."""
        request = self.started.request
        self.hashes = {}
        bare = _NO_REQUEST
        if self.row is None:  # the row needs these
            bare = Request(model=request.model, stream=request.stream, dialect=request.dialect)
        self.started = replace(self.started, request=bare)

    def finish(self, finished: Finished) -> None:
        """Ends the turn. Later calls are ignored."""
        if not self.is_finished:
            self.is_finished = True  # the answer itself is not held here: it may be large
            self._store.take_end(self, finished)


def given_id(started: Started, finished: Finished) -> str:
    """The id by which the client knows the response."""
    return finished.response_id or started.response_id or (finished.response.id if finished.response is not None else "")


def mint_id(prefix: str, now: float) -> str:
    """An id that sorts by time and cannot be guessed."""
    while True:
        try:
            return f"{prefix}{int(now * 1_000_000):014x}{_unused_ends.pop()}"
        except IndexError:
            data = os.urandom(ID_RANDOM_BYTES * IDS_PER_DRAW).hex()
            _unused_ends.extend(data[at : at + 2 * ID_RANDOM_BYTES] for at in range(0, len(data), 2 * ID_RANDOM_BYTES))


def first_id(prefix: str, at: float) -> str:
    """Sorts before the ids that were made at this time or later, and after all earlier ones."""
    return f"{prefix}{max(0, min(int(at * 1_000_000), LAST_MICROSECOND)):014x}"


_unused_ends: Final[list[str]] = []
"""Random ends of ids that no id has yet. A forked process must not use those of its parent."""
os.register_at_fork(after_in_child=_unused_ends.clear)


def minted_at(id: str) -> float:
    """The time in an id; 0 if it has none."""
    try:
        return int(id.rpartition("_")[2][:14], 16) / 1_000_000
    except ValueError:
        return 0.0


def is_probe(request: Request) -> bool:
    """Whether the client's software sends this request beside the conversation: one token to check the key, a title for the
    session, or a summary of it. Only such requests have no tools."""
    if request.max_tokens == 1:
        return True
    if request.tools:
        return False
    instructions = " ".join(message.text for message in request.messages if message.role in ("system", "developer"))
    instructions = instructions[:INSTRUCTION_CHARS].lower()
    if not any(word in instructions for word in ("conversation", "session", "topic", "chat")):
        return False
    asks = [message for message in request.messages if message.role == "user"]
    begins = len(asks) <= TITLE_ASKS and not any(message.role == "assistant" for message in request.messages)
    return ("title" in instructions and begins) or "summariz" in instructions or "summary of" in instructions


def title_of(request: Request) -> str:
    """The first words of the last user message, without what an agent wrote around them."""
    questions = (without_scaffolding(message.text) for message in reversed(request.messages) if message.role == "user")
    first = next((text for text in questions if text), "")
    return " ".join(first[: 4 * TITLE_CHARS].split())[:TITLE_CHARS]


def weight(request: Request) -> int:
    """The approximate size of the request in bytes."""
    size = BARE_BYTES + messages_weight(request)
    for beside in (request.tools, request.extra, request.metadata):
        if beside:
            size += encoded_size(beside)
    return size


def messages_weight(request: Request) -> int:
    """The approximate size of the messages in bytes."""
    return sum(_weight(message) for message in request.messages)


def answer_weight(response: Response | None) -> int:
    if response is None:
        return BARE_BYTES
    size = BARE_BYTES + sum(64 + _size(part) for choice in response.choices for part in choice.parts)
    if response.usage.raw:
        size += encoded_size(response.usage.raw)
    return size + encoded_size(response.extras) if response.extras else size


def _weight(message: Message) -> int:
    return 64 + sum(_size(part) for part in message.parts)


def _size(part: Part) -> int:
    if type(part) is TextPart and part.echo is None:  # the usual case
        return 64 + len(part.text)
    size = 64
    for name in ("text", "arguments", "transcript", "url"):
        value = getattr(part, name, "")
        if isinstance(value, str):
            size += len(value)
    data = getattr(part, "data", "")
    size += len(data) if isinstance(data, str) else encoded_size(data)
    for name in ("echo", "native"):
        size += encoded_size(getattr(part, name, None))
    for inner in getattr(part, "content", ()):
        size += _size(inner)
    return size


T = TypeVar("T", bound=Struct)

MAX_TOKENS: Final = 2**31 - 1
"""The maximum of an integer column. A larger count of an upstream is not credible and not stored."""
ID_CHARS: Final = 512
"""Longer ids and names of provider state are not stored. An index entry of PostgreSQL takes at most 2.7 KB."""
NO_MESSAGE: Final = "the message is not stored (store.content is off)"
"""Replaces the message of an error when contents are not stored."""
UNFIT_ERRORS: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""The exceptions that a value raises if it cannot become a row."""
_encoder = msgspec.json.Encoder()


def turn_row(turn: Turn, process: str, request: Request, content: bool) -> TurnRow:
    """The row of a turn that starts. ``content``: with its title."""
    started, session = turn.started, turn.session
    return TurnRow(
        id=turn.id,
        session_id=session.id,
        caller=clean(started.caller),
        process=process,
        request_id=clean(started.request_id),
        started=started.at,
        dialect=clean(started.dialect),
        model=clean(started.model),
        stream=request.stream,
        probe=started.probe,
        title=clean(title_of(request)) if content and not started.probe else "",
        settings=None,
        node=turn.node,
        prompt_hash=session.conversation.prompt_hash if session.conversation is not None and not started.probe else None,
        response_id=_id(started.response_id),
        retrievable=started.retrievable,
        client_options=as_json(started.client_options) if started.client_options else None,
        named=bool(session.name),
    )


def ending_row(turn: Turn, finished: Finished, tip: bytes | None, content: bool) -> EndingRow:
    """The row of a turn that has ended, without its cost. ``content``: with the response."""
    response = finished.response
    error = response.error if response is not None else None
    if error is not None and not content:  # upstreams quote the request in their errors
        error = replace(error, message=NO_MESSAGE, detail=None)
    usage = response.usage if response is not None else None
    counted = None if finished.more.get("cached") else usage  # an answer from the cache used nothing
    timings = {**finished.timings, "first_event": finished.first_event} if finished.first_event else finished.timings
    return EndingRow(
        turn_id=turn.id,
        ended=finished.at,
        ending=clean(finished.ending),
        error_code=clean(error.code) if error is not None else "",
        error=as_json(error) if error is not None else None,
        response_id=_id(given_id(turn.started, finished)),
        response=_response(response) if response is not None and content else None,
        tip=tip,
        upstream=clean(finished.upstream),
        upstream_dialect=clean(finished.upstream_dialect),
        upstream_model=clean(finished.upstream_model),
        upstream_settings=None,
        upstream_node=None,
        input_tokens=_tokens(counted.input_tokens) if counted is not None else None,
        output_tokens=_tokens(counted.output_tokens) if counted is not None else None,
        usage=as_json(_given(usage, TokenCounts())) if usage is not None else None,
        cost=None,
        timings=as_json(timings),
        verdicts=as_json(finished.verdicts) if content and finished.verdicts else "[]",
        more=as_json(finished.more) if finished.more else "{}",
        session_id=turn.session.id,
        caller=clean(turn.started.caller),
        named=bool(turn.session.name),
    )


def _response(response: Response) -> str:
    """The response without its parts, which are stored as messages, and without what the row has beside it."""
    bare = Response(choices=response.choices, usage=response.usage, error=response.error)
    choices = [_given(choice, ResponseChoice(-1, choice.parts)) for choice in response.choices]
    return as_json({**_given(response, bare), "choices": choices})


def _given(value: T, empty: T) -> JsonObject:
    """The fields of a struct that differ from those of an empty one."""
    return {name: found for name in value.__struct_fields__ if (found := getattr(value, name)) != getattr(empty, name)}


def _tokens(count: int | None) -> int | None:
    return None if count is None else max(0, min(count, MAX_TOKENS))


def _id(text: str) -> str:
    """The id, or an empty string if it is too long."""
    return clean(text) if len(text) <= ID_CHARS else ""


def as_json(value: object) -> str:
    return _encoder.encode(value).decode()


def clean(text: str) -> str:
    """Text that every database accepts: without NUL and half surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def short_request(request: Request) -> Request:
    """The request with short messages. Long tools and long fields of a single dialect are left out."""
    return replace(
        request,
        messages=[replace(message, parts=[short_part(part) for part in message.parts]) for message in request.messages],
        tools=[] if encoded_size(request.tools) > PART_CHARS else request.tools,
        extra={} if encoded_size(request.extra) > PART_CHARS else request.extra,
        metadata=None if encoded_size(request.metadata) > PART_CHARS else request.metadata,
    )


def short_response(response: Response) -> Response:
    """The response with short parts. Its ending and its usage stay."""
    choices = [replace(choice, parts=[short_part(part) for part in choice.parts], extras=[]) for choice in response.choices]
    bare = bare_response(response)
    return replace(response, choices=choices, usage=bare.usage, error=bare.error, extras=[], extensions=None)


def bare_response(response: Response) -> Response:
    """The usage and the error of a response, without its content."""
    error = response.error
    if error is not None:
        error = replace(error, message=error.message[:ERROR_CHARS], detail=None)
    usage = replace(response.usage, raw=None)
    return Response(id=response.id, model=response.model, created=response.created, usage=usage, error=error)


def short_part(part: Part) -> Part:
    """The part itself if it is short, else its shortened form. The provider state of a cut part is dropped: a signature is
    worthless without the text that it signs."""
    match part:
        case TextPart() | RefusalPart() | ReasoningPart():
            return _short_text(part)
        case ToolCallPart() if len(part.arguments) > PART_CHARS or _large(part.echo, part.native):
            left_out = {"streamglot": f"{len(part.arguments)} characters of arguments were not stored"}
            return replace(part, arguments=msgspec.json.encode(left_out).decode(), echo=None, native=None)
        case ToolResultPart():
            content: list[JsonValue] = [short_part(inner) for inner in part.content]
            return replace(part, content=content, native=None if _large(part.native) else part.native)
        case MediaPart() if len(part.data) + len(part.url) + len(part.transcript) > PART_CHARS:
            return TextPart(f"[{part.mime or 'a medium'} of {len(part.data)} characters was not stored]")
        case NativePart() if encoded_size(part.data) > PART_CHARS:
            return TextPart(f"[a part in the dialect {part.dialect} was not stored]")
    return part


def _short_text(part: TextPart | RefusalPart | ReasoningPart) -> Part:
    large = not isinstance(part, RefusalPart) and _large(part.echo)
    if len(part.text) <= PART_CHARS and not large:
        return part
    text = part.text
    if len(text) > PART_CHARS:
        text = f"{text[:PART_CHARS]} [{len(text) - PART_CHARS} more characters were not stored]"
    if isinstance(part, RefusalPart):
        return RefusalPart(text)
    if isinstance(part, ReasoningPart):
        return replace(part, text=text, echo=None)
    return replace(part, text=text, echo=None, citations=[])


def _large(*states: object) -> bool:
    return any(state is not None and encoded_size(state) > PART_CHARS for state in states)


def encoded_size(value: object) -> int:
    """The approximate size in bytes. A value that cannot be encoded counts as large."""
    if not value:
        return 0
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return PART_CHARS + 1


_OPENING: Final = re.compile(r"\s*<([A-Za-z]+(?:[_-][A-Za-z]+)+|INSTRUCTIONS)(?:\s[^<>]*)?>")
"""The start of a block that an agent wrote. Their names have two words, such as ``system-reminder`` or ``session_context``;
tags that people write, such as ``<div>`` or ``<b>``, have one."""
_HEADING: Final = re.compile(r"\s*# AGENTS\.md instructions[^\n]*\n")
"""The line that some agents write above the instructions of a project."""


def without_scaffolding(text: str) -> str:
    """The text without the blocks that an agent put at its beginning."""
    place = 0
    while True:
        heading = _HEADING.match(text, place)
        start = heading.end() if heading is not None else place
        found = _OPENING.match(text, start)
        end = text.find(f"</{found[1]}>", found.end()) if found is not None else -1
        if found is None or end < 0:
            return text[place:].lstrip()
        place = end + len(found[1]) + 3
