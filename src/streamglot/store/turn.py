"""One turn: the data that is known when it starts, and the data that is known when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from ..events import Echo
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Part, Request, Response, TextPart
from .contents import Hashes
from .conversation import Conversation
from .scaffolding import without_scaffolding
from .shorten import encoded_size

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
    asked = (without_scaffolding(message.text) for message in reversed(request.messages) if message.role == "user")
    first = next((text for text in asked if text), "")
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
