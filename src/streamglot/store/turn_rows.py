"""The two rows of each turn: one when it starts, one when it ends. Pure.

Their fields are the columns of the tables, in the same order. They are structs and not dicts, because they take a third of the
memory and are made faster.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..json_types import JsonObject
from ..messages import Request, Response, ResponseChoice, TokenCounts
from .turn import EndingRow, Finished, Turn, TurnRow, given_id, title_of

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
        prompt_hash=session.conversation.asked if session.conversation is not None and not started.probe else None,
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
