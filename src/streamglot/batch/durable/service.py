"""The batch service of one process: files, batches, the import of input files, the worker, and the periodic upkeep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Protocol

from ...config import BatchesConfig
from ...counters.valkey import SharedLimits
from ...errors import LimitExceeded, RequestError
from ...store import Store
from ...store.database import Database, StoreUnavailable
from ...store.database.paths import data_directory
from ...tasks import TaskSupervisor, WriteLine, within
from .background import BackgroundTraffic
from .catalog import Catalog
from .importer import Importer, Route
from .model import FILE_API, Batch, File, LineError, new_id
from .provider import ProviderRelay, RemoteRunner
from .queue import BatchQueue
from .storage import DirectoryStorage, FileStorage, FileStorageUnavailable
from .worker import Runner, Worker

UPKEEP_SECONDS: Final = 1.0
"""Seconds between two checks for dead workers, new batches and expired ones."""
SETTLE_SECONDS: Final = 0.05
"""Seconds. Jobs that end within this time are processed together."""
REMOVAL_SECONDS: Final = 60.0
"""Seconds between two removals of expired files and results."""
DAY: Final = 86_400.0


class ItemRunner(Runner, RemoteRunner, Protocol):
    """Runs items as calls, and prepares and completes items that a provider's batch runs."""


class BatchService:
    """``route`` and ``describe`` are passed to the importer. ``database`` is the store's database over separate connections.
    ``limits`` counts the calls of all workers together; without it, each worker counts its own."""

    def __init__(
        self,
        store: Store,
        config: BatchesConfig,
        tasks: TaskSupervisor,
        *,
        route: Callable[[Batch], Route],
        describe: Callable[[LineError], bytes],
        line_bytes: int,
        storage: FileStorage | None = None,
        database: Database | None = None,
        limits: SharedLimits | None = None,
    ) -> None:
        database = database or store.database
        self.config = config
        self.queue = BatchQueue(database, store.process.id)
        self.catalog = Catalog(database, self.queue)
        self.storage = storage or DirectoryStorage(_directory(store, config))
        self.traffic = BackgroundTraffic(config.concurrency, limits=limits)
        self._limits = limits
        self.worker: Worker | None = None
        self._relay: ProviderRelay | None = None
        self._tasks = tasks
        self._own_database = database if database is not store.database else None
        self._importer = Importer(
            database,
            self.queue,
            self.catalog,
            self.storage,
            route=route,
            describe=describe,
            line_bytes=line_bytes,
            max_items=config.max_items,
            strict=config.bad_lines == "fail",
        )
        self._look = asyncio.Event()
        self._new = asyncio.Event()
        self._settle: set[str] = set()
        self._look_at = self._remove_at = 0.0

    def start(
        self,
        runner: ItemRunner | None,
        live: Callable[[], bool] = lambda: False,
        log: WriteLine = lambda line: None,
    ) -> None:
        """Starts the upkeep, and a worker if there is a runner. ``live`` returns whether this process serves live requests."""
        if runner is not None:
            self.worker = Worker(
                self.queue,
                runner,
                self.traffic,
                self._tasks,
                concurrency=self.config.concurrency,
                attempts=self.config.attempts,
                live=live,
                settled=self._settle_soon,
            )
            self.worker.start()
            if self._limits is not None:
                self._limits.wake = self.worker.wake
                self._tasks.start("rate limits", self._limits.run)
            self._relay = ProviderRelay(
                self.queue, runner, poll_seconds=self.config.poll_seconds, settled=self._settle_soon, log=log
            )
            self._tasks.start("provider batches", self._relay.run)
        self._tasks.start("batch upkeep", self._upkeep)
        self._tasks.start("batch imports", self._importing)

    async def stop(self, seconds: float) -> None:
        """Waits this long for the running calls, and gives the rest back."""
        if self.worker is not None:
            await self.worker.stop(seconds)
        if self._limits is not None:
            self._limits.stop()

    async def close(self) -> None:
        """Closes the storage, the limits and the separate connections. All tasks must have ended."""
        await self.storage.close()
        if self._limits is not None:
            await self._limits.close()
        if self._own_database is not None:
            await self._own_database.close()

    # --- files

    async def save_upload(self, file: File, chunks: AsyncIterator[bytes]) -> None:
        """Stores the contents of an uploaded file and sets its size. Raises if the file, or all files of its owner together, are
        too large. Uploads of the same owner at the same moment are not counted against each other."""
        maximum, quota = self.config.max_file_bytes, self.config.max_key_bytes
        if not quota:
            file.bytes = await self.storage.save(file.id, chunks, maximum)
            return
        used = await self.catalog.uploaded_bytes(file.owner)
        try:
            file.bytes = await self.storage.save(file.id, chunks, min(maximum, max(0, quota - used)))
        except LimitExceeded:
            if quota - used >= maximum:
                raise
            raise RequestError(
                f"the uploaded files of this key would have more than {quota} bytes together (batches.max_key_bytes), and {used} of "
                "them are in use; delete files with DELETE /v1/files/ID",
                code="file_quota_exceeded",
                status=413,
            ) from None

    async def remove_file(self, file: File) -> None:
        """Removes the contents, then the file's row. If the storage does not answer, the row stays, so that nothing is orphaned."""
        if file.batch_id is None:
            await self.storage.remove(file.id)
        await self.catalog.remove_file(file.id)

    async def contents(self, file: File) -> AsyncIterator[bytes]:
        """The contents of a file. For a batch's output or error file these are the results so far."""
        batch = await self.catalog.batch(file.batch_id, None) if file.batch_id is not None else None
        source = self.catalog.lines(batch, batch.output_file == file.id) if batch is not None else self.storage.chunks(file.id)
        async for chunk in source:
            yield chunk

    # --- batches

    async def create(self, batch: Batch, results_seconds: float | None = None) -> Batch:
        """Adds a batch whose input file is stored. Its results can be read from now on, as far as they exist."""
        now = time.time()
        batch.created, batch.times = now, {"validating": now}
        batch.expires = batch.expires or now + self.config.window_seconds
        batch.results_expire = now + (results_seconds or self.config.keep_days * DAY)
        results = []
        if batch.api == FILE_API:
            for name in ("output", "error"):
                file = File(
                    id=new_id("file-"),
                    owner=batch.owner,
                    filename=f"{batch.id}_{name}.jsonl",
                    purpose="batch_output",
                    bytes=0,
                    created=now,
                    expires=batch.results_expire,
                    batch_id=batch.id,
                )
                results.append(file)
            batch.output_file, batch.error_file = results[0].id, results[1].id
        await self.catalog.add_batch(batch, results)
        self._new.set()
        return batch

    async def cancel(self, batch: Batch) -> None:
        """Stops starting items of this batch."""
        if await self.catalog.close_batch(batch.id, "cancelled"):
            if self.worker is not None:
                self.worker.drop_batch(batch.id)
            self._settle_soon({batch.id})

    # --- upkeep

    def _settle_soon(self, ids: set[str]) -> None:
        if ids:
            self._settle |= ids
            self._look.set()

    async def _upkeep(self) -> None:
        """Ends batches soon after their last job, and checks all batches periodically."""
        while True:
            if await within(self._look, UPKEEP_SECONDS):
                self._look.clear()
                await asyncio.sleep(SETTLE_SECONDS)
            try:
                await self._end_batches()
                if time.monotonic() >= self._look_at:
                    self._look_at = time.monotonic() + UPKEEP_SECONDS
                    await self._look_at_all()
            except StoreUnavailable:
                await asyncio.sleep(UPKEEP_SECONDS)

    async def _end_batches(self) -> None:
        """Ends the batches whose last job has ended."""
        soon, self._settle = self._settle, set()
        try:
            for id in soon:
                await self.catalog.settle(id)
        except StoreUnavailable:
            self._settle |= soon
            raise

    async def _importing(self) -> None:
        """Imports input files. It is separate from the upkeep because a large file takes long."""
        while True:
            await self._new.wait()
            self._new.clear()
            try:
                while (batch := await self._importer.claim()) is not None:
                    await self._importer.run(batch)
                    self._wake()
                    self._settle_soon({batch.id})
            except (StoreUnavailable, FileStorageUnavailable):
                await asyncio.sleep(UPKEEP_SECONDS)

    async def _look_at_all(self) -> None:
        """Checks all batches. It costs one query if there is nothing to do."""
        now = time.time()
        unended = await self.catalog.unended()
        if unended:
            await self.queue.recover()
            self._wake()
        if any(batch.status == "validating" for batch in unended):
            self._new.set()
        for batch in unended:
            if now >= batch.expires and not batch.closing:
                await self.catalog.close_batch(batch.id, "expired")
                if self.worker is not None:
                    self.worker.drop_batch(batch.id)
            await self.catalog.settle(batch.id)
        if now >= self._remove_at:
            self._remove_at = float("inf")  # until this removal has ended
            self._tasks.spawn("batch removals", self._remove_old(now))

    async def _remove_old(self, now: float) -> None:
        """Removes what has expired. It is separate from the upkeep because a storage may take long."""
        try:
            for batch in await self.catalog.outdated(now):
                await self.catalog.remove_batch(batch.id)
            await self.storage.clean()
            for file in await self.catalog.expired_files(now):
                await self.remove_file(file)
        except (StoreUnavailable, FileStorageUnavailable):
            pass  # what is left is removed next time
        finally:
            self._remove_at = time.time() + REMOVAL_SECONDS

    def _wake(self) -> None:
        if self.worker is not None:
            self.worker.wake()
        if self._relay is not None:
            self._relay.wake()


def _directory(store: Store, config: BatchesConfig) -> Path:
    """The directory of uploaded files: as configured, beside a database file, or in the user's data directory."""
    if config.directory:
        return Path(config.directory).expanduser()
    file = store.database.file
    return file.with_name(f"{file.name}-files") if file is not None else data_directory() / "files"
