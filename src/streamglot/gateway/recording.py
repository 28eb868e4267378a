"""Records an exchange: its session, its turn, and its stream for clients that resume it.

This module imports the store, which is slow to load. Import it only where a store is configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ..config import Config
from ..config.checks import LOOPBACK
from ..engine.observer import ExchangeResult
from ..engine.stats import ExchangeRecord
from ..engine.turn_recorder import CLIENT_REQUEST, TurnRecorder
from ..errors import RequestError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request
from ..store import (
    DatabaseBuffer,
    Session,
    SessionHints,
    Started,
    Store,
    StoreSettings,
    ValkeyBuffer,
    default_url,
    is_probe,
    session_hints,
)
from ..tasks import WriteLine
from .auth.authenticator import anonymous
from .endpoints import Endpoint
from .resumable import StreamRecorder
from .retention import RetentionOptions

_TAKEN_OUT: Final = ("previous_response_id", "background", "conversation")
"""Fields of a client's body that are removed before the request goes to an upstream, and recorded with the turn."""


async def open_store(config: Config, environment: Mapping[str, str], log: WriteLine) -> Store:
    """Opens the store that the configuration names."""
    settings = config.store
    content = config.server.host in LOOPBACK if settings.content is None else settings.content
    store = await Store.open(StoreSettings(url=settings.url or default_url(environment), content=content, raw=settings.raw), log)
    if config.valkey.url:
        await store.buffer.close()
        store.buffer = ValkeyBuffer(config.valkey.url, log=log)
    return store


class TurnRecorders:
    """Begins the recording of exchanges."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        request: Request,
        body: JsonObject,
        record: ExchangeRecord,
        options: RetentionOptions,
        id: str,
        caller: str | None = None,
    ) -> ServedTurnRecorder:
        """Finds the session, puts its history in front of a request that only names it, and starts the turn.

        ``id`` is the response id that the client is given. An item of a batch has a ``caller`` and no headers.
        """
        store = self._store
        caller = (record.key or anonymous(headers)) if caller is None else caller
        session = await store.find_session(session_hints(caller, request, body, headers, endpoint.chat), request)
        record.session = session.id
        if options.conversation:
            if request.previous_response_id:
                raise RequestError("conversation and previous_response_id cannot be used together: send one of them")
            session.previous = await self._last_of(session)
        named = request.previous_response_id or (session.name if options.conversation else "")
        if request.previous_response_id and not session.previous:
            raise await self._not_found(request.previous_response_id, caller)
        if session.previous and named:
            past = await store.history(session)
            if not past:
                why = "there was no room for it in the store" if store.settings.content else "store.content is off"
                raise RequestError(f"the history of {named!r} is not stored ({why}); send the whole conversation")
            at = 1 if body.get("instructions") else 0
            request.messages[at:at] = past
            request.previous_response_id = None
        removed = {name: body[name] for name in _TAKEN_OUT if body.get(name)}
        if endpoint.retrievable and body.get("instructions"):
            # only the fact, not the text: instructions are the first message and do not apply to the next request
            removed["instructions"] = True
        started = Started(
            caller=caller,
            request_id=record.request_id,
            dialect=endpoint.dialect,
            model=record.model,
            request=request,
            probe=is_probe(request),
            response_id=id if endpoint.retrievable else "",
            retrievable=request.store is not False,
            client_options=removed,
        )
        answers = await store.answers(session)
        return ServedTurnRecorder(store, endpoint, session, answers, options, started, body, since(record.began))

    async def begin_call(self, request: Request, record: ExchangeRecord, headers: Mapping[str, str]) -> RecordedCall:
        """Starts the turn of a tool call that no model made."""
        store, caller = self._store, record.key or anonymous(headers)
        session = await store.find_session(SessionHints(caller=caller), request)
        record.session = session.id
        started = Started(
            caller=caller, request_id=record.request_id, dialect=record.dialect, model=record.model, request=request
        )
        return RecordedCall(store, session, started)

    async def _last_of(self, session: Session) -> str:
        turn, ended = await self._store.last_turn(session)
        if not ended:
            raise RequestError(
                f"the conversation {excerpt(session.name)} is being answered; wait for the end of the answer, or stop it",
                code="conversation_locked",
                status=409,
            )
        return turn

    async def _not_found(self, response_id: str, caller: str) -> RequestError:
        if await self._store.responses.find(response_id, caller) is not None:
            return RequestError(
                f"the response {excerpt(response_id)} is not complete: wait for its end, or cancel it",
                code="previous_response_not_complete",
            )
        return RequestError(
            f"there is no response {excerpt(response_id)} to continue: it never existed, was deleted, or was made with store: "
            "false; send the whole conversation",
            code="previous_response_not_found",
        )


def since(began: float) -> float:
    """The seconds since this time of the gateway's clock."""
    return max(0.0, time.monotonic() - began)


class RecordedCall(TurnRecorder):
    """Records a tool call that no model made."""

    def __init__(self, store: Store, session: Session, started: Started) -> None:
        turn = store.start(session, started, remember=False)
        super().__init__(turn, content=store.settings.content, raw=store.settings.raw)
        self.turn_id = turn.id


class ServedTurnRecorder(TurnRecorder):
    """Records a turn that is served over HTTP. Adds the headers that name the turn, and its stream for clients that resume it."""

    def __init__(
        self,
        store: Store,
        endpoint: Endpoint,
        session: Session,
        answers: list[Message],
        options: RetentionOptions,
        started: Started,
        body: Mapping[str, JsonValue],
        waited: float,
    ) -> None:
        turn = store.start(session, started)
        if store.settings.raw:
            turn.frame(CLIENT_REQUEST, 0.0, msgspec.json.encode(body))
        settings = store.settings
        super().__init__(turn, answers=answers, content=settings.content, raw=settings.raw, waited=waited)
        self.options = options
        self._store = store
        self._endpoint = endpoint
        self._session = session
        self.turn_id = turn.id
        self._stream: StreamRecorder | None = None

    @property
    def headers(self) -> dict[str, str]:
        turn = {"x-streamglot-turn": self.turn_id, "x-streamglot-session": self._session.id}
        return {**turn, "x-streamglot-stream": self.turn_id} if self._stream is not None else turn

    def open(self, stop: Callable[[], None], headers: Mapping[str, str]) -> StreamRecorder | None:
        """Makes the stream resumable from now on.

        If content is not stored, only a client that asked for it, or a buffer outside the database, makes the stream resumable.
        """
        buffer, id = self._store.buffer, self.turn_id
        if self._stream is None and (self.wants_response or self.options.keep or not isinstance(buffer, DatabaseBuffer)):
            self._stream = StreamRecorder(
                buffer, id, self._session.caller, stop, headers, numbered=self._endpoint.numbered, awaited=self.options.keep
            )
        return self._stream

    def finished(self, result: ExchangeResult) -> None:
        try:
            if self._stream is not None:
                self._stream.end()
        finally:
            super().finished(result)  # a turn that has begun always ends
