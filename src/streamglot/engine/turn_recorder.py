"""The turn recorder: writes one exchange to the store, for gateway, client and command line.

``TurnRecorder`` is an observer that writes the turn and carries the conversation's state for the upstreams. It never waits.

``BackgroundRecorder`` is for a program that is not a server, such as the command line, with the user's store: a separate thread
opens the store while the request runs, and writes the turn when the answer is complete. The user therefore never waits for the
store before seeing text. Errors are reported at the end and do not affect the answer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import msgspec
from msgspec import structs

from ..config import DISABLED, LoadedConfig
from ..dialects import dialect
from ..errors import ConfigError, StreamglotError
from ..events import Event, encode
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TokenCounts
from ..store.turns import Finished
from ..tasks import LoopThread
from ..tools.loop import STEP
from ..upstream import Upstream
from ..upstream.prices import price
from ..upstream.providers import maker_of
from ..upstream.secrets import SecretMask
from .conversation import SentRequest
from .kept_conversations import kept_echo, restore_stored
from .observer import ExchangeResult, Observer
from .services import MODEL_CALLS
from .stats import ExchangeRecord

if TYPE_CHECKING:
    from ..store import Session, Store, Turn

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
            from ..store.provider_state import restore_echoes

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


WRITES: Final = 1000
"""Pending writes that are held before finished ones are dropped from the list."""
T = TypeVar("T")


class RecordedConversation:
    """The session of a conversation, once the store is open, and the state that upstreams need back.

    ``answers`` carry a provider's own state.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.answers: list[Message] = []


class BackgroundRecorder:
    """Records turns.

    ``caller`` owns them, because several users may share a database. ``warn`` gets a message at the end if something was not
    stored.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        caller: str,
        dialect: str,
        directory: str = "",
        warn: Callable[[str], None],
        enabled: bool = True,
    ) -> None:
        self._settings = loaded.config.store
        self._enabled = enabled and self._settings.url != DISABLED
        self._caller = caller
        self._directory = directory
        self._dialect = dialect
        self._warn = warn
        self._conversation = RecordedConversation()
        self._thread: LoopThread | None = None
        self._opening: Future[Store] | None = None
        self._writes: list[Future[None]] = []
        self._wrote = False
        self._room = WRITES

    def recorder(self, request: Request, model: str, request_id: str = "") -> TurnRecorder:
        """The recorder for one request. If nothing is stored, it still carries the conversation's state for upstreams."""
        conversation = self._conversation

        turn = _DeferredTurn(self, conversation, request, model, request_id)
        if self._enabled:
            turn.starting = self._begin(self._start(turn))
        return TurnRecorder(
            turn,
            answers=conversation.answers,
            raw=self._enabled and self._settings.raw,
        )

    def new_conversation(self) -> None:
        self._conversation = RecordedConversation()

    def resume(self, session: Session, answers: list[Message]) -> None:
        """Attaches the next requests to this session."""
        conversation = self._conversation
        conversation.session, conversation.answers = session, answers

    def ask(self, question: Callable[[Store], Coroutine[object, object, T]]) -> T:
        """Runs a query on the store and waits for the result."""
        if self._settings.url == DISABLED:
            raise ConfigError(f'nothing is stored, because store.url is "{DISABLED}"')

        async def within() -> T:
            return await question(await self._store())

        return self._begin(within()).result()

    # --- on the store's thread

    def _begin(self, step: Coroutine[object, object, T]) -> Future[T]:
        if self._thread is None:
            self._thread = LoopThread("streamglot recorder")
            self._opening = self._thread.begin(self._open())
        return self._thread.begin(step)

    async def _open(self) -> Store:
        from ..store import Store, StoreSettings, default_url

        settings = self._settings
        url = settings.url or default_url(os.environ)
        return await Store.open(StoreSettings(url=url, content=settings.content is not False, raw=settings.raw))

    async def _store(self) -> Store:
        assert self._opening is not None
        return await asyncio.wrap_future(self._opening)

    async def _start(self, turn: _DeferredTurn) -> Turn:
        store = await self._store()
        from ..store import Session, Started
        from ..store.sessions import PREFIX
        from ..store.turns import mint_id

        conversation = turn.conversation
        if conversation.session is None:
            id = mint_id(PREFIX, turn.at)
            conversation.session = Session(id=id, caller=self._caller, directory=self._directory, started=turn.at)
        session = conversation.session
        started = Started(
            caller=session.caller,
            request_id=turn.request_id,
            dialect=self._dialect,
            model=turn.model,
            request=turn.request,
            at=turn.at,
        )
        return store.start(session, started)

    def write(self, turn: _DeferredTurn, finished: Finished) -> None:
        """Writes the whole turn in the background."""
        if turn.starting is not None:
            self._wrote = True
            self._writes.append(self._begin(turn.write(turn.starting, finished)))
            if len(self._writes) > self._room:  # a batch of millions must not hold a future for each turn
                self._writes = [write for write in self._writes if not write.done() or write.exception() is not None]
                self._room = max(WRITES, 2 * len(self._writes))

    def write_step(self, starting: Future[Turn], number: int, step: Mapping[str, JsonValue]) -> None:
        """Writes one step of a tool loop as soon as the store is open."""

        async def write() -> None:
            (await asyncio.wrap_future(starting)).step(number, step)

        self._writes.append(self._begin(write()))

    # --- life cycle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is None:
            return
        try:
            failure = self._thread.run(self._close())
        except KeyboardInterrupt:
            self._abandon()
            raise
        self._thread.stop()
        if failure and self._wrote:
            self._warn(failure)

    def _abandon(self) -> None:
        """Called when the user does not want to wait for the store.

        A subclass overrides this if its program would otherwise wait for the database's threads when it exits.
        """

    async def _close(self) -> str:
        """Writes everything that is pending and closes the store. Returns a description of what failed."""
        try:
            store = await self._store()
            try:
                await asyncio.gather(*(asyncio.wrap_future(write) for write in self._writes))
            finally:
                report = await store.close()
        except StreamglotError as error:
            return error.message
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return report.last_error if report.dropped or report.unfit else ""


class _DeferredTurn:
    """A turn whose store is still being opened. The whole turn is written when the answer is complete."""

    def __init__(
        self, owner: BackgroundRecorder, conversation: RecordedConversation, request: Request, model: str, request_id: str
    ) -> None:
        self.conversation = conversation
        self.request = request
        self.model = model
        self.request_id = request_id
        self.at = time.time()
        self.starting: Future[Turn] | None = None
        self._owner = owner
        self._frames: list[tuple[str, float, bytes]] = []

    def frame(self, direction: str, at: float, data: bytes) -> None:
        self._frames.append((direction, at, data))

    def step(self, number: int, step: Mapping[str, JsonValue]) -> None:
        if self.starting is not None:
            self._owner.write_step(self.starting, number, step)

    def finish(self, finished: Finished) -> None:
        finished.at = time.time()
        self._owner.write(self, finished)

    async def write(self, starting: Future[Turn], finished: Finished) -> None:
        turn = await asyncio.wrap_future(starting)
        for direction, at, data in self._frames:
            turn.frame(direction, at, data)
        if callable(finished.cost):
            finished.cost = finished.cost()
        turn.finish(finished)
