"""Facts that the inspector shows about a stored turn: figures, requests, waits, verdicts, and commands to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...dialects import DIALECTS, dialect
from ...errors import RequestError, StreamglotError
from ...inspect.bars import bars_of_facts, bars_of_marks
from ...inspect.inspection import ASKED, CLIENT_REQUEST, DOWN, EVENTS, UP
from ...inspect.recording import RecordedPiece
from ...inspect.requests import curl, shortened, shown_body
from ...json_types import JsonObject
from ...upstream.secrets import HIDDEN
from ..endpoints import path_of

if TYPE_CHECKING:
    from ...messages import Request
    from ...store import TurnDetail

OWN_KEY: Final = "Bearer $STREAMGLOT_KEY"
UPSTREAM_KEY: Final = "$UPSTREAM_KEY"
"""Shell variables that replace keys in the commands."""
BEARER: Final = "authorization"
SHOWN_DIALECT: Final = next(iter(DIALECTS))
"""The dialect in which a request is shown if its own dialect cannot be built."""


class Recorded(msgspec.Struct):
    """The parts of a turn that a recording contains."""

    upstream: bool
    events: bool
    client: bool
    requests: bool

    @classmethod
    def of(cls, pieces: Sequence[RecordedPiece]) -> Recorded:
        there = {piece.direction for piece in pieces}
        up = any(direction.startswith(UP) for direction in there)
        return cls(up, EVENTS in there, DOWN in there, CLIENT_REQUEST in there or any(name.startswith(ASKED) for name in there))


def facts(turn: TurnDetail, pieces: Sequence[RecordedPiece], running: bool) -> JsonObject:
    """The first line of an inspection. For a running turn it is sent again at the end."""
    timings = turn.timings
    bars = bars_of_facts(timings)
    recorded = Recorded.of(pieces)
    if not recorded.events and not recorded.upstream and turn.response is None:
        bars = [*bars_of_marks(timings.get("blocks", ()), timings.get("offset", 0.0)), *bars]
    return {
        "id": turn.id,
        "session_id": turn.session_id,
        "title": turn.title,
        "model": turn.model,
        "upstream": turn.upstream,
        "upstream_model": turn.upstream_model,
        "dialects": turn.dialects,
        "stream": turn.stream,
        "running": running,
        "ending": turn.ending,
        "error": shortened(msgspec.to_builtins(turn.error)),
        "usage": turn.usage,
        "cost": turn.cost,
        "started": turn.started,
        "duration": turn.duration,
        "recorded": recorded,
        "timings": {name: timings[name] for name in ("seconds", "first_event", "longest_gap") if name in timings},
        "bars": bars,
        "failures": shortened(timings.get("failures", [])),
        "verdicts": shortened(turn.verdicts),
        "more": shortened({name: value for name, value in turn.more.items() if name != "instructions"}),
        "requests": requests(turn, pieces),
    }


def requests(turn: TurnDetail, pieces: Sequence[RecordedPiece]) -> JsonObject:
    """The request as the client sent it and as each upstream got it. Rebuilds those that were not recorded."""
    given = next((piece for piece in pieces if piece.direction == CLIENT_REQUEST), None)
    client = turn.dialects["client"]
    if given is not None:
        own: JsonObject | None = {"dialect": client, "body": shown_body(given.data), "recorded": True}
    else:
        own = _built(turn.request, client)
    sent = [_sent(piece) for piece in pieces if piece.direction.startswith(ASKED)]
    if not sent and (built := _built(turn.upstream_request, turn.dialects["upstream"])) is not None:
        sent = [{**built, "upstream": turn.upstream, "model": turn.upstream_model}]
    return {"client": own, "upstream": [one for one in sent if one is not None]}


def _sent(piece: RecordedPiece) -> JsonObject | None:
    try:
        fields = msgspec.json.decode(piece.data, type=dict[str, msgspec.Raw])
        body = bytes(fields.pop("body", msgspec.Raw(b"null")))
        known = {name: msgspec.json.decode(value) for name, value in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return {**shortened(known), "at": piece.at, "body": shown_body(body), "recorded": True}


def _built(request: Request | None, name: str) -> JsonObject | None:
    body = _body(request, name)
    return None if body is None else {"dialect": body[0], "body": shown_body(body[1]), "recorded": False}


def _body(request: Request | None, name: str) -> tuple[str, bytes] | None:
    """The dialect and the body of a stored request, in its own dialect or in ``SHOWN_DIALECT``."""
    if request is None or not request.messages:
        return None
    for known in (name, SHOWN_DIALECT):
        if known in DIALECTS:
            try:
                return known, msgspec.json.encode(dialect(known).build_request(request).body)
            except (StreamglotError, ValueError, TypeError):
                continue
    return None


# --- commands


def client_curl(turn: TurnDetail, pieces: Sequence[RecordedPiece], base: str, with_key: bool) -> str:
    """The command that repeats the client's request to the gateway at this address, with the user's own key if it asks for
    one."""
    given = next((piece.data for piece in pieces if piece.direction == CLIENT_REQUEST), None)
    found = (turn.dialects["client"], given) if given is not None else _body(turn.request, turn.dialects["client"])
    if found is None:
        raise _not_stored(turn)
    name, body = found
    headers = {"content-type": "application/json"}
    if with_key:
        headers[BEARER] = OWN_KEY
    return curl(f"{base}{path_of(name, turn.model)}", headers, body)


def upstream_curl(turn: TurnDetail, pieces: Sequence[RecordedPiece]) -> str:
    """The command that repeats the last request to the upstream, with the user's own key."""
    sent = [piece for piece in pieces if piece.direction.startswith(ASKED)]
    if not sent:
        raise RequestError(
            f"the request to the upstream of the turn {turn.id} was not recorded: set store.raw to record those of future turns",
            code="no_raw",
            status=404,
        )
    fields = msgspec.json.decode(sent[-1].data, type=dict[str, msgspec.Raw])
    headers = msgspec.json.decode(fields["headers"], type=dict[str, str])
    shown = {name: _placeholder(name) if value == HIDDEN else value for name, value in headers.items()}
    return curl(msgspec.json.decode(fields["url"], type=str), shown, bytes(fields["body"]))


def _placeholder(name: str) -> str:
    return f"Bearer {UPSTREAM_KEY}" if name.lower() == BEARER else UPSTREAM_KEY


def _not_stored(turn: TurnDetail) -> RequestError:
    return RequestError(
        f"the request of the turn {turn.id} was not stored: set store.content for future turns", code="no_content", status=404
    )
