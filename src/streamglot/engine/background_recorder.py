"""Records the turns of a program that is not a server, such as the command line, in the user's store.

A separate thread opens the store while the request runs, and writes the turn when the answer is complete. The user
therefore never waits for the store before seeing text. Errors are reported at the end and do not affect the answer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ..config import DISABLED, LoadedConfig
from ..errors import ConfigError, StreamglotError
from ..json_types import JsonValue
from ..loop_thread import LoopThread
from ..messages import Message, Request

if TYPE_CHECKING:
    from ..store import Session, Store, Turn
    from ..store.turn import Finished
    from .recorder import TurnRecorder

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
        from .recorder import TurnRecorder

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
        from ..store.turn import mint_id

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
