"""The figures of an exchange, for one log line and the metrics. They include no content.

Tokens that no upstream reports are estimated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct, field

from ..dialects.common import upstream_errors as faults
from ..errors import (
    StreamglotError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamTruncated,
)
from ..events import (
    Event,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    TextEnd,
    TextStart,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from ..json_types import JsonObject
from ..messages import MediaPart, ReasoningPart, RefusalPart, Request, Response, TextPart, TokenCounts, ToolCallPart

MESSAGE_CHARS: Final = 500
"""Characters of an error's message in a log line or a timeline."""
ID_CHARS: Final = 128
"""Characters of the longest request id that a client may choose: it appears in headers and log lines."""
_NOT_IN_AN_ID: Final = re.compile(r"[^!-~]")
MAX_MARKS: Final = 2_000
"""Marks of each kind (blocks, waits, failed attempts) in one timeline: more than the longest tool loop has."""
_BLOCKS: Final = frozenset(
    (TextStart, TextEnd, ReasoningStart, ReasoningEnd, ToolCallStart, ToolCallEnd, ToolResult, StepEnd, StreamEnd, StreamError)
)
_COUNTED: Final = frozenset((Usage, *_BLOCKS))


def clean_id(given: str) -> str:
    """The client's request id, reduced to what a header may contain."""
    return _NOT_IN_AN_ID.sub("", given[: 2 * ID_CHARS])[:ID_CHARS]


class UpstreamWait(Struct, frozen=True):
    """A wait of ``seconds`` before ``attempt``, one of at most ``attempts``, at an upstream. ``status`` is that of the failure
    before, ``by_upstream`` whether the upstream asked for the wait."""

    upstream: str
    seconds: float
    attempt: int
    attempts: int
    status: int
    by_upstream: bool

    def sentence(self) -> str:
        """Who asked to wait, for how long, and which attempt follows."""
        then = f"attempt {self.attempt} of {self.attempts} follows"
        if self.by_upstream:
            return f"upstream {self.upstream!r} asks to wait {self.seconds:.3g} s (status {self.status}); {then}"
        return f"upstream {self.upstream!r} failed (status {self.status}); {then} in {self.seconds:.2g} s"


class ExchangeRecord(Struct):
    """Times are from the gateway's clock.

    ``error`` is the code that the client sees, which an upstream may have invented; ``error_kind`` is one of a limited set.
    ``ending`` is the actual one: end, length, …, truncated, client_gone, error. ``usage`` is what the upstream reported; if that
    is incomplete, ``estimated`` counts against a key. ``session`` and ``turn`` are the ids of the stored conversation and turn, if
    they are stored. ``limits`` are the headers in which the upstream told its rate limits. ``remember`` is set if an upstream that keeps
    the conversation was asked. ``blocks``, ``waits`` and ``failures`` are the exchange's timeline, in seconds since ``began``.
    ``wait`` is the pause before the next attempt, while it lasts; ``on_wait`` is called when it begins and ends.
    """

    request_id: str
    dialect: str
    began: float
    model: str = ""
    stream: bool = False
    key: str = ""
    session: str = ""
    turn: str = ""
    upstream: str = ""
    upstream_dialect: str = ""
    attempts: int = 0
    cached: bool = False
    cache: str = ""
    dropped: list[str] = field(default_factory=list)
    unopened: list[str] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    first_event: float = 0.0
    last_event: float = 0.0
    longest_gap: float = 0.0
    events: int = 0
    reads: int = 0
    ending: str = ""
    error: str = ""
    error_kind: str = ""
    message: str = ""
    status: int = 200
    usage: Usage | None = None
    estimated: TokenCounts | None = None
    blocks: list[tuple[float, str]] = field(default_factory=list)
    waits: list[JsonObject] = field(default_factory=list)
    failures: list[JsonObject] = field(default_factory=list)
    remember: Callable[[Request, Response], None] | None = None
    wait: UpstreamWait | None = None
    on_wait: Callable[[UpstreamWait | None], None] | None = None
    _earlier: Usage | None = None

    def seen(self, events: list[Event], now: float) -> None:
        """Counts the events of one read."""
        if self.last_event:
            gap = now - self.last_event
            if gap > self.longest_gap:
                self.longest_gap = gap
        self.last_event = now
        self.reads += 1
        self.events += len(events)
        if not _COUNTED.isdisjoint(map(type, events)):
            self._count(events, now)
        if events:
            last = events[-1]
            if isinstance(last, StreamEnd):
                self.ending = last.reason
            elif isinstance(last, StreamError):
                self.failed(last)

    def _count(self, events: list[Event], now: float) -> None:
        """Counts usage, which is a running total within a model turn and is summed over turns.

        Marks starts and ends of blocks.
        """
        for event in events:
            kind = type(event)
            if kind is Usage:
                assert isinstance(event, Usage)
                self.usage = event if self._earlier is None else self._earlier.plus(event)
                continue
            if kind is StepEnd:
                self._earlier = self.usage
            if kind in _BLOCKS and len(self.blocks) < MAX_MARKS:
                self.blocks.append((now - self.began, kind.__name__))

    def set_wait(self, wait: UpstreamWait | None) -> None:
        self.wait = wait
        if self.on_wait is not None:
            self.on_wait(wait)

    def waited(self, subject: str, label: str, since: float, now: float) -> None:
        """Records a wait for a judge, a tool or a person."""
        if len(self.waits) < MAX_MARKS:
            at, seconds = round(since - self.began, 6), round(now - since, 6)
            self.waits.append({"kind": subject, "label": label, "at": at, "seconds": seconds})

    def attempt_failed(self, error: StreamglotError, model: str, since: float, now: float) -> None:
        """Records an attempt at an upstream that failed before it yielded anything. Another attempt may follow."""
        if len(self.failures) < MAX_MARKS:
            self.failures.append(
                {
                    "upstream": self.upstream,
                    "model": model,
                    "at": round(since - self.began, 6),
                    "seconds": round(now - since, 6),
                    "code": error.code,
                    "status": error.status,
                    "message": error.message[:MESSAGE_CHARS],
                }
            )

    def timeline(self) -> JsonObject:
        """The beginning and end of blocks, the waits and the failed attempts, in seconds since ``began``."""
        blocks = [(round(at, 6), name) for at, name in self.blocks]
        facts: JsonObject = {"blocks": blocks, "waits": self.waits, "failures": self.failures}
        return {name: found for name, found in facts.items() if found}

    @property
    def mean_gap(self) -> float:
        """The mean time between two reads, in seconds."""
        return (self.last_event - self.first_event) / (self.reads - 1) if self.reads > 1 else 0.0

    def failed(self, error: StreamError) -> None:
        broken = "truncated" if error.code in ("upstream_truncated", "upstream_empty") else "error"
        self.ending = "policy" if error.origin == "policy" else broken
        self.error, self.message, self.status = error.code, error.message, error.status
        self.error_kind = error_kind(error)

    def line(self, now: float, time: float) -> JsonObject:
        """The log line."""
        usage = self.usage
        line = {
            "time": round(time, 3),
            "request_id": self.request_id,
            "dialect": self.dialect,
            "model": self.model,
            "stream": self.stream,
            "upstream": self.upstream,
            "upstream_dialect": self.upstream_dialect,
            "attempts": self.attempts,
            "seconds": round(now - self.began, 4),
            "first_event_seconds": round(self.first_event - self.began, 4) if self.first_event else None,
            "longest_gap_seconds": round(self.longest_gap, 4),
            "events": self.events,
            "ending": self.ending or "error",
            "input_tokens": getattr(usage, "input_tokens", None),
            "output_tokens": getattr(usage, "output_tokens", None),
        }
        if self.key:
            line["key"] = self.key
        if self.cached:
            line["cached"] = True
        if self.dropped:
            line["dropped"] = self.dropped
        if self.error:
            line["error"], line["status"], line["message"] = self.error, self.status, self.message[:MESSAGE_CHARS]
        return line


_OWN_CODES: Final = frozenset(
    (
        *(error.code for error in (UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamTimeout, UpstreamTruncated)),
        *("upstream_empty", "upstream_unreachable", "circuit_open", "tool_call_parse_error", "not_json"),
        *faults.KIND_OF.values(),
    )
)
"""The gateway's own codes for failures of upstreams."""


def error_kind(error: StreamError) -> str:
    """The error as one of a limited set of words: the gateway's own code, a code that providers are known to use, or the meaning
    of the status.

    Upstreams can invent any number of codes, and each would become another time series in the metrics.
    """
    if error.origin != "upstream" or error.code in _OWN_CODES:
        return error.code
    known = error.code.lower()
    return known if known in faults.STATUS_OF else faults.KIND_OF.get(error.status, UpstreamError.code)


BYTES_PER_TOKEN: Final = 3.6
"""English prose has about 4.2 bytes per token, code and JSON about 3. This value estimates prose too high rather than too low."""
TOKENS_PER_MESSAGE: Final = 4
"""Tokens that the chat template adds to each message, for its role and its delimiters."""
TOKENS_PER_IMAGE: Final = 1200
"""Tokens of an image of about one megapixel: a middle value of what vendors count."""


def estimate(request: Request) -> int:
    size, tokens = 0, 0
    for message in request.messages:
        tokens += TOKENS_PER_MESSAGE
        for part in message.parts:
            if isinstance(part, MediaPart):
                tokens += TOKENS_PER_IMAGE
            elif isinstance(part, TextPart):
                size += _bytes(part.text)
            else:
                size += len(msgspec.json.encode(part))
    size += sum(len(msgspec.json.encode(tool)) for tool in request.tools)
    return tokens + round(size / BYTES_PER_TOKEN)


def estimated_usage(
    request: Request, response: Response | None, events: int, reported: Usage | TokenCounts | None, *, whole: bool
) -> TokenCounts | None:
    """The usage of an answer whose upstream did not report it, or not completely; None if nothing is missing.

    ``reported`` is the upstream's count; the rest is estimated. ``whole`` says that the answer came to its end. An answer that
    was not collected counts as one token per event.
    """
    counts = (
        TokenCounts() if reported is None else TokenCounts(*(getattr(reported, name) for name in TokenCounts.__struct_fields__))
    )
    known = (counts.input_tokens, counts.output_tokens)
    if counts.input_tokens is None or not (whole or counts.input_tokens):
        counts.input_tokens = estimate(request)
    if counts.output_tokens is None or not whole:
        output = events if response is None else _answer_tokens(response)
        counts.output_tokens = max(counts.output_tokens or 0, output)
    return None if known == (counts.input_tokens, counts.output_tokens) else counts


def _answer_tokens(response: Response) -> int:
    size = 0
    for choice in response.choices:
        for part in choice.parts:
            if isinstance(part, (TextPart, ReasoningPart, RefusalPart)):
                size += _bytes(part.text)
            elif isinstance(part, ToolCallPart):
                size += _bytes(part.name) + _bytes(part.arguments)
    return round(size / BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
