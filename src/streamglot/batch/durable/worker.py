"""The worker: claims jobs, runs their items, and commits the results.

    claim (a range) -> ready items, by upstream -> calls, within the pace of each upstream -> results -> commit -> free slots

A call holds its slot until its result is committed. Therefore a process that dies loses at most ``concurrency`` calls, and an
unavailable database stops new calls and loses none. An item that failed with a transient error waits without a slot and runs
again. The runner decides how an item is run.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from ...errors import FOREIGN_ERRORS
from ...store.database import StoreUnavailable
from ...tasks import TaskSupervisor, within
from .background import BackgroundTraffic
from .model import RANGE_ITEMS, Answer, Batch, Item, Job, Result, request_name, result_of
from .queue import BatchQueue, Key

POLL_SECONDS: Final = 10.0
"""Seconds between two polls of an idle worker. It is also woken when there are batches that have not ended."""
RENEW_SECONDS: Final = 1.0
"""Seconds between two renewals of leases. A cancelled batch is noticed within this time."""
FIRST_PAUSE: Final = 0.5
"""Seconds before an item runs again. The pause doubles each time, up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE: Final = 60.0
"""Seconds. Rate limits are mostly per minute, so a longer pause gains nothing."""
LIVE_START_SECONDS: Final = 0.02
"""Seconds between the starts of two calls while this process serves live requests. A call takes about 0.4 ms of the event loop,
so a batch takes a fiftieth of it. 50 calls a second keep 32 slots busy if answers take longer than 0.6 s, as usual."""
LIVE_COMMIT_SECONDS: Final = 0.1
"""Seconds. Results within this time are committed together while live requests are served: each commit interrupts them."""
COMMIT_SECONDS: Final = 0.01
"""Seconds that a result waits, so that it is committed together with others, unless half of all slots have a result. A commit
costs as much as three calls. No call of a model is so short that the wait matters."""
LIVE_RANGE_ITEMS: Final = 20
"""Items of a claim while live requests are served, for the same reason."""
CLAIMED_JOBS: Final = 4
"""Jobs of one claim, while there are plenty. A claim costs as much as ten calls. The jobs are 16 MB at most."""
HELD_ITEMS: Final = 10 * RANGE_ITEMS
"""Items that wait in this worker for an upstream or another attempt. Further items stay in the queue for other workers."""
DATABASE_PAUSE: Final = 0.5
"""Seconds between two attempts to write to a database that does not answer."""


class Runner(Protocol):
    """Runs one item. It never raises: an error is an answer."""

    async def run(self, batch: Batch, item: Item, request_id: str) -> Answer: ...


class _HeldJob(Struct):
    """A job of this worker. ``left``: items without a committed result. ``running``: calls in progress or not committed."""

    job: Job
    left: int
    running: int = 0
    dropped: bool = False

    @property
    def key(self) -> Key:
        return self.job.batch.id, self.job.first


class _Call(Struct):
    """An item in progress. ``attempts`` counts calls of upstreams, ``failures`` the runs that count against the item."""

    held: _HeldJob
    item: Item
    attempts: int = 0
    failures: int = 0


class Worker:
    """``concurrency``: concurrent calls. ``attempts``: how often an item is run before its failure becomes its result. ``live``
    returns whether this process serves live requests; the worker then uses only a small share of it. ``settled`` is called with
    the batches of which this worker has no more jobs."""

    def __init__(
        self,
        queue: BatchQueue,
        runner: Runner,
        traffic: BackgroundTraffic,
        tasks: TaskSupervisor,
        *,
        concurrency: int,
        attempts: int,
        live: Callable[[], bool] = lambda: False,
        settled: Callable[[set[str]], None] = lambda ids: None,
    ) -> None:
        self._queue = queue
        self._runner = runner
        self._traffic = traffic
        self._tasks = tasks
        self._concurrency = concurrency
        self._attempts = attempts
        self._live = live
        self._settled = settled
        self._jobs: dict[Key, _HeldJob] = {}
        self._ready: dict[str, deque[_Call]] = defaultdict(deque)
        self._delayed: list[tuple[float, int, _Call]] = []
        self._sequence = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._results: list[tuple[_Call, Result]] = []
        self._start = asyncio.Event()
        self._claim = asyncio.Event()
        self._commit = asyncio.Event()
        self._full = asyncio.Event()
        self._group = max(1, concurrency // 2)
        self._stopping = False
        self._idle = True
        self._unsure = True  # the database may list a job as ours whose claim was never confirmed
        self._next_start = 0.0
        self._owning = asyncio.Lock()

    # --- life cycle

    def start(self) -> None:
        self._tasks.start("batch calls", self._starting)
        self._tasks.start("batch claims", self._claiming)
        self._tasks.start("batch results", self._committing)
        self._tasks.start("batch leases", self._renewing)

    def wake(self) -> None:
        """Tells the worker that there may be new jobs."""
        self._claim.set()
        self._start.set()

    async def stop(self, seconds: float) -> None:
        """Starts nothing more, waits this long for the running calls, and gives the rest back."""
        self._stopping = True
        until = time.monotonic() + seconds
        while self._busy and time.monotonic() < until:
            await asyncio.sleep(0.02)
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        with suppress(StoreUnavailable):
            async with self._owning:  # a claim in progress ends first
                await self._queue.give_back(list(self._jobs))

    @property
    def busy(self) -> int:
        """The number of calls that hold a slot."""
        return self._busy

    # --- claiming

    async def _claiming(self) -> None:
        while not self._stopping:
            self._claim.clear()
            claimed = False
            if self._has_room():
                try:
                    claimed = await self._claim_some()
                except StoreUnavailable:
                    self._unsure = True
                    await asyncio.sleep(DATABASE_PAUSE)
            if not claimed:
                await within(self._claim, POLL_SECONDS)

    def _has_room(self) -> bool:
        """Whether fewer items are here than can soon be started. Items of a paused upstream do not count, to a limit."""
        resting = set(self._traffic.paused())
        soon = sum(len(calls) for upstream, calls in self._ready.items() if upstream not in resting)
        held = sum(held.left for held in self._jobs.values())
        return not self._stopping and soon < max(1, self._concurrency // 2) and held < HELD_ITEMS + self._concurrency

    async def _claim_some(self) -> bool:
        if self._idle and not await self._queue.has_open():  # a cheap query for an idle worker
            return False
        async with self._owning:
            if self._stopping:
                return False
            jobs = await self._queue.claim_some(self._traffic.paused(), *self._claim_size())
            self._idle = not jobs
            some = [_HeldJob(job, len(job.items)) for job in jobs]
            self._jobs.update({held.key: held for held in some})
        for held in some:
            if held.left:
                self._ready[held.job.upstream].extend([_Call(held, item) for item in held.job.items])
            else:  # all results are stored, but the owner died before it ended the job
                await self._commit_retried([], [held.job])
                self._forget([held])
        self._start.set()
        return bool(jobs)

    def _claim_size(self) -> tuple[int, int]:
        """How many items of a job, and how many jobs, this worker can soon start. The rest stays for other workers."""
        if self._live():
            return min(LIVE_RANGE_ITEMS, 4 * self._concurrency), 1
        return min(RANGE_ITEMS, 4 * self._concurrency), max(1, min(CLAIMED_JOBS, 8 * self._concurrency // RANGE_ITEMS))

    # --- calling

    async def _starting(self) -> None:
        while not self._stopping:
            self._start.clear()
            wait = self._start_ready()
            if self._has_room():
                self._claim.set()
            await within(self._start, wait)

    def _start_ready(self) -> float:
        """Starts what may start now. Returns the seconds until something else may."""
        now = time.monotonic()
        wait = POLL_SECONDS
        while self._delayed and self._delayed[0][0] <= now:
            call = heapq.heappop(self._delayed)[2]
            self._ready[call.held.job.upstream].append(call)
        if self._delayed:
            wait = min(wait, self._delayed[0][0] - now)
        live = self._live()
        for upstream in list(self._ready):
            calls, pace = self._ready[upstream], self._traffic.pace(upstream)
            while calls and self._busy < self._concurrency:
                delay = pace.delay(now, min(len(calls), self._concurrency - self._busy))
                delay = max(delay, self._next_start - now if live else 0.0)
                if delay > 0:
                    wait = min(wait, delay)
                    break
                self._next_start = now + LIVE_START_SECONDS
                self._begin(calls.popleft(), now)
            if not calls:
                del self._ready[upstream]
        return max(0.001, wait)

    def _begin(self, call: _Call, now: float) -> None:
        held = call.held
        if held.dropped:
            self._drop(held)
            return
        self._busy += 1
        held.running += 1
        self._traffic.pace(held.job.upstream).started(now)
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _run(self, call: _Call) -> None:
        """Runs one item. Its slot becomes free when its result is committed, or when it waits for another attempt."""
        held, batch = call.held, call.held.job.batch
        pace = self._traffic.pace(held.job.upstream)
        try:
            answer = await self._runner.run(batch, call.item, request_name(batch, call.item.number))
        except asyncio.CancelledError:
            self._release(held)
            raise
        except FOREIGN_ERRORS as error:  # an internal error in one item must not stop the others
            self._tasks.report("batch item", error)
            message = "internal error of the gateway; its log has the details"
            fault = {"error": {"message": message, "type": "server_error", "code": None}}
            answer = Answer(500, msgspec.json.encode(fault))
        finally:
            pace.ended()
        call.attempts += answer.attempts if answer.throttled else max(1, answer.attempts)  # a limit of ours makes no call
        if answer.succeeded:
            pace.succeeded(answer.input_tokens + answer.output_tokens)
        elif answer.retry and self._again(call, answer):
            return
        result = result_of(batch, call.item, answer, call.attempts, time.time())
        self._results.append((call, result))
        self._commit.set()
        if len(self._results) == self._group:
            self._full.set()

    def _again(self, call: _Call, answer: Answer) -> bool:
        """Puts an item back that may succeed later. A rate limit does not count as a failure: only expiry ends it."""
        if not answer.throttled:
            call.failures += 1
            if call.failures >= self._attempts:
                return False
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(10, call.failures)) * random.uniform(0.5, 1.0)
        when = time.monotonic() + max(pause, answer.retry_after or 0.0)
        self._sequence += 1
        heapq.heappush(self._delayed, (when, self._sequence, call))
        self._release(call.held)
        self._start.set()
        return True

    def _release(self, held: _HeldJob) -> None:
        self._busy -= 1
        held.running -= 1
        if held.dropped:
            self._drop(held)
        if not self._start.is_set():
            self._start.set()

    # --- committing

    async def _committing(self) -> None:
        """Commits all results that came since the last commit, in one transaction."""
        while True:
            await self._commit.wait()
            self._full.clear()
            if len(self._results) < self._group:
                await within(self._full, LIVE_COMMIT_SECONDS if self._live() else COMMIT_SECONDS)
            self._commit.clear()
            some, self._results = self._results, []
            if not some:
                continue
            left: Counter[Key] = Counter(call.held.key for call, _ in some)
            ended = [held for key, count in left.items() if (held := self._jobs.get(key)) is not None and held.left == count]
            try:
                await self._commit_retried([result for _, result in some], [held.job for held in ended])
            except Exception:  # an internal error: the results stay, and are committed when the supervisor restarts this task
                self._results[:0] = some
                self._commit.set()
                raise
            for call, _ in some:
                call.held.left -= 1
                self._release(call.held)
            self._forget(ended)

    async def _commit_retried(self, results: list[Result], jobs: list[Job]) -> None:
        """Commits until the database accepts it. Meanwhile the slots stay taken, so that no result can be lost."""
        while True:
            try:
                await self._queue.commit(results, jobs)
            except StoreUnavailable:
                await asyncio.sleep(DATABASE_PAUSE)
            else:
                break

    def _forget(self, ended: list[_HeldJob]) -> None:
        """Removes jobs that have ended. A batch may have ended with them if this worker has no other job of it."""
        for held in ended:
            self._jobs.pop(held.key, None)
        if ended:
            self._claim.set()
            self._settled({held.job.batch.id for held in ended}.difference(id for id, _ in self._jobs))

    # --- leases

    async def _renewing(self) -> None:
        while not self._stopping:
            await asyncio.sleep(RENEW_SECONDS)
            if not self._jobs and not self._unsure:
                continue
            try:
                async with self._owning:  # a job is ours in the database before it is in our list
                    held = set(self._jobs)
                    ours, closing = await self._queue.renew(held)
                    self._unsure = False
                self._traffic.workers = await self._queue.workers()
            except StoreUnavailable:
                continue
            for key in held:
                job = self._jobs.get(key)
                if job is not None and (key not in ours or key[0] in closing):
                    job.dropped = True
                    self._drop_waiting(job)

    def drop_batch(self, batch_id: str) -> None:
        """Stops starting items of a batch of this process that was cancelled."""
        for held in [held for held in self._jobs.values() if held.job.batch.id == batch_id]:
            held.dropped = True
            self._drop_waiting(held)

    def _drop_waiting(self, held: _HeldJob) -> None:
        for upstream, calls in list(self._ready.items()):
            self._ready[upstream] = deque(call for call in calls if call.held is not held)
        self._delayed = [entry for entry in self._delayed if entry[2].held is not held]
        heapq.heapify(self._delayed)
        self._drop(held)

    def _drop(self, held: _HeldJob) -> None:
        """Gives a job back once none of its items runs."""
        if held.running == 0 and self._jobs.pop(held.key, None) is not None:
            self._tasks.spawn("batch job given back", self._give_back(held))

    async def _give_back(self, held: _HeldJob) -> None:
        while True:
            try:
                await self._queue.give_back([held.key])
            except StoreUnavailable:
                await asyncio.sleep(DATABASE_PAUSE)
            else:
                break
        self._settled({held.job.batch.id})
