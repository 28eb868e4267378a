"""One turn: what is known when it starts, and what is known when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from ..events import Extra
from ..messages import Message, Part, Request, Response, TextPart
from .conversation import Conversation
from .scaffolding import without_scaffolding
from .shorten import encoded_size

TITLE_CHARS: Final = 120
TITLE_ASKS: Final = 3
"""User messages of a request for a title: the question, with what an agent writes before and behind it."""
INSTRUCTION_CHARS: Final = 4000
"""Characters of a system prompt that are looked through for what it asks."""
BARE_BYTES: Final = 1024
"""About what a turn, or its ending, takes without contents."""
TOLD: Final = "streamglot.turn"
"""Beside the state of a provider: the turn in which it told it."""
BROKEN: Final = ("truncated", "client_gone", "interrupted", "policy", "error")
ENDINGS: Final = (
    *("end", "stop_sequence", "length", "tool_calls", "content_filter", "refusal", "pause", "cancelled", "other"),
    *BROKEN,
)
"""The true ones: first those of a stream that came to its end, then those of one that did not."""


class Session(Struct, kw_only=True):
    """``new`` where nothing was found. ``previous`` is the turn that the request continues, where it is known;
    ``state`` is what its providers told, by provider."""

    id: str
    caller: str = ""
    name: str = ""
    directory: str = ""
    new: bool = True
    previous: str = ""
    started: float = 0.0
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    conversation: Conversation | None = None

    def told_by(self, provider: str) -> dict[str, Any]:
        """What this provider told in the turn that the request continues. Of a branch, or of what another one answered since, it
        knows nothing: it has to be told everything."""
        state = dict(self.state.get(provider, {}))
        return state if state.pop(TOLD, "") == self.previous != "" else {}


class Started(Struct, kw_only=True):
    """``caller`` is the key's name, or whatever tells two callers apart. The request is handed over: it must not be changed
    after this. ``probe``: a request that a client sends on its own account; it gives a session no title and no state.
    ``response_id`` is the id that the client is given, where it is known before the end; ``retrievable``: whether it may ask
    for the answer again by it, or go on from it. ``wish`` is what the client said of that and the request does not show:
    what it went on from, whether in the background."""

    caller: str = ""
    request_id: str = ""
    dialect: str = ""
    model: str = ""
    request: Request
    probe: bool = False
    response_id: str = ""
    retrievable: bool = True
    wish: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0


class Finished(Struct, kw_only=True):
    """``response`` is what came, whole or in part. ``upstream_request`` is the last request that was built for an upstream.
    ``response_id`` is the id that the client was given, where neither the start said it nor the response has it. ``cost`` may be
    a question: who knows the answer takes a while to load, so it is asked beside the event loop. ``written`` is called once the
    ending is in the database, and never if it does not get there."""

    ending: str
    response: Response | None = None
    response_id: str = ""
    upstream: str = ""
    upstream_dialect: str = ""
    upstream_model: str = ""
    upstream_request: Request | None = None
    cost: float | Callable[[], float | None] | None = None
    timings: dict[str, float] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    first_event: float = 0.0
    at: float = 0.0
    written: Callable[[], None] | None = None


class Taker(Protocol):
    """What a turn needs of the store."""

    def take_frame(self, turn: Turn, direction: str, at: float, data: bytes) -> None: ...
    def take_state(self, turn: Turn, provider: str, state: dict[str, Any]) -> None: ...
    def take_end(self, turn: Turn, finished: Finished) -> None: ...


class Turn:
    """A turn that is under way. Nothing here waits, and nothing here fails: what cannot be kept is counted. ``written``, the
    generation of the database that has it, and ``node``, where its history ends, are set by the writer. ``kept``: is there room
    for it at all? If so, there is room for its ending too. ``weight``: of its request, in bytes."""

    def __init__(self, store: Taker, id: str, session: Session, started: Started, raw: bool) -> None:
        self.id = id
        self.session = session
        self.started = started
        self.written = 0
        self.kept = True
        self.weight = 0
        self.node: bytes | None = None
        self.frames = 0
        self.finished: Finished | None = None
        self._store = store
        self._raw = raw

    def frame(self, direction: str, at: float, data: bytes) -> None:
        """Raw bytes of one read or write, if the store keeps them. ``at`` is seconds since the turn began."""
        if self._raw and self.finished is None:
            self._store.take_frame(self, direction, at, data)
            self.frames += 1

    def learn(self, provider: str, extra: Extra) -> None:
        """State of the conversation that the provider told: plain values of its own words, for its next request."""
        state = {name: value for name, value in extra.data.items() if isinstance(value, (str, int, float, bool))}
        if state and not self.started.probe:
            self._store.take_state(self, provider, {**state, TOLD: self.id})

    def forget_request(self) -> None:
        """It has ended and its contents are not kept: the request must not fill the memory until the ending is written."""
        request = self.started.request
        bare = Request(model=request.model, stream=request.stream, dialect=request.dialect)
        self.started = replace(self.started, request=bare)

    def finish(self, finished: Finished) -> None:
        """Once; a second ending is not the true one."""
        if self.finished is None:
            self.finished = finished
            self._store.take_end(self, finished)


def given_id(started: Started, finished: Finished) -> str:
    """The id by which the client knows the answer."""
    return finished.response_id or started.response_id or (finished.response.id if finished.response is not None else "")


def mint_id(prefix: str, now: float) -> str:
    """An id that sorts by time."""
    return f"{prefix}{int(now * 1_000_000):014x}{os.urandom(9).hex()}"


def minted_at(id: str) -> float:
    """When an id was made, as it says itself; 0 if it does not."""
    try:
        return int(id.rpartition("_")[2][:14], 16) / 1_000_000
    except ValueError:
        return 0.0


def is_probe(request: Request) -> bool:
    """A request that an agent's client sends beside the conversation: one token to see whether the key works, a title for the
    session, or a summary of it. Only such requests have no tools."""
    if request.max_tokens == 1:
        return True
    if request.tools:
        return False
    told = " ".join(message.text for message in request.messages if message.role in ("system", "developer"))
    told = told[:INSTRUCTION_CHARS].lower()
    if not any(word in told for word in ("conversation", "session", "topic", "chat")):
        return False
    asks = [message for message in request.messages if message.role == "user"]
    begins = len(asks) <= TITLE_ASKS and not any(message.role == "assistant" for message in request.messages)
    return ("title" in told and begins) or "summariz" in told or "summary of" in told


def title_of(request: Request) -> str:
    """The first words of what is asked now, without what an agent wrote around them."""
    asked = (without_scaffolding(message.text) for message in reversed(request.messages) if message.role == "user")
    said = next((text for text in asked if text), "")
    return " ".join(said[: 4 * TITLE_CHARS].split())[:TITLE_CHARS]


def weight(request: Request) -> int:
    """About how many bytes it takes to keep this."""
    size = BARE_BYTES + spoken_weight(request)
    for beside in (request.tools, request.extra, request.metadata):
        if beside:
            size += encoded_size(beside)
    return size


def spoken_weight(request: Request) -> int:
    """About how many bytes its messages have."""
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
    if type(part) is TextPart and part.echo is None:  # as nearly all are
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
