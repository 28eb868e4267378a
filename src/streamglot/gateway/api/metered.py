"""Meters a forwarded request (embeddings) like an exchange: a slot, a reservation, a recorded turn, a log line.

The content of the request and of the answer is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from ...engine.observer import ExchangeResult
from ...engine.record import ExchangeRecord
from ...engine.tokens import BYTES_PER_TOKEN
from ...errors import StreamglotError
from ...events import Usage
from ...json_types import JsonValue
from ...messages import Request, Response, TokenCounts
from ...upstream.prices import price
from ...upstream.routes import Candidate
from ..admission import Admission, context_of
from ..auth.authenticator import Caller, anonymous
from ..auth.budgets import Reservation
from ..http.call import ClientDisconnected
from ..observe.recording import Recording
from ..services import GatewayServices

if TYPE_CHECKING:
    from ...store import Turn as StoredTurn
    from ..observe.spans import AttemptSpan

LARGEST_COUNT: Final = 2**31 - 1
"""Tokens of one request. A larger count from an upstream is ignored."""


class _Counts(Struct):
    prompt_tokens: JsonValue = None
    input_tokens: JsonValue = None
    total_tokens: JsonValue = None


class _Answer(Struct):
    """The fields that are read of an answer."""

    usage: _Counts | None = None


class Metered:
    """An async context manager. Forward the request inside it, and set its ``answer``."""

    def __init__(
        self,
        services: GatewayServices,
        admission: Admission,
        recording: Recording,
        caller: Caller | None,
        headers: Mapping[str, str],
        body: Mapping[str, JsonValue],
        request_id: str,
        kind: str,
    ) -> None:
        self.answer: bytes | None = None
        self._services = services
        self._admission = admission
        self._recording = recording
        self._caller = caller
        self._headers = headers
        self._estimate = estimated_input(body.get("input"))
        model = body.get("model")
        self.record = ExchangeRecord(
            request_id, kind, services.clock(), services.pool.routes.named(model if isinstance(model, str) else "")
        )
        self.record.key = caller.name if caller is not None else ""
        self._candidate: Candidate | None = None
        self._reservation: Reservation | None = None
        self._stored: StoredTurn | None = None
        tracing = recording.tracing
        self._span = None if tracing is None else tracing.request("POST", f"/v1/{kind}", headers, kind)
        self._attempt: AttemptSpan | None = None
        self._context = context_of(self.record, headers if self._span is None else self._span.headers)
        self._turn = admission.slot(caller)

    def calls(self, candidate: Candidate) -> Mapping[str, str]:
        """Notes the upstream that is about to be called. Returns the trace context that the request carries."""
        self._candidate = candidate
        self.record.attempts += 1
        self.record.upstream, self.record.upstream_dialect = candidate.upstream.name, candidate.upstream.dialect
        tracing = self._recording.tracing
        if tracing is None or self._span is None:
            return self._context.trace
        self._attempt = tracing.attempt(candidate, Request(), self.record.dialect, self._span)
        return self._attempt.headers

    async def __aenter__(self) -> Metered:
        self._reservation = self._admission.reserve(self._caller, self.record.model, self._estimate, 1)
        try:
            await self._turn.__aenter__()
        except BaseException as error:
            self._settle(error)
            raise
        try:
            self._stored = await self._begin() if self._recording.store is not None else None
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._turn.__aexit__(kind, error, trace)
        self._settle(error)

    async def _begin(self) -> StoredTurn:
        from ...store import SessionHints, Started

        assert self._recording.store is not None
        record, request = self.record, Request(model=self.record.model, dialect=self.record.dialect)
        caller = record.key or anonymous(self._headers)
        session = await self._recording.store.find_session(SessionHints(caller=caller), request)
        started = Started(
            caller=caller, request_id=record.request_id, dialect=record.dialect, model=record.model, request=request, probe=True
        )
        return self._recording.store.start(session, started)

    def _settle(self, error: BaseException | None) -> None:
        record, now = self.record, self._services.clock()
        if isinstance(error, StreamglotError):
            record.failed(error.as_event())
        else:
            record.ending = "end" if error is None else "client_gone" if isinstance(error, ClientDisconnected) else "error"
        usage = self._used(record.ending)
        record.usage = Usage(usage.input_tokens, usage.output_tokens)
        written = self._reservation.settle(usage, now) if self._reservation is not None else None
        if self._stored is not None:
            from ...store import Finished

            model = self._candidate.model if self._candidate is not None else ""
            response = Response(usage=usage, error=error.as_event() if isinstance(error, StreamglotError) else None)
            self._stored.finish(
                Finished(
                    ending=record.ending,
                    response=response,
                    upstream=record.upstream,
                    upstream_dialect=record.upstream_dialect,
                    upstream_model=model,
                    cost=partial(price, usage, model, record.upstream),
                    timings={"seconds": now - record.began},
                    written=written,
                )
            )
        if self._attempt is not None:
            self._attempt.failed(error) if error is not None else self._attempt.used(record.usage)
        result = ExchangeResult(self._context, record, Request(), seconds=now - record.began)
        for observer in self._recording.observers_for(None, None, self._span):
            observer.finished(result)

    def _used(self, ending: str) -> TokenCounts:
        """The usage that the answer reports.

        Returns an estimate if the answer does not report it or the client did not wait for it, and zero for a refusal.
        """
        if ending == "end":
            return TokenCounts(_input_tokens(self.answer or b"", self._estimate), 0)
        return TokenCounts(self._estimate if ending == "client_gone" and self._candidate is not None else 0, 0)


def _input_tokens(answer: bytes, otherwise: int) -> int:
    try:
        usage = msgspec.json.decode(answer, type=_Answer).usage or _Counts()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        usage = _Counts()
    for count in (usage.prompt_tokens, usage.input_tokens, usage.total_tokens):
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST_COUNT:
            return count
    return otherwise


def estimated_input(given: object) -> int:
    """An estimate of the tokens of these inputs. A number counts as one token, a list of numbers as tokenized text."""
    return sum(_tokens(one) for one in (given if isinstance(given, list) else [given]))


def _tokens(one: object) -> int:
    if isinstance(one, str):
        return round(len(one.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1
    return len(one) if isinstance(one, list) else 1
