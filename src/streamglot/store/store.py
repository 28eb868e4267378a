"""The store: one for each process. It takes what happens without waiting, and answers what was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from ..messages import Message, Request
from .buffer import DatabaseBuffer, StreamBuffer
from .commit import Commit
from .conversation import normal
from .database import Database, passing, within
from .keys import StoredKeys
from .place import default_url
from .processes import SEEN_SECONDS, Process
from .queries import Queries
from .recent import Recent, Seen
from .responses import Responses, settled
from .rows import FrameEntry, StateEntry, TurnEntry
from .sessions import Sessions, Wanted
from .turn import Finished, Session, Started, Turn, answer_weight, given_id, mint_id, weight
from .writer import CLOSE_SECONDS, COMMIT_SECONDS, QUEUE_BYTES, QUEUE_ENTRIES, Report, Writer

TURN: Final = "turn_"


class StoreSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """``url``: sqlite:///path or postgresql://…, empty for a file in the user's data directory. ``content``: keep what was
    said, not only that it was. ``raw``: keep the bytes as well, with their timing."""

    url: str = ""
    content: bool = True
    raw: bool = False
    queue_entries: int = QUEUE_ENTRIES
    queue_bytes: int = QUEUE_BYTES
    commit_seconds: float = COMMIT_SECONDS


class Store:
    def __init__(self, database: Database, settings: StoreSettings, say: Callable[[Mapping[str, Any]], None] | None) -> None:
        self.database = database
        self.settings = settings
        self.process = Process(database)
        self.keys = StoredKeys(database)
        self.queries = Queries(database)
        self._recent = Recent()
        self.sessions = Sessions(database, self._recent)
        self._say = say or (lambda line: None)
        self.writer = Writer(
            Commit(database),
            entries=settings.queue_entries,
            bytes=settings.queue_bytes,
            interval=settings.commit_seconds,
            say=say,
        )
        self.responses = Responses(database, self.queries, self._recent, self.writer)
        self.buffer: StreamBuffer = DatabaseBuffer(database, self.writer)
        self._closing = asyncio.Event()
        self._tick: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, settings: StoreSettings | None = None, say: Callable[[Mapping[str, Any]], None] | None = None) -> Store:
        """Opens or makes the database, and ends the turns of processes that died. A database that cannot be opened, or that
        a newer version made, is a ConfigError."""
        settings = settings or StoreSettings()
        store = cls(await Database.open(settings.url or default_url()), settings, say)
        interrupted = await store.process.begin()
        if interrupted:
            store._say({"event": "store_recovered", "interrupted": interrupted})
        store._tick = asyncio.get_running_loop().create_task(store._ticking(), name="store tick")
        return store

    async def close(self, seconds: float = CLOSE_SECONDS) -> Report:
        """Writes everything that was taken, and says how it went."""
        self._closing.set()
        if self._tick is not None:
            await self._tick
        await self.buffer.close()
        await self.writer.close(seconds)
        try:
            await self.process.end()
        except Exception as error:
            if not passing(error):
                raise
        await self.database.close()
        report = self.writer.report()
        if report.dropped or report.unfit:
            self._say({"event": "store_lost", "dropped": report.dropped, "unfit": report.unfit})
        return report

    async def _ticking(self) -> None:
        while not await within(self._closing, SEEN_SECONDS):
            try:
                await self.process.seen()
                await self.process.recover()
                await self.buffer.expire()
                await self.queries.indexing.look()
            except Exception as error:
                if not passing(error):
                    self._say({"event": "store_fault", "message": f"{type(error).__name__}: {error}"[:300]})

    # --- the path of a request

    async def find_session(self, want: Wanted, request: Request) -> Session:
        return await self.sessions.find(want, request)

    async def answers(self, session: Session) -> list[Message]:
        """For ``restore_echoes``; empty, without a question, where there can be none."""
        return [] if session.new else await self.sessions.answers(session)

    async def history(self, session: Session) -> list[Message]:
        """All that was said up to and with the turn that the session's ``previous`` names."""
        if not session.previous:
            return []
        if self._recent.ended(session.previous):  # it may be on its way to the database
            await settled(self.writer)
        return await self.queries.history(session.previous, session.caller)

    def start(self, session: Session, started: Started) -> Turn:
        """A turn begins; it is written ahead, so that it is there whatever happens to us."""
        started.at = started.at or time.time()
        turn = Turn(self, mint_id(TURN, started.at), session, started, self.settings.raw)
        asked = session.conversation.asked if session.conversation is not None else None
        seen = Seen(turn.id, session.id, session.caller, asked, started.response_id, started.retrievable)
        self._recent.start(seen, started.probe)
        size = weight(started.request) if self.settings.content else 512
        self.writer.put(TurnEntry(kind="starts", weight=size, turn=turn, process=self.process.id, content=self.settings.content))
        return turn

    def take_end(self, turn: Turn, finished: Finished) -> None:
        finished.at = finished.at or time.time()
        response, spoken = finished.response, turn.session.conversation
        parts = response.choices[0].parts if response is not None and response.choices else []
        tip, run, size = None, b"", answer_weight(response)
        if spoken is not None and not turn.started.probe:
            run = normal(parts)
            tip = spoken.tip(run)
        self._recent.finish(turn.id, tip, run, given_id(turn.started, finished), Message("assistant", parts), size)
        if not self.settings.content:
            size = 512
        elif not turn.written:
            size += weight(turn.started.request)
        self.writer.put(
            TurnEntry(
                kind="endings",
                weight=size,
                turn=turn,
                process=self.process.id,
                content=self.settings.content,
                finished=finished,
                tip=tip,
            )
        )

    def take_frame(self, turn: Turn, direction: str, at: float, data: bytes) -> None:
        self.writer.put(
            FrameEntry(
                kind="frames", weight=len(data) + 128, turn_id=turn.id, number=turn.frames, direction=direction, at=at, data=data
            )
        )

    def take_state(self, turn: Turn, provider: str, state: dict[str, Any]) -> None:
        turn.session.state.setdefault(provider, {}).update(state)
        self._recent.learn(turn.session.id, provider, state)
        self.writer.put(StateEntry(kind="states", session_id=turn.session.id, provider=provider, state=state, at=time.time()))

    def report(self) -> Report:
        return self.writer.report()
