"""The writer of a process: a bounded queue, and a task that commits it in batches, each in one transaction.

``put`` never waits. When the queue is full, contents are dropped, but never the ending of a turn or its usage:

    1. raw bytes and stream chunks are no longer accepted, and queued ones make room for turns
    2. a turn that does not fit is queued with shortened contents, then without contents
    3. queued turns lose their contents too
    4. a turn that does not fit even then is not started in the store, so no start is without an ending

Dropped entries are counted by kind. Queued entries are retried, with pauses, while the database is locked, full or gone. Every
row can be written twice without harm. Only ``close`` gives up, after a time, and counts what it abandons.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from ..tasks import TaskSupervisor, WriteLine, within
from .contents import Cut, cut, piece_row
from .database import Database, StoreUnavailable, is_transient
from .database.sql import Connection, Insert
from .processes import Process
from .rows import Entry, Row, Rows, StepEntry, TurnEntry, rows_of
from .turns import EndingRow, TurnRow

KNOWN_ROWS: Final = 20_000
"""Messages, requests with their pieces, nodes and sessions that this process knows to be in the database. Without it each turn would resend its history."""
_ENDED: Final = ", ".join(f"{name} = excluded.{name}" for name in EndingRow.__struct_fields__ if name != "turn_id")
INSERTS: Final = {
    insert.table: insert
    for insert in (
        Insert("sessions", ("id", "caller", "name", "directory", "started")),
        Insert("contents", ("hash", "body")),
        Insert("pieces", ("owner", "number", "content")),
        Insert("messages", ("hash", "body")),
        Insert("nodes", ("hash", "parent", "message", "depth")),
        Insert("turns", TurnRow.__struct_fields__),
        Insert(
            "endings",
            EndingRow.__struct_fields__,
            f"ON CONFLICT (turn_id) DO UPDATE SET {_ENDED} WHERE endings.ending = 'interrupted'",
        ),
        Insert("answers", ("turn_id", "choice", "message", "echo_session")),
        Insert("texts", ("turn_id", "body", "scope")),
        Insert("frames", ("turn_id", "number", "body")),
        Insert("steps", ("turn_id", "number", "body"), "ON CONFLICT (turn_id, number) DO UPDATE SET body = excluded.body"),
        Insert(
            "streams",
            ("id", "caller", "started", "seen", "last", "stopped", "head", "wanted"),
            "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, last = coalesce(excluded.last, streams.last)",
        ),
        Insert("chunks", ("stream_id", "number", "last", "body")),
    )
}
_EPOCH: Final = "SELECT coalesce(max(number), 0) AS number FROM epochs"
_TRIM: Final = "DELETE FROM chunks WHERE stream_id = :stream_id AND last <= :last"
_LOCK_SESSIONS: Final = "SELECT id FROM sessions WHERE id IN :names ORDER BY id FOR NO KEY UPDATE"
_LOCK_KEYS: Final = "SELECT name FROM keys WHERE name IN :names ORDER BY name FOR NO KEY UPDATE"
COMMIT_SECONDS: Final = 0.2
"""Maximum seconds between the end of a turn and its commit. A turn that ends alone is committed sooner."""
CHUNK_SECONDS: Final = 0.1
"""The same for stream chunks, in seconds. Readers in other processes wait for them."""
QUEUE_ENTRIES: Final = 50_000
"""Entries with contents that may be queued. Turns without contents are limited by bytes only."""
QUEUE_BYTES: Final = 128 * 2**20
"""Bytes that may be queued: ten seconds of a busy gateway without a database, or 100,000 turns without contents."""
RAW: Final = ("frames", "chunks")
"""Kinds that are not needed to know how a turn ended."""
CONTENTS: Final = "contents"
"""The counter for contents of turns that were cut or dropped."""
SHARES: Final[Mapping[str, float]] = {"frames": 0.5, "chunks": 0.6, CONTENTS: 0.9}
"""The share of the queue that each kind may fill; other kinds may fill all of it."""
LIGHT_SHARE: Final = min(SHARES.values())
"""The share of the queue up to which every kind fits."""
BATCH_ENTRIES: Final = 2_000
BATCH_BYTES: Final = 16 * 2**20
"""Bytes per commit: large enough to be cheap, small enough not to hold the lock for long."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
CLOSE_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 5.0
"""A commit without an answer for this long, in seconds, is reported like a failure."""


class Report(Struct, kw_only=True):
    """The state of the writer. ``dropped`` entries did not fit, ``unfit`` ones no database would accept. ``behind`` is the age
    in seconds of the oldest queued entry. ``missed`` counts lookups of history that got no answer, so that the request continued
    without it."""

    queued: int
    queued_bytes: int
    behind: float
    written: dict[str, int]
    dropped: dict[str, int]
    unfit: dict[str, int]
    commits: int
    failures: int
    failing: bool
    last_error: str
    missed: int = 0


class Writer:
    def __init__(
        self,
        commit: Commit,
        *,
        entries: int = QUEUE_ENTRIES,
        bytes: int = QUEUE_BYTES,
        interval: float = COMMIT_SECONDS,
        log: WriteLine | None = None,
    ) -> None:
        self._commit = commit
        self._entries, self._bytes, self._interval = entries, bytes, interval
        self._log = log or (lambda line: None)
        self._queue: deque[Entry] = deque()
        self._weight = self._reserved = 0
        self._heavy = 0
        self._oldest = 0.0
        self._due = self._committed = 0.0
        self._wake = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._settled = asyncio.Condition()
        self._put = self._done = 0
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._unfit: Counter[str] = Counter()
        self._commits = self._failures = 0
        self._failing_since = 0.0
        self._dropping = False
        self._dropped_before: Counter[str] = Counter()
        self._last_error = ""
        self._closing = False
        self._deadline = 0.0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attempting: asyncio.Task[None] | None = None
        self._task = TaskSupervisor(log).start("store writer", self._run)

    # --- called by the store

    def put(self, entry: Entry, reserve: int = 0) -> bool:
        """Queues the entry, with less content if necessary. Returns False if it is dropped. ``reserve`` bytes stay free until an
        entry with the negative number releases them; that entry always fits."""
        if self._task.done():
            self.drop(entry.kind)
            return False
        if reserve < 0:
            self._reserved += reserve
        fitting = entry if self._fits(entry, reserve) else self._with_room(entry, reserve)
        if fitting is None:
            self.drop(entry.kind)
            return False
        if reserve > 0:
            self._reserved += reserve
        self._queue_up(fitting)
        return True

    def _fits(self, entry: Entry, reserve: int = 0) -> bool:
        """Whether an entry fits. A start must fit together with the space that it reserves for its ending."""
        size = self._weight + self._reserved + entry.weight + (reserve if reserve > 0 else 0)
        if size <= LIGHT_SHARE * self._bytes and self._heavy < LIGHT_SHARE * self._entries:
            return True  # the usual case: there is room for every kind
        if _heavy(entry):
            share = SHARES[entry.kind if entry.kind in RAW else CONTENTS]
            return size <= share * self._bytes and self._heavy < share * self._entries
        return size <= self._bytes

    def _with_room(self, entry: Entry, reserve: int) -> Entry | None:
        """The entry in a form that fits after others made room for it; None if it does not fit."""
        if entry.kind in RAW:
            return None
        self._make_room(lambda queued: None if queued.kind in RAW else queued)
        found = entry
        while not self._fits(found, reserve):
            lighter = found.lighter()
            if lighter is None:
                self._make_room(_without_contents)
                break
            found = lighter
        if not self._fits(found, reserve):
            return None
        if found is not entry:
            self.drop(CONTENTS)
        return found

    def _make_room(self, lighter: Callable[[Entry], Entry | None]) -> None:
        """Replaces each queued entry by the result of ``lighter``. A removed entry leaves an empty one, because ``flush`` counts
        entries."""
        if not self._heavy:
            return
        queue: deque[Entry] = deque()
        self._heavy = 0
        for entry in self._queue:
            left = lighter(entry)
            if left is not entry:
                self.drop(entry.kind if left is None else CONTENTS)
                left = left or Entry(kind="", weight=0)
                self._weight -= entry.weight - left.weight
            queue.append(left)
            self._heavy += _heavy(left)
        self._queue = queue

    def _queue_up(self, entry: Entry) -> None:
        queue, kind = self._queue, entry.kind
        if not queue:
            self._oldest = time.monotonic()
            self._due = self._oldest + self._interval / 2  # the other half is for the commit itself
            self._wake.set()
        if kind == "chunks":
            self._due = min(self._due, time.monotonic() + CHUNK_SECONDS)
        # the next request may look for it in another process
        elif kind == "endings" and self._due > self._committed + self._interval / 2:
            self._due = self._committed + self._interval / 2
            self._flush_requested.set()
        queue.append(entry)
        self._put += 1
        self._weight += entry.weight
        self._heavy += _heavy(entry)
        if len(queue) >= BATCH_ENTRIES:
            self._flush_requested.set()

    def drop(self, kind: str) -> None:
        """Counts a dropped entry. The first of a series is logged at once, the total when there is room again."""
        if not self._dropping:
            self._dropping = True
            self._dropped_before = self._dropped.copy()
            self._log({"event": "store_dropping", "kind": kind, "queued": len(self._queue), "queued_bytes": self._weight})
        self._dropped[kind] += 1

    def log_fault(self, error: Exception) -> None:
        """Logs a fault of our own in a task that continues."""
        self._log({"event": "store_fault", "message": f"{type(error).__name__}: {error}"[:300]})

    async def flush(self) -> None:
        """Waits until everything that was queued before is in the database, or was found unfit."""
        until = self._put
        self._due = 0.0
        self._flush_requested.set()
        async with self._settled:
            await self._settled.wait_for(lambda: self._done >= until or self._task.done())

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Commits everything. If the database does not come back in time, the rest is counted as dropped. Nothing else limits the
        time of this call: a caller that gave it up earlier would not know what is lost."""
        self._closing, self._deadline = True, time.monotonic() + seconds
        self._wake.set()
        self._flush_requested.set()
        timer = asyncio.get_running_loop().call_later(seconds, self._over.cancel)
        try:
            await self._task
        finally:
            timer.cancel()

    def report(self) -> Report:
        behind = time.monotonic() - self._oldest if self._put > self._done else 0.0
        silent = behind > SILENT_SECONDS and self._attempting is not None
        return Report(
            queued=self._put - self._done,
            queued_bytes=self._weight,
            behind=behind,
            written=dict(self._written),
            dropped=dict(self._dropped),
            unfit=dict(self._unfit),
            commits=self._commits,
            failures=self._failures,
            failing=bool(self._failing_since) or silent,
            last_error="the database does not answer" if silent and not self._failing_since else self._last_error,
        )

    # --- the task

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                await self._wait_for_more()
                batch = self._take()
                if batch:
                    try:
                        await self._commit_batch(batch)
                    except Exception as error:  # a fault of our own must not end the writing
                        self._note_unfit(batch, error)
                    finally:
                        self._weight -= sum([entry.weight for entry in batch])
                        await self._mark_done(len(batch))
                        batch = []  # this frame lives on: it would hold the last contents until the next batch
                elif self._closing:
                    return
        finally:
            async with self._settled:
                self._settled.notify_all()

    async def _wait_for_more(self) -> None:
        while (wait := self._due - time.monotonic()) > 0 and not self._closing and len(self._queue) < BATCH_ENTRIES:
            self._flush_requested.clear()
            await within(self._flush_requested, wait)

    def _take(self) -> list[Entry]:
        batch: list[Entry] = []
        size = 0
        while self._queue and len(batch) < BATCH_ENTRIES and size < BATCH_BYTES:
            entry = self._queue.popleft()
            size += entry.weight
            self._heavy -= _heavy(entry)
            batch.append(entry)
        if not self._queue:
            self._wake.clear()
            if self._closing:
                self._wake.set()
        return batch

    async def _mark_done(self, count: int) -> None:
        self._done += count
        self._oldest = self._committed = time.monotonic()
        if self._dropping and len(self._queue) < self._entries / 2 and self._weight < self._bytes / 2:
            self._dropping = False
            self._log({"event": "store_dropped", "dropped": dict(self._dropped - self._dropped_before)})
        async with self._settled:
            self._settled.notify_all()

    async def _commit_batch(self, batch: list[Entry]) -> None:
        """Commits the batch. If the database refuses it, the entries are committed one by one."""
        try:
            await self._try(batch)
        except _GivenUp:
            self._dropped.update(entry.kind for entry in batch if entry.kind)
        except Exception:
            for entry in batch:
                await self._commit_one(entry)

    async def _commit_one(self, entry: Entry) -> None:
        """Commits one entry whole, or with as much content as the database accepts."""
        tried: Entry | None = entry
        while tried is not None:
            try:
                await self._try([tried])
            except _GivenUp:
                self._dropped[entry.kind] += 1
                return
            except Exception as error:
                tried = tried.lighter()
                if tried is None:
                    self._note_unfit([entry], error)
            else:
                if tried is not entry:
                    self.drop(CONTENTS)
                return

    def _note_unfit(self, entries: list[Entry], error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}"[:300]
        for kind in filter(None, (entry.kind for entry in entries)):
            self._unfit[kind] += 1
            self._log({"event": "store_unfit", "kind": kind, "message": self._last_error})

    async def _try(self, batch: list[Entry]) -> None:
        """Retries until the batch is written. Every row can be written twice, so a commit whose answer was lost is repeated."""
        rows, pause = Rows(generation=0), FIRST_PAUSE
        while True:
            if self._over.done():
                raise _GivenUp
            try:
                if rows.generation != self._commit.generation:
                    rows = await asyncio.to_thread(rows_of, batch, self._commit.generation, self._commit.known)
                await self._attempt(rows)
            except Exception as error:
                if not is_transient(error):
                    raise
                self._failed(error)
                if self._closing and time.monotonic() + pause > self._deadline:
                    raise _GivenUp from None
                await asyncio.wait({self._over}, timeout=pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            else:
                break
        self._succeeded()
        self._unfit.update(rows.unfit)
        self._written.update([entry.kind for entry in batch if entry.kind])
        self._written.subtract(rows.unfit)
        for entry in batch:
            if isinstance(entry, TurnEntry):
                entry.turn.written = rows.generation
                if entry.written is not None and entry.turn.id in rows.endings:
                    entry.written()

    async def _attempt(self, rows: Rows) -> None:
        """Commits once. A database that does not answer must not prevent closing."""
        attempt = self._attempting = asyncio.get_running_loop().create_task(self._commit(rows))
        try:
            await asyncio.wait({attempt, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done():
                raise _GivenUp
            await attempt
        finally:
            self._attempting = None
            attempt.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # possibly no caller waits for the result
            attempt.cancel()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._last_error = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._log({"event": "store_failing", "message": self._last_error})

    def _succeeded(self) -> None:
        self._commits += 1
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._log({"event": "store_back", "seconds": round(seconds, 3)})


def _has_contents(entry: Entry) -> bool:
    return entry.content if isinstance(entry, TurnEntry) else isinstance(entry, StepEntry) and entry.lighter() is not None


def _heavy(entry: Entry) -> bool:
    """Whether the entry could make room."""
    return entry.content if type(entry) is TurnEntry else entry.kind in RAW or _has_contents(entry)


def _without_contents(entry: Entry) -> Entry | None:
    while _has_contents(entry) and (lighter := entry.lighter()) is not None:
        entry = lighter
    return entry


class _GivenUp(Exception):
    """The time for closing is over."""


class Commit:
    def __init__(self, database: Database, process: Process) -> None:
        self._database, self._process = database, process
        self._generation = 0
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._epoch = -1

    @property
    def generation(self) -> int:
        """The generation of the database that rows must be made for."""
        return self._database.generation

    @property
    def known(self) -> Container[Hashable]:
        """The keys of rows that are known to be in the database. ``__call__`` checks them again."""
        return self._known

    async def __call__(self, rows: Rows) -> None:
        """Writes the rows. Those with a hash are sorted by it, so that two processes that write the same rows never deadlock."""
        for mark in await self._database.write(lambda connection: self._write(connection, rows)):
            self._known[mark] = None
        self._generation = rows.generation
        while len(self._known) > KNOWN_ROWS:
            self._known.popitem(last=False)

    async def _write(self, connection: Connection, rows: Rows) -> list[Hashable]:
        """Writes the rows and returns the keys that are known to be in the database from now on. If the database file was
        replaced, nothing is known."""
        if rows.generation != self.generation:
            raise StoreUnavailable(f"the database {self._database.shown} was replaced by another one")
        if rows.generation != self._generation:
            self._known.clear()
            await self._process.sign_in(connection)
        if rows.messages or rows.nodes or rows.sessions or rows.requests:
            epoch = (await connection.fetch(_EPOCH))[0].number
            if epoch != self._epoch:
                self._known.clear()
                self._epoch = epoch
        messages = {mark: rows.cuts.get(mark) or cut(body) for mark, body in rows.messages.items() if mark not in self._known}
        requests = {mark: found for mark, found in rows.requests.items() if mark not in self._known}
        of_requests = {mark: data for found in requests.values() for mark, data in found.pieces if mark not in self._known}
        pieces = of_requests | {mark: data for found in messages.values() for mark, data in found.pieces}
        contents = {mark: found.body.encode() for mark, found in requests.items()}
        contents |= {mark: rows.packed.get(mark) or piece_row(data) for mark, data in pieces.items()}
        nodes = [rows.nodes[mark] for mark in sorted(rows.nodes) if mark not in self._known]
        sessions = [rows.sessions[id] for id in sorted(rows.sessions) if id not in self._known]
        await self._add(connection, "sessions", sessions)
        await self._lock_totals(connection, rows)
        await self._add(connection, "contents", _by_hash(contents))
        await self._add(connection, "pieces", _pieces({**messages, **requests}))
        await self._add(connection, "messages", _by_hash({mark: found.body for mark, found in messages.items()}))
        await self._add(connection, "nodes", nodes)
        await connection.insert(INSERTS["turns"], list(map(astuple, rows.turns.values())))
        await connection.insert(INSERTS["endings"], list(map(astuple, rows.endings.values())))
        await self._add(connection, "answers", rows.answers)
        await self._add(connection, "texts", rows.texts)
        await self._add(connection, "frames", rows.frames)
        await self._add(connection, "steps", rows.steps.values())
        await self._add(connection, "streams", rows.streams.values())
        await self._add(connection, "chunks", rows.chunks)
        await connection.execute_each(_TRIM, [{"stream_id": of, "last": up_to} for of, up_to in rows.trims.items()])
        return [*(row["id"] for row in sessions), *(row["hash"] for row in nodes), *messages, *requests, *of_requests]

    async def _lock_totals(self, connection: Connection, rows: Rows) -> None:
        """Locks the rows that triggers add to, in their order. Otherwise two processes that write turns of the same sessions or keys
        could wait for each other. One row needs no order."""
        if connection.is_sqlite:  # it has one writer at a time
            return
        turns: list[TurnRow | EndingRow] = [*rows.turns.values(), *rows.endings.values()]
        sessions, callers = {turn.session_id for turn in turns}, {turn.caller for turn in turns}
        if len(sessions) > 1:
            await connection.fetch(_LOCK_SESSIONS, names=sorted(sessions))
        if len(callers) > 1:
            await connection.fetch(_LOCK_KEYS, names=sorted(callers))

    async def _add(self, connection: Connection, table: str, rows: Iterable[Row]) -> None:
        insert = INSERTS[table]
        await connection.insert(insert, insert.tuples(rows))


def _by_hash(bodies: Mapping[bytes, str] | Mapping[bytes, bytes]) -> list[Row]:
    return [{"hash": mark, "body": bodies[mark]} for mark in sorted(bodies)]


def _pieces(cuts: Mapping[bytes, Cut]) -> list[Row]:
    return [
        {"owner": mark, "number": number, "content": content}
        for mark in sorted(cuts)
        for number, (content, _) in enumerate(cuts[mark].pieces)
    ]
