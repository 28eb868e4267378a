"""Turns of the command line, kept in the user's store.

The store is loaded and opened on a thread of its own while the answer is on its way, and written to when the answer is there:
who waits for words never waits for it. What goes wrong with it is one line on standard error, and the answer is given anyway.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ..callers import COMMAND_LINE
from ..client import Stream
from ..client.worker import Worker
from ..errors import ConfigError, StreamglotError
from ..gateway.config import NOTHING, Loaded
from ..messages import Message, Request, Response
from ..upstream import Upstream
from ..upstream.prices import price
from .terminal import complain, well_formed

if TYPE_CHECKING:
    from ..store import Session, Store, Turn

DIALECT: Final = "cli"
HEAD_START: Final = 0.2
"""Loading the store takes half a second of a processor. The request is on its way by then, or its answer is there."""
T = TypeVar("T")


def this_user() -> str:
    """Whose turns these are: several people may keep theirs in one database."""
    try:
        return f"{COMMAND_LINE}{getpass.getuser()}"
    except (OSError, KeyError):  # nobody of this number is known here
        return f"{COMMAND_LINE}{os.getuid()}"


def this_directory() -> str:
    """Where the command runs; empty if that directory was removed."""
    try:
        return well_formed(os.getcwd())
    except OSError:
        return ""


def here() -> str:
    """The directory whose conversations ``--here`` means."""
    directory = this_directory()
    if not directory:
        raise ConfigError("--here needs a working directory, and this one was removed")
    return directory


class Talk:
    """One conversation: its session, once the store is there, and what upstreams want back of it. ``answers`` are those that
    carry state of theirs, ``state`` is what they told of the conversation, by upstream."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.answers: list[Message] = []
        self.state: dict[str, dict[str, Any]] = {}


class Notebook:
    def __init__(self, loaded: Loaded, *, keeps: bool = True) -> None:
        self._kept = loaded.config.store
        self._keeps = keeps and self._kept.url != NOTHING
        self._talk = Talk()
        self._worker: Worker | None = None
        self._opening: Future[Store] | None = None
        self._turns: list[Future[None]] = []
        self._hurry = threading.Event()

    def entry(self, stream: Stream) -> Entry:
        """What is written down of this answer."""
        entry = Entry(self, self._talk, stream, raw=self._keeps and self._kept.raw)
        if self._keeps:
            entry.turn = self._begin(self._start(entry))
        return entry

    def new_conversation(self) -> None:
        self._talk = Talk()

    def go_on(self, session: Session, upstream: str, answers: list[Message]) -> None:
        """What is asked next belongs to this session, in which ``upstream`` had the last word."""
        self._talk.session, self._talk.answers = session, answers
        self._talk.state = {upstream: session.told_by(upstream)}

    def ask(self, question: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Something that has to be known before anything else is done."""
        if self._kept.url == NOTHING:
            raise ConfigError(f'nothing is kept, because store.url is "{NOTHING}"')

        async def within() -> T:
            return await question(await self._store())

        self._hurry.set()
        return self._begin(within()).result()

    # --- beside the answer

    def _begin(self, step: Coroutine[Any, Any, T]) -> Future[T]:
        if self._worker is None:
            self._worker = Worker("streamglot notebook")
            self._opening = self._worker.begin(self._open())
        return self._worker.begin(step)

    async def _open(self) -> Store:
        self._hurry.wait(HEAD_START)
        try:
            from ..store import Store, StoreSettings, default_url
        except ModuleNotFoundError as error:
            raise ConfigError(f"the package {error.name!r} is missing: pip install 'streamglot[store]'") from None
        url = self._kept.url or default_url(os.environ)
        return await Store.open(StoreSettings(url=url, content=self._kept.content is not False, raw=self._kept.raw))

    async def _store(self) -> Store:
        assert self._opening is not None
        return await asyncio.wrap_future(self._opening)

    async def _start(self, entry: Entry) -> Turn:
        store = await self._store()
        from ..store import Session, Started
        from ..store.sessions import PREFIX
        from ..store.turn import mint_id

        session = entry.talk.session
        if session is None:
            session = Session(id=mint_id(PREFIX, entry.at), caller=this_user(), directory=this_directory(), started=entry.at)
            entry.talk.session = session
        record = entry.stream.record
        started = Started(
            caller=session.caller,
            request_id=record.request_id,
            dialect=DIALECT,
            model=record.model,
            request=entry.stream.request,
            at=entry.at,
        )
        return store.start(session, started)

    def finish(self, entry: Entry, response: Response, ending: str) -> None:
        """The answer is there, whole or in part."""
        record, talk = entry.stream.record, entry.talk
        if any(choice.parts for choice in response.choices):  # an upstream that did not hear this cannot go on from where it was
            talk.state = {record.upstream: talk.state.get(record.upstream, {})}
        for extra in response.extras:
            if extra.dialect == record.upstream_dialect:
                talk.state.setdefault(record.upstream, {}).update(extra.data)
        if entry.turn is not None:
            self._hurry.set()
            self._turns.append(self._begin(self._finish(entry, entry.turn, response, ending)))

    async def _finish(self, entry: Entry, starting: Future[Turn], response: Response, ending: str) -> None:
        turn = await asyncio.wrap_future(starting)
        from ..store import Finished

        stream, record = entry.stream, entry.stream.record
        for when, chunk in entry.pieces:
            turn.frame("up", when, chunk)
        for extra in response.extras:
            if extra.dialect == record.upstream_dialect:
                turn.learn(record.upstream, extra)
        turn.finish(
            Finished(
                ending=ending,
                response=response,
                upstream=record.upstream,
                upstream_dialect=record.upstream_dialect,
                upstream_model=stream.model,
                upstream_request=entry.sent,
                cost=price(response.usage, stream.model or response.model, record.upstream),
                timings={"longest_gap": record.longest_gap, "seconds": entry.seconds},
                first_event=record.first_event - record.began if record.first_event else 0.0,
                more={"dropped": stream.dropped} if stream.dropped else {},
                at=entry.at + entry.seconds,
            )
        )

    # --- life

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._worker is None:
            return
        self._hurry.set()
        try:
            trouble = self._worker.run(self._close())
        except KeyboardInterrupt:
            sys.stdout.flush()
            os._exit(130)  # the threads of a database that does not answer would be waited for
        self._worker.stop()
        if trouble and self._turns:
            complain(f"this was not kept: {trouble} (--no-log keeps nothing, and so does store.url = {NOTHING!r})")

    async def _close(self) -> str:
        """Writes everything; what was in the way, in words."""
        try:
            store = await self._store()
            try:
                await asyncio.gather(*(asyncio.wrap_future(turn) for turn in self._turns))
            finally:
                report = await store.close()
        except StreamglotError as error:
            return error.message
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return report.last_error if report.dropped or report.unfit else ""


class Entry:
    """One answer, and what an upstream has to be told of those before it. ``sent`` is the last request that went out."""

    def __init__(self, book: Notebook, talk: Talk, stream: Stream, raw: bool) -> None:
        self.talk = talk
        self.stream = stream
        self.turn: Future[Turn] | None = None
        self.at = time.time()
        self.seconds = 0.0
        self.sent: Request | None = None
        self.pieces: list[tuple[float, bytes]] = []
        self.heard = self._hear if raw else None
        self._book = book
        self._began = time.monotonic()

    def finish(self, response: Response, ending: str) -> None:
        self.seconds = time.monotonic() - self._began
        self._book.finish(self, response, ending)

    # --- what an opening asks for

    def asked(self, request: Request, upstream: Upstream) -> Request:
        self.pieces = []  # those of an attempt that failed are not the answer
        if self.talk.answers:
            from ..store import restore_echoes

            request = restore_echoes(request, self.talk.answers, provider=upstream.name)
        self.sent = request
        return request

    def state(self, upstream: Upstream) -> Mapping[str, Any]:
        return self.talk.state.get(upstream.name, {})

    def _hear(self, chunk: bytes) -> None:
        self.pieces.append((time.monotonic() - self._began, chunk))
