"""Sends items of batches to a provider's batch API, polls their state, and fetches the results.

A provider's answer passes the same exchange as the answer to a call, with policies, tools, budgets and recording. Before a batch
is sent, the provider is asked for a batch of the same name. A process that dies between sending a batch and storing its id
therefore does not pay twice, if the provider supports names.

``ProviderQueue`` is the queue of these jobs (sending, polling and fetching), with the table and the rules of
``queue.BatchQueue``.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

import msgspec
from msgspec import Struct

from ...errors import StreamglotError
from ...json_types import JsonObject
from ...store.database import StoreUnavailable
from ...store.database.sql import Connection, SqlRow, SqlValue, assignments
from ...tasks import WriteLine
from ...upstream import Upstream
from .model import OPEN, PROVIDER, REMOTE, SENDING, Answer, Batch, Item, batch_of, result_of
from .provider_api import ProviderAPI, RemoteResult, provider_api
from .queue import OPEN_OR_CLOSED, UNFINISHED, BatchQueue

if TYPE_CHECKING:
    from aiohttp import ClientSession

REMOTE_ITEMS: Final = 50_000
"""Items of one batch at a provider: the smallest limit of the supported providers."""
SENDING_SECONDS: Final = 900.0
"""Seconds that preparing and uploading one batch may take before its sender counts as dead."""
POLLING_SECONDS: Final = 900.0
"""Seconds that fetching the results of one batch may take before its reader counts as dead."""
_TO_SEND: Final = f"state = '{OPEN}' AND upstream LIKE '{PROVIDER}%'"
_TO_LOOK_AT: Final = f"state = '{REMOTE}' AND (lease IS NULL OR lease < :now)"
_WAITING: Final = f"SELECT first FROM batch_jobs WHERE {_TO_SEND} OR {_TO_LOOK_AT} LIMIT 1"
_FIRST: Final = f"SELECT * FROM batch_jobs WHERE {_TO_SEND} ORDER BY priority, first LIMIT 1 FOR UPDATE SKIP LOCKED"
_SAME: Final = f"""
    SELECT first, last FROM batch_jobs WHERE {_TO_SEND} AND batch_id = :batch_id AND upstream = :upstream
    ORDER BY first FOR UPDATE SKIP LOCKED
"""
_DUE: Final = f"SELECT * FROM batch_jobs WHERE {_TO_LOOK_AT} LIMIT 1 FOR UPDATE SKIP LOCKED"
_TOGETHER: Final = f"batch_id = :batch_id AND remote = :remote AND state = '{REMOTE}'"
_THESE: Final = "batch_id = :batch_id AND first IN :firsts"
DATABASE_PAUSE: Final = 0.5
"""Seconds between two attempts to use a database that does not answer."""
REFUSED_SECONDS: Final = 60.0
"""Seconds to wait after a provider refused a batch."""
COMMITTED_ITEMS: Final = 100
"""Results that are committed in one transaction."""


class RemoteRunner(Protocol):
    """Prepares items for a provider and completes them with its answers."""

    def upstream(self, name: str) -> Upstream | None: ...

    async def prepare(self, batch: Batch, item: Item, upstream: str) -> JsonObject | Answer:
        """The body of the request after its policies, or the answer if they refuse it."""

    async def complete(self, batch: Batch, item: Item, upstream: str, status: int, body: bytes) -> Answer:
        """Passes the provider's answer through the stages of the exchange."""


class ProviderRelay:
    """``settled`` is called with the batches whose jobs have ended. ``log`` gets lines about providers that refuse."""

    def __init__(
        self,
        queue: BatchQueue,
        runner: RemoteRunner,
        *,
        poll_seconds: float,
        settled: Callable[[set[str]], None],
        log: WriteLine,
    ) -> None:
        self._queue = queue
        self._jobs = ProviderQueue(queue)
        self._runner = runner
        self._poll_seconds = poll_seconds
        self._settled = settled
        self._log = log
        self._cancelled: set[str] = set()
        self._new = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._new.wait()
            self._new.clear()
            try:
                if await self._jobs.any_waiting():
                    await self._work()
            except StoreUnavailable:
                await asyncio.sleep(DATABASE_PAUSE)

    async def _work(self) -> None:
        """Sends and fetches everything that is due. The HTTP client library is imported on first use."""
        import aiohttp

        async with aiohttp.ClientSession() as session:
            while await self._send_one(session) or await self._look_at_one(session):
                pass

    def wake(self) -> None:
        """Tells the relay that there are batches that have not ended."""
        self._new.set()

    def _api(self, session: ClientSession, upstream: str) -> ProviderAPI | None:
        found = self._runner.upstream(upstream)
        return provider_api(session, found) if found is not None else None

    # --- sending

    async def _send_one(self, session: ClientSession) -> bool:
        jobs = await self._jobs.claim()
        if jobs is None:
            return False
        api = self._api(session, jobs.upstream)
        if api is None:  # the configuration has changed, so the items run as calls
            await _repeated(lambda: self._jobs.not_sent(jobs, jobs.upstream))
            return True
        try:
            remote = await api.find(jobs.name) or await self._send(api, jobs)
        except StreamglotError as error:
            self._log(
                {"event": "provider_batch_refused", "upstream": jobs.upstream, "batch": jobs.batch.id, "message": error.message}
            )
            await _repeated(lambda: self._jobs.not_sent(jobs))
            await asyncio.sleep(REFUSED_SECONDS)
            return True
        if remote:
            await _repeated(lambda: self._jobs.sent(jobs, remote, time.time() + self._poll_seconds))
        else:
            await _repeated(lambda: self._jobs.landed(jobs))
            self._settled({jobs.batch.id})
        return True

    async def _send(self, api: ProviderAPI, jobs: RemoteJobs) -> str:
        """Sends the items that can be sent and returns the provider's id.

        Returns "" if there are none: every item then has its result.
        """
        with tempfile.TemporaryFile() as lines:
            count = 0
            for first, last in jobs.ranges:
                refused = []
                for item in await self._jobs.items(jobs.batch.id, first, last):
                    body = await self._runner.prepare(jobs.batch, item, jobs.upstream)
                    if isinstance(body, Answer):
                        refused.append(result_of(jobs.batch, item, body, max(1, body.attempts), time.time()))
                    else:
                        lines.write(api.line(item.number, body) + b"\n")
                        count += 1
                await self._queue.commit(refused)
            if not count:
                return ""
            lines.seek(0)
            return await api.send(cast("BinaryIO", lines), jobs.name)  # the stubs of tempfile declare a wrapper type

    # --- fetching results

    async def _look_at_one(self, session: ClientSession) -> bool:
        jobs = await self._jobs.due()
        if jobs is None:
            return False
        api = self._api(session, jobs.upstream)
        try:
            if api is None:
                raise StreamglotError(
                    f"upstream {jobs.upstream!r} has no provider batches configured any more; restore its setting batches"
                )
            if jobs.batch.closing and jobs.remote not in self._cancelled:
                self._cancelled.add(jobs.remote)
                await api.cancel(jobs.remote)
            state = await api.state(jobs.remote)
            if not state.ended:
                await self._jobs.look_again(jobs, time.time() + self._poll_seconds)
                return True
            for url in state.results:
                await self._bring_home(api, jobs, url)
            await self._report(jobs, state.message)
        except StreamglotError as error:
            if not isinstance(error, StoreUnavailable):
                self._log(
                    {
                        "event": "provider_batch_unread",
                        "upstream": jobs.upstream,
                        "batch": jobs.batch.id,
                        "message": error.message,
                    }
                )
            await _repeated(lambda: self._jobs.look_again(jobs, time.time() + self._poll_seconds))
            return True
        await _repeated(lambda: self._jobs.landed(jobs))
        self._cancelled.discard(jobs.remote)
        self._settled({jobs.batch.id})
        return True

    async def _bring_home(self, api: ProviderAPI, jobs: RemoteJobs, url: str) -> None:
        """Commits the results of one list. Items that did not run have none."""
        held: list[RemoteResult] = []
        async for result in api.results(url):
            if result.body is not None:
                held.append(result)
            if len(held) >= COMMITTED_ITEMS:
                await self._commit(jobs, held)
                held = []
        await self._commit(jobs, held)

    async def _commit(self, jobs: RemoteJobs, results: list[RemoteResult]) -> None:
        items = {item.number: item for item in await self._jobs.items_of(jobs.batch.id, [result.number for result in results])}
        rows = []
        for result in results:
            item = items.pop(result.number, None)
            if item is not None and result.body is not None:
                answer = await self._runner.complete(jobs.batch, item, jobs.upstream, result.status, result.body)
                rows.append(result_of(jobs.batch, item, answer, max(1, answer.attempts), time.time()))
        await self._queue.commit(rows)

    async def _report(self, jobs: RemoteJobs, message: str) -> None:
        """Reports items that the provider did not run as failed, or as cancelled or expired if their batch is closing."""
        if jobs.batch.closing:
            return
        for first, last in jobs.ranges:
            rows = []
            for item in await self._jobs.items(jobs.batch.id, first, last):
                why = message or "the provider's batch ended before this request ran"
                error = {"message": why, "type": "server_error", "code": "provider_batch_ended"}
                rows.append(result_of(jobs.batch, item, Answer(502, msgspec.json.encode({"error": error})), 1, time.time()))
            await self._queue.commit(rows)


async def _repeated(write: Callable[[], Awaitable[None]]) -> None:
    """Writes until the database accepts it. Otherwise jobs that the provider has would wait until this process counts as dead,
    and might then be sent and paid again."""
    while True:
        try:
            await write()
        except StoreUnavailable:
            await asyncio.sleep(DATABASE_PAUSE)
        else:
            break


class RemoteJobs(Struct):
    """Ranges of items that go to a provider together."""

    batch: Batch
    upstream: str
    ranges: list[tuple[int, int]]
    remote: str = ""

    @property
    def name(self) -> str:
        """A name that is the same whenever the same ranges are sent, so that a batch whose id was lost can be found."""
        return f"{self.batch.id}-{self.ranges[0][0]}"


class ProviderQueue:
    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue
        self._database = queue.database

    async def any_waiting(self) -> bool:
        """Whether there is a job to send or to poll."""
        return bool(await self._database.fetch(_WAITING, now=time.time()))

    async def claim(self) -> RemoteJobs | None:
        """Claims jobs of one batch and one upstream that wait to be sent."""

        async def work(connection: Connection) -> RemoteJobs | None:
            found = await connection.fetch(_FIRST)
            if not found:
                return None
            [first] = found
            ranges, size = list[tuple[int, int]](), 0
            for row in await connection.fetch(_SAME, batch_id=first.batch_id, upstream=first.upstream):
                size += row.last - row.first
                if size > REMOTE_ITEMS:
                    break
                ranges.append((row.first, row.last))
            lease = time.time() + SENDING_SECONDS
            await _change(connection, first.batch_id, ranges, state=SENDING, process=self._queue.process, lease=lease)
            return RemoteJobs(await _batch(connection, first.batch_id), first.upstream.removeprefix(PROVIDER), ranges)

        return await self._database.write(work)

    async def items(self, batch_id: str, first: int, last: int) -> list[Item]:
        """The items of a range that have no result."""
        rows = await self._database.fetch(f"{UNFINISHED} ORDER BY number", batch_id=batch_id, first=first, last=last)
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def items_of(self, batch_id: str, numbers: Sequence[int]) -> list[Item]:
        """Those of these items that have no result."""
        if not numbers:
            return []
        question = f"{UNFINISHED} AND number IN :numbers ORDER BY number"
        rows = await self._database.fetch(question, batch_id=batch_id, first=0, last=2**31 - 1, numbers=list(numbers))
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def sent(self, jobs: RemoteJobs, remote: str, next_look: float) -> None:
        await self._change(jobs, state=REMOTE, remote=remote, lease=next_look)

    async def not_sent(self, jobs: RemoteJobs, upstream: str | None = None) -> None:
        """Puts jobs back into the queue. ``upstream``: run them as calls of this upstream from now on."""
        moved = "" if upstream is None else ", upstream = :upstream"
        release = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL {moved} WHERE {_THESE} AND state = '{SENDING}'"
        firsts = [first for first, _ in jobs.ranges]
        await self._database.execute(release, batch_id=jobs.batch.id, firsts=firsts, upstream=upstream)

    async def due(self) -> RemoteJobs | None:
        """Claims a provider's batch whose state is due to be polled. No other process polls it at the same time."""
        now = time.time()

        async def work(connection: Connection) -> RemoteJobs | None:
            found = await connection.fetch(_DUE, now=now)
            if not found:
                return None
            [first] = found
            same: SqlRow = {"batch_id": first.batch_id, "remote": first.remote}
            rows = await connection.fetch(f"SELECT first, last FROM batch_jobs WHERE {_TOGETHER} ORDER BY first", **same)
            take = f"UPDATE batch_jobs SET lease = :lease, process = :process WHERE {_TOGETHER}"
            await connection.execute(take, lease=now + POLLING_SECONDS, process=self._queue.process, **same)
            ranges = [(row.first, row.last) for row in rows]
            batch = await _batch(connection, first.batch_id)
            return RemoteJobs(batch, first.upstream.removeprefix(PROVIDER), ranges, first.remote)

        return await self._database.write(work)

    async def look_again(self, jobs: RemoteJobs, when: float) -> None:
        await self._change(jobs, lease=when)

    async def _change(self, jobs: RemoteJobs, **values: SqlValue) -> None:
        await self._database.write(lambda connection: _change(connection, jobs.batch.id, jobs.ranges, **values))

    async def landed(self, jobs: RemoteJobs) -> None:
        """Marks jobs whose results are all stored as done. Other jobs go back to the queue, or are closed."""

        release = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL, remote = NULL WHERE {_THESE}"

        async def work(connection: Connection) -> None:
            for first, last in jobs.ranges:
                if not await self._queue.finish_job(connection, jobs.batch.id, first, last):
                    await connection.execute(release, batch_id=jobs.batch.id, firsts=[first])

        await self._database.write(work)


async def _change(connection: Connection, batch_id: str, ranges: Sequence[tuple[int, int]], **values: SqlValue) -> None:
    """Sets these columns of jobs of one batch."""
    change = f"UPDATE batch_jobs SET {assignments(values)} WHERE {_THESE}"
    await connection.execute(change, batch_id=batch_id, firsts=[first for first, _ in ranges], **values)


async def _batch(connection: Connection, id: str) -> Batch:
    return batch_of((await connection.fetch("SELECT * FROM batches WHERE id = :id", id=id))[0])
