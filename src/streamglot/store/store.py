"""The store, one per process. It accepts data without waiting and answers queries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from ..json_types import JsonValue
from ..messages import Message, Request
from ..tasks import TaskSupervisor, WriteLine, within
from .approvals import StoredApprovals
from .conversation import normal
from .database import Database, StoreUnavailable, is_transient
from .database.paths import default_url
from .keys import StoredKeys
from .processes import FIRST_SECONDS, SEEN_SECONDS, Process
from .queries import Queries
from .recent import Recent, Seen
from .rows import FrameEntry, StepEntry, TurnEntry
from .sessions import OTHER_PROCESS_SECONDS, POLL_SECONDS, Responses, SessionHints, Sessions, settled
from .streams import StreamBuffer
from .streams.database import DatabaseBuffer
from .turns import (
    BARE_BYTES,
    TURN,
    UNFIT_ERRORS,
    EndingRow,
    Finished,
    Session,
    Started,
    Turn,
    answer_weight,
    bare_response,
    encoded_size,
    ending_row,
    given_id,
    mint_id,
    turn_row,
    weight,
)
from .writer import CLOSE_SECONDS, COMMIT_SECONDS, QUEUE_BYTES, QUEUE_ENTRIES, Commit, Report, Writer

PROBE_SECONDS: Final = 2.0
"""Seconds between two checks of the database when no query uses it, so that a fault is reported within this time."""


class StoreSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """``url``: sqlite:///path or postgresql://…; empty for a file in the user's data directory. ``content``: store the messages,
    not only the fact of a turn. ``raw``: also store the bytes with their timing."""

    url: str = ""
    content: bool = True
    raw: bool = False
    queue_entries: int = QUEUE_ENTRIES
    queue_bytes: int = QUEUE_BYTES
    commit_seconds: float = COMMIT_SECONDS


class Store:
    def __init__(self, database: Database, settings: StoreSettings, log: WriteLine | None) -> None:
        self.database = database
        self.settings = settings
        self.process = Process(database)
        self.keys = StoredKeys(database)
        self.approvals = StoredApprovals(database, self.process)
        self.queries = Queries(database)
        self._recent = Recent()
        self.sessions = Sessions(database, self._recent, self.process.has_others, log)
        self._log = log or (lambda line: None)
        self.writer = Writer(
            Commit(database, self.process),
            entries=settings.queue_entries,
            bytes=settings.queue_bytes,
            interval=settings.commit_seconds,
            log=log,
        )
        self.responses = Responses(database, self.queries, self._recent, self.writer)
        self.buffer: StreamBuffer = DatabaseBuffer(database, self.writer, log=log)
        self._closing = asyncio.Event()
        self._tick: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, settings: StoreSettings | None = None, log: WriteLine | None = None) -> Store:
        """Opens or creates the database and ends the turns of dead processes. Raises ConfigError if the database cannot be
        opened or a newer version made it."""
        settings = settings or StoreSettings()
        store = cls(await Database.open(settings.url or default_url()), settings, log)
        try:
            interrupted = await store.process.begin()
        except StoreUnavailable as error:
            await store.close()
            raise ConfigError(error.message) from None
        if interrupted:
            store._log({"event": "store_recovered", "interrupted": interrupted})
        store._tick = TaskSupervisor(log).start("store tick", store._ticking)
        return store

    async def close(self, seconds: float = CLOSE_SECONDS) -> Report:
        """Commits everything that is queued and reports the result, within this time. A step that fails or hangs does not
        prevent the others."""
        self._closing.set()
        until = time.monotonic() + seconds
        # in this order: the end of the buffer's streams goes through the writer
        steps: list[Awaitable[None]] = [asyncio.ensure_future(self.buffer.close()), *filter(None, [self._tick])]
        writing = asyncio.ensure_future(self.writer.close(0.8 * seconds))
        await self._finish(until - 0.1 * seconds, *steps)
        await asyncio.wait({writing})  # it keeps its time itself, and then counts what is lost
        self._finished(writing)
        await self._finish(until - 0.05 * seconds, self.process.end())
        await self._finish(until, self.database.close())
        report = self.report()
        if report.dropped or report.unfit:
            self._log({"event": "store_lost", "dropped": report.dropped, "unfit": report.unfit})
        return report

    async def _finish(self, until: float, *steps: Awaitable[None]) -> None:
        """Runs the steps concurrently and abandons those that are not done in time."""
        tasks = [asyncio.ensure_future(step) for step in steps]
        await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
        for task in tasks:
            task.add_done_callback(self._finished)
            task.cancel()

    def _finished(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not is_transient(error):
            self.writer.log_fault(error)

    async def _ticking(self) -> None:
        due = time.monotonic() + FIRST_SECONDS
        while not await within(self._closing, min(PROBE_SECONDS, max(0.0, due - time.monotonic()))):
            try:
                await self.database.probe()
                if time.monotonic() < due:
                    continue
                due = time.monotonic() + SEEN_SECONDS
                await self.process.seen()
                await self.process.recover()
                await self.buffer.expire()
                await self.queries.indexing.look()
            except Exception as error:
                if not is_transient(error):
                    self.writer.log_fault(error)

    # --- the path of a request

    async def find_session(self, hints: SessionHints, request: Request) -> Session:
        return await self.sessions.find(hints, request)

    async def answers(self, session: Session) -> list[Message]:
        """The answers for ``restore_echoes``; empty without a query if there can be none."""
        return [] if session.new else await self.sessions.answers(session)

    async def history(self, session: Session) -> list[Message]:
        """All messages up to and including the turn in the session's ``previous``."""
        if not session.previous:
            return []
        if self._recent.ended(session.previous):  # it may be on its way to the database
            await settled(self.writer)
        return await self.queries.history(session.previous, session.caller)

    async def last_turn(self, session: Session) -> tuple[str, bool]:
        """The turn that a conversation continues when the client does not repeat it, and whether it has ended. It may be on its
        way to the database, from this process or from another."""
        if self._recent.owner(session.id) == session.caller:
            await settled(self.writer)
        until = time.monotonic() + OTHER_PROCESS_SECONDS
        while True:
            last, ended = await self.queries.last_turn(session.id, session.caller)
            if ended or time.monotonic() > until:
                return last, ended
            await asyncio.sleep(POLL_SECONDS)

    def start(self, session: Session, started: Started, *, remember: bool = True) -> Turn:
        """Starts a turn and queues its row, so that the turn is stored even if the process dies. The same step reserves queue
        space for the ending, so that every stored start gets an ending. ``remember``: keep it in memory for requests that continue
        it at once; without it they find it in the database. The turns of a batch would displace those of live requests."""
        started.at = started.at or time.time()
        turn = Turn(self, mint_id(TURN, started.at), session, started, self.settings.raw, remember)
        if remember:
            prompt_hash = session.conversation.prompt_hash if session.conversation is not None else None
            named = bool(session.name)
            seen = Seen(turn.id, session.id, session.caller, prompt_hash, named, started.response_id, started.retrievable)
            self._recent.start(seen, started.probe)
        content = self.settings.content
        turn.weight = weight(started.request) if content else BARE_BYTES
        if not content:
            with suppress(*UNFIT_ERRORS):  # the writer counts it
                turn.row = turn_row(turn, self.process.id, started.request, content=False)
        entry = TurnEntry(kind="starts", weight=turn.weight, turn=turn, process=self.process.id, content=content)
        turn.kept = self.writer.put(entry, reserve=BARE_BYTES)
        return turn

    def take_end(self, turn: Turn, finished: Finished) -> None:
        finished.at = finished.at or time.time()
        response, conversation = finished.response, turn.session.conversation
        parts = response.choices[0].parts if response is not None and response.choices else []
        content = self.settings.content
        tip, run, size = None, b"", answer_weight(response) if content or turn.remembered else BARE_BYTES
        if conversation is not None and not turn.started.probe:
            run = normal(parts)
            tip = conversation.tip(run)
        if turn.remembered:
            self._recent.finish(
                turn.id, tip, run, given_id(turn.started, finished), Message("assistant", parts, echo=finished.echo), size
            )
        if not turn.kept:
            self.writer.drop("endings")
            return
        ended: EndingRow | None = None
        cost, written = finished.cost, finished.written
        if content:
            size += 0 if turn.written else turn.weight
        else:
            bare = bare_response(response) if response is not None else None
            finished = replace(finished, response=bare, upstream_request=None)
            with suppress(*UNFIT_ERRORS):  # the writer counts it
                ended = ending_row(turn, finished, tip, content=False)
            turn.forget_request()
            size = BARE_BYTES
        if ended is not None and (not callable(cost) or not turn.remembered):
            ended.cost = cost() if callable(cost) else cost  # a batch has asked for the price before, so its data is loaded
        entry = TurnEntry(
            kind="endings",
            weight=size,
            turn=turn,
            process=self.process.id,
            content=content,
            finished=finished if ended is None else None,
            tip=tip,
            ended=ended,
            cost=cost if ended is not None and callable(cost) and turn.remembered else None,
            written=written,
        )
        self.writer.put(entry, reserve=-BARE_BYTES)

    def take_frame(self, turn: Turn, direction: str, at: float, data: bytes) -> None:
        self.writer.put(
            FrameEntry(
                kind="frames", weight=len(data) + 128, turn_id=turn.id, number=turn.frames, direction=direction, at=at, data=data
            )
        )

    def take_step(self, turn: Turn, number: int, step: Mapping[str, JsonValue]) -> None:
        entry = StepEntry(kind="steps", turn_id=turn.id, number=number, step=dict(step))
        if not self.settings.content:
            entry = entry.without_contents()
        entry.weight += encoded_size(entry.step)
        self.writer.put(entry)

    def report(self) -> Report:
        """The state of the writer, of the database if it cannot be read, and of a buffer with its own queue."""
        one, two = self.writer.report(), self.buffer.report()
        one.missed = self.sessions.missed
        if self.database.fault:
            one.failing, one.last_error = True, one.last_error if one.failing else self.database.fault
        if two is None:
            return one
        return Report(
            queued=one.queued + two.queued,
            queued_bytes=one.queued_bytes + two.queued_bytes,
            behind=max(one.behind, two.behind),
            written=dict(Counter(one.written) + Counter(two.written)),
            dropped=dict(Counter(one.dropped) + Counter(two.dropped)),
            unfit=dict(Counter(one.unfit) + Counter(two.unfit)),
            commits=one.commits + two.commits,
            failures=one.failures + two.failures,
            failing=one.failing or two.failing,
            last_error=one.last_error or two.last_error,
            missed=one.missed,
        )
