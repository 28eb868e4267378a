"""The objects that queries of the store return, and the filter that they take."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from ..events import StreamError
from ..json_types import JsonObject
from ..messages import Request, Response, TokenCounts


class TurnSummary(Struct, kw_only=True):
    """The columns of a turn in a list."""

    id: str
    session_id: str
    caller: str
    request_id: str
    response_id: str
    model: str
    upstream: str
    upstream_model: str
    dialects: dict[str, str]
    stream: bool
    ending: str
    error: StreamError | None
    usage: TokenCounts | None
    cost: float | None
    started: float
    duration: float | None
    title: str
    probe: bool = False
    """An agent's request beside the conversation: for a title, a summary, or to try the key."""


class TurnDetail(TurnSummary, kw_only=True):
    """Everything that is stored of a turn except its raw frames. Without stored contents there is no request and no response.
    ``steps`` are those of a tool loop: model turns and calls."""

    request: Request | None
    client_options: JsonObject
    upstream_request: Request | None
    response: Response | None
    timings: JsonObject
    verdicts: list[JsonObject]
    more: JsonObject
    steps: list[JsonObject] = field(default_factory=list)

    @property
    def client_response(self) -> Response | None:
        """The response as the client received it, without the estimated usage."""
        if self.response is not None and self.more.get("estimated"):
            return msgspec.structs.replace(self.response, usage=TokenCounts())
        return self.response


class SessionSummary(Struct, kw_only=True):
    id: str
    caller: str
    name: str
    directory: str
    title: str
    turns: int
    started: float
    updated: float
    input_tokens: int
    output_tokens: int
    cost: float | None


class Filter(Struct, kw_only=True):
    """Which turns to list. ``search`` is a full-text query. ``before`` is the last turn of the previous page: its id, or its
    ``cursor_of``, which stays valid when the turn is deleted."""

    caller: str | None = None
    session_id: str = ""
    model: str = ""
    upstream: str = ""
    ending: str | None = None
    since: float = 0.0
    until: float = 0.0
    search: str = ""
    before: str = ""
    limit: int = 100


class RawFrame(Struct, array_like=True):
    """The bytes of one read or write, ``at`` seconds after the turn began."""

    at: float
    direction: str
    data: bytes


class RawFrames(Struct):
    """Frames of a turn, the number from which to read the next ones, and whether there may be more."""

    found: list[RawFrame]
    next: int
    more: bool
