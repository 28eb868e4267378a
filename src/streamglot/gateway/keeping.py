"""What is kept of an exchange: its session, its turn, and its stream for whoever wants to go on with it.

It brings the store with it, which takes a while to load: who keeps nothing does not import this."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from ..errors import RequestError, excerpt
from ..events import Event, Extra, StreamError
from ..messages import Message, Request, Response, TokenCounts
from ..store import (
    DatabaseBuffer,
    Finished,
    Session,
    Started,
    Store,
    StoreSettings,
    ValkeyBuffer,
    default_url,
    is_probe,
    restore_echoes,
    wanted,
)
from ..upstream import Upstream
from ..upstream.prices import price
from .authentication import LOOPBACK
from .call import Call
from .config import Config
from .faces import Face
from .kept_stream import KeptStream
from .keys import anonymous
from .record import Record
from .wish import Wish

_TAKEN_OUT: Final = ("previous_response_id", "background", "conversation")
"""What a client said that the request for an upstream no longer shows."""


async def open_store(config: Config, environment: Mapping[str, str], say: Callable[[Mapping[str, Any]], None]) -> Store:
    """The store that the configuration wants."""
    kept = config.store
    content = config.server.host in LOOPBACK if kept.content is None else kept.content
    store = await Store.open(StoreSettings(url=kept.url or default_url(environment), content=content, raw=kept.raw), say)
    if config.valkey.url:
        await store.buffer.close()
        store.buffer = ValkeyBuffer(config.valkey.url, say=say)
    return store


class Keeper:
    """Who begins to keep an exchange."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(
        self, face: Face, call: Call, request: Request, body: dict[str, Any], record: Record, wish: Wish, id: str
    ) -> Keeping:
        """Finds the session, puts what was said before in front of a request that only names it, and starts the turn. ``id``
        is the one that the client is given."""
        store = self._store
        caller = record.key or anonymous(call.headers)
        session = await store.find_session(wanted(caller, request, body, call.headers, face.chat), request)
        if wish.conversation:
            if request.previous_response_id:
                raise RequestError("conversation and previous_response_id exclude each other: send one of them")
            session.previous = await self._last_of(session)
        named = request.previous_response_id or (session.name if wish.conversation else "")
        if request.previous_response_id and not session.previous:
            raise await self._not_found(request.previous_response_id, caller)
        if session.previous and named:
            past = await store.history(session)
            if not past:
                why = "there was no room for it in the store" if store.settings.content else "store.content is off"
                raise RequestError(f"what was said before {named!r} is not kept ({why}); send the whole conversation")
            at = 1 if body.get("instructions") else 0
            request.messages[at:at] = past
            request.previous_response_id = None
        said = {name: body[name] for name in _TAKEN_OUT if body.get(name)}
        if face.asked_again and body.get("instructions"):
            said["instructions"] = True  # not its words: they are the first message, and do not hold for the next request
        started = Started(
            caller=caller,
            request_id=record.request_id,
            dialect=face.dialect,
            model=record.model,
            request=request,
            probe=is_probe(request),
            response_id=id if face.asked_again else "",
            retrievable=request.store is not False,
            wish=said,
        )
        return Keeping(store, face, session, await store.answers(session), wish, started)

    async def _last_of(self, session: Session) -> str:
        turn, ended = await self._store.last_turn(session)
        if not ended:
            raise RequestError(
                f"the conversation {excerpt(session.name)} has an answer under way; wait for its end, or stop it",
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
            f"there is no response {excerpt(response_id)} to go on from: it never was, it was deleted, or it was made with store: "
            "false; send the whole conversation",
            code="previous_response_not_found",
        )


class Keeping:
    """One exchange as the store sees it. None of this waits. ``heard`` keeps the bytes of upstreams."""

    def __init__(self, store: Store, face: Face, session: Session, answers: list[Message], wish: Wish, started: Started) -> None:
        self.wish = wish
        self.content = store.settings.content
        self._store = store
        self._face = face
        self._session = session
        self._answers = answers
        self._turn = store.start(session, started)
        self.heard = self._keep_bytes if store.settings.raw else None
        self._asked: Request | None = None
        self._attempts = 0
        self._more: dict[str, Any] = {}
        self._stream: KeptStream | None = None

    @property
    def headers(self) -> dict[str, str]:
        turn = {"x-streamglot-turn": self._turn.id, "x-streamglot-session": self._session.id}
        return {**turn, "x-streamglot-stream": self._turn.id} if self._stream is not None else turn

    # --- upstreams

    def asked(self, request: Request, upstream: Upstream) -> Request:
        """The request for this upstream, with the state of its own that the client dropped."""
        self._attempts += 1
        self._asked = restore_echoes(request, self._answers, provider=upstream.name)
        return self._asked

    def state(self, upstream: Upstream) -> dict[str, Any]:
        return self._session.told_by(upstream.name)

    def learn(self, upstream: Upstream, events: list[Event]) -> None:
        """State of the conversation, of an upstream that keeps it itself."""
        for event in events:
            if isinstance(event, Extra) and event.dialect == upstream.dialect:
                self._turn.learn(upstream.name, event)

    def _keep_bytes(self, chunk: bytes) -> None:
        """Those of each attempt apart: only the last one's are the answer."""
        self._turn.frame("up" if self._attempts < 2 else f"up{self._attempts}", time.time() - self._turn.started.at, chunk)

    # --- the stream

    def open(self, stop: Callable[[], None], headers: Mapping[str, str]) -> KeptStream | None:
        """From now on the stream can be gone on with. Without contents it is kept only for who asked for it, or elsewhere."""
        buffer, id = self._store.buffer, self._turn.id
        if self._stream is None and (self.content or self.wish.keep or not isinstance(buffer, DatabaseBuffer)):
            self._stream = KeptStream(
                buffer, id, self._session.caller, stop, headers, numbered=self._face.numbered, awaited=self.wish.keep
            )
        return self._stream

    def end_stream(self) -> None:
        """No more of the stream will come. To be called before ``finish``."""
        if self._stream is not None and self._turn.finished is None:
            self._stream.end()

    def finish(
        self,
        record: Record,
        response: Response | None,
        error: StreamError | None,
        model: str,
        now: float,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Records how it truly ended, once. ``response`` is what came, where contents are kept; ``written`` is called when the
        usage is in the database."""
        if self._turn.finished is not None:
            return
        if response is None:
            usage = record.usage
            response = Response() if usage is None else Response(usage=TokenCounts(usage.input_tokens, usage.output_tokens))
        response.error = response.error or error
        if record.estimated is not None:
            response = replace(response, usage=record.estimated)  # a copy: the cache has the other one
            self._more["estimated"] = True
        if record.dropped:
            self._more["dropped"] = record.dropped
        if record.cached:
            self._more["cached"] = True
        self._turn.finish(
            Finished(
                ending=record.ending or "error",
                response=response,
                upstream=record.upstream,
                upstream_dialect=record.upstream_dialect,
                upstream_model=model,
                upstream_request=self._asked,
                cost=0.0 if record.cached else partial(price, response.usage, model, record.upstream),
                timings={"seconds": now - record.began, "longest_gap": record.longest_gap},
                first_event=record.first_event - record.began if record.first_event else 0.0,
                more=self._more,
                written=written,
            )
        )
