"""The turn recorder: writes one exchange to the store, for gateway, client and command line.

It is an observer that writes the turn and carries the conversation's state for the upstreams. It never waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import structs

from ..dialects import dialect
from ..events import Event, encode
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TokenCounts
from ..store.turn import Finished
from ..tools.steps import STEP
from ..upstream import Upstream
from ..upstream.prices import price
from ..upstream.providers import maker_of
from ..upstream.secrets import SecretMask
from .conversation import SentRequest
from .kept import kept_echo, restore_stored
from .observer import ExchangeResult, Observer
from .record import ExchangeRecord
from .services import MODEL_CALLS

CLIENT_REQUEST: Final = "request"
ASKED: Final = "ask"
EVENTS: Final = "events"
WRITTEN: Final = "down"
"""Directions of raw frames beside "up" (an upstream's bytes): the client's request body, the request as an upstream got it, the
events (one JSON object per line), and the bytes that the client was sent."""


class StoredTurn(Protocol):
    """A turn that is being written: in the store, or in memory while the store is being opened."""

    def frame(self, direction: str, at: float, data: bytes) -> None: ...
    def step(self, number: int, step: Mapping[str, JsonValue]) -> None: ...
    def finish(self, finished: Finished) -> None: ...


def _cost(usage: TokenCounts, model: str, record: ExchangeRecord, calls: list[JsonObject]) -> float | None:
    """The price of the answer and of its stages' model calls; None if the answer's price is not known."""
    own = 0.0 if record.cached else price(usage, model, record.upstream)
    return None if own is None else own + sum(call["cost"] or 0.0 for call in calls)


def _without(response: Response, secrets: Sequence[str]) -> Response:
    """The response without these secrets, in all its texts and names. The stream masks a secret within one delta. A secret that
    was split over several deltas is whole here, so it is masked now. The search is that of the JSON which is stored, so a
    response without a secret costs one encoding."""
    mask = SecretMask(secrets)
    try:
        data = msgspec.json.encode(response)
        masked = mask.feed(data) + mask.close()
        return response if masked == data else msgspec.json.decode(masked, type=Response)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # a response that cannot be searched is not stored
        return Response(usage=structs.replace(response.usage, raw=None))


class TurnRecorder(Observer):
    """Records one turn.

    ``wrote`` gets the bytes that the client is sent, if they are recorded. ``answers`` are earlier answers of the conversation
    that carry a provider's own state. ``content`` and ``raw`` say whether the answer and the bytes are stored. ``waited`` is the age of the request in seconds:
    times of bytes count from its arrival.
    """

    wants_usage = True

    def __init__(
        self,
        turn: StoredTurn,
        *,
        answers: Sequence[Message] = (),
        content: bool = True,
        raw: bool = False,
        waited: float = 0.0,
    ) -> None:
        self.wants_response = content
        self.received = self._store_bytes if raw else None
        self.sent = self._store_request if raw else None
        self.wrote = self._store_written if raw else None
        self._raw = raw
        self._turn = turn
        self._answers = answers
        self._began = time.time() - waited
        self._attempts = 0
        self._upstream: Upstream | None = None
        self._upstream_request: Request | None = None

    # --- the conversation's state

    def prepare(self, request: Request, upstream: Upstream) -> Request:
        self._attempts += 1
        self._upstream = upstream
        if self._answers:
            from ..store.echoes import restore_echoes

            keeps = dialect(upstream.dialect).keeps_conversation
            restore = restore_stored if keeps else restore_echoes
            request = restore(request, self._answers, provider=maker_of(upstream))
        self._upstream_request = request
        return request

    def _store_bytes(self, chunk: bytes) -> None:
        """Stores the bytes of each attempt separately, because only the last attempt's bytes are the answer."""
        direction = "up" if self._attempts < 2 else f"up{self._attempts}"
        self._turn.frame(direction, time.time() - self._began, chunk)

    def _store_request(self, sent: SentRequest) -> None:
        number = "" if self._attempts < 2 else str(self._attempts)
        self._turn.frame(f"{ASKED}{number}", time.time() - self._began, msgspec.json.encode(sent))

    def _store_written(self, data: bytes) -> None:
        self._turn.frame(WRITTEN, time.time() - self._began, data)

    # --- the observer

    def events(self, events: list[Event]) -> None:
        if self._raw and events:
            self._turn.frame(EVENTS, time.time() - self._began, b"\n".join(map(encode, events)))

    def annotated(self, subject: str, fact: JsonObject) -> None:
        """Writes each step of a tool loop at once, so that it is stored even if the process dies."""
        if subject == STEP:
            upstream = {"upstream": self._upstream.name} if fact["kind"] == "model" and self._upstream is not None else {}
            self._turn.step(fact["number"], {**fact, **upstream})

    def _timeline(self, result: ExchangeResult) -> JsonObject:
        """The timeline. ``offset`` is the number of seconds from a time of the exchange to the same time of the raw bytes, which
        count from the start of the turn."""
        offset = time.time() - self._began - result.seconds
        timeline = {**result.record.timeline(), "offset": round(offset, 6)}
        if not self.wants_response and "failures" in timeline:  # an upstream's error may repeat content of the request
            timeline["failures"] = [{**failure, "code": "", "message": ""} for failure in timeline["failures"]]
        return timeline

    def finished(self, result: ExchangeResult) -> None:
        record, response = result.record, result.response
        if response is None:
            usage = record.usage
            response = Response() if usage is None else Response(usage=TokenCounts(usage.input_tokens, usage.output_tokens))
        elif self._upstream is not None and (secrets := self._upstream.live_secrets()):
            response = _without(response, secrets)
        more: JsonObject = {}
        if result.error is not None and response.error is None:
            response = structs.replace(response, error=result.error)
        if record.estimated is not None:
            response = structs.replace(response, usage=record.estimated)
            more["estimated"] = True
        if record.dropped:
            more["dropped"] = record.dropped
        if record.cached:
            more["cached"] = True
        calls = result.context.annotations.get(MODEL_CALLS, [])
        if calls:
            more[MODEL_CALLS] = calls
        self._turn.finish(
            Finished(
                ending=record.ending or "error",
                response=response,
                upstream=record.upstream,
                upstream_dialect=record.upstream_dialect,
                upstream_model=result.upstream_model,
                upstream_request=self._upstream_request,
                echo=kept_echo(result.request, response),
                cost=partial(_cost, response.usage, result.upstream_model, record, calls),
                timings={"seconds": result.seconds, "longest_gap": record.longest_gap, **self._timeline(result)},
                first_event=record.first_event - record.began if record.first_event else 0.0,
                verdicts=result.context.annotations.get("policies", []),
                more=more,
                written=result.stored,
            )
        )
        self._upstream_request = None  # the recorder may outlive the request until the next garbage collection
