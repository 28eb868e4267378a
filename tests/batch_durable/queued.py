"""A store with batches in it, for the tests of the queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streamglot.batch.durable.catalog import Catalog
from streamglot.batch.durable.importer import Importer
from streamglot.batch.durable.model import FILE_API, Batch, File, Job, LineError, Result, new_id
from streamglot.batch.durable.queue import BatchQueue
from streamglot.batch.durable.storage import DirectoryStorage
from streamglot.errors import RequestError
from streamglot.store import Store, StoreSettings

ENDPOINT = "/v1/chat/completions"


def line(custom_id: object, model: str = "m", url: str = ENDPOINT, **more: Any) -> bytes:
    custom_id = str(custom_id) if isinstance(custom_id, int) else custom_id
    body = {"model": model, "messages": [{"role": "user", "content": f"question {custom_id}"}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}).encode()


def route(model: str) -> str:
    if model == "unknown":
        raise RequestError("no upstream serves the model 'unknown'", code="model_not_found", status=404)
    return model


class Queued:
    """One process: its queue, catalog and importer."""

    def __init__(self, store: Store, folder: Path, **options: Any) -> None:
        self.store = store
        self.database = store.database
        self.queue = BatchQueue(store.database, store.process.id)
        self.catalog = Catalog(store.database, self.queue)
        self.storage = DirectoryStorage(folder)
        settings: dict[str, Any] = {"line_bytes": 10_000, "max_items": 100_000, **options}
        self.importer = Importer(
            self.database,
            self.queue,
            self.catalog,
            self.storage,
            route=lambda batch: route,
            describe=lambda fault: b'{"type":"error"}',
            **settings,
        )

    async def add(self, lines: Iterable[bytes], api: str = FILE_API, **more: Any) -> Batch:
        """A batch of these lines, not imported yet."""

        async def chunks() -> AsyncIterator[bytes]:
            for one in lines:
                yield one + b"\n"

        file = File(id=new_id("file-"), owner="me", filename="in.jsonl", purpose="batch", bytes=0, created=1.0)
        file.bytes = await self.storage.save(file.id, chunks(), 2**30)
        await self.catalog.add_file(file)
        options: dict[str, Any] = {
            "owner": "me",
            "api": api,
            "endpoint": ENDPOINT,
            "status": "validating",
            "expires": 2e9,
            **more,
        }
        batch = Batch(id=new_id("batch_"), input_file=file.id, **options)
        await self.catalog.add_batch(batch, [])
        return batch

    async def imported(self, lines: Iterable[bytes], **more: Any) -> Batch:
        batch = await self.add(lines, **more)
        claimed = await self.importer.claim()
        assert claimed is not None
        assert claimed.id == batch.id
        await self.importer.run(claimed)
        return await self.now(batch)

    async def now(self, batch: Batch) -> Batch:
        found = await self.catalog.batch(batch.id, None)
        assert found is not None
        return found

    async def lines_of(self, batch: Batch, succeeded: bool | None) -> list[Any]:
        data = b"".join([page async for page in self.catalog.lines(batch, succeeded)])
        return [json.loads(one) for one in data.splitlines()]


def results_of(job: Job, succeeded: Callable[[int], bool] = lambda number: True) -> list[Result]:
    """A result for each item of a job."""
    return [
        Result(
            job.batch.id,
            item.number,
            "succeeded" if succeeded(item.number) else "errored",
            json.dumps({"custom_id": item.custom_id}).encode(),
            input_tokens=2,
            output_tokens=3,
        )
        for item in job.items
    ]


def fault_codes(errors: list[LineError]) -> list[tuple[int | None, str]]:
    return [(error.line, error.code) for error in errors]


@asynccontextmanager
async def queued(url: str, folder: Path, **options: Any) -> AsyncIterator[Queued]:
    store = await Store.open(StoreSettings(url=url))
    try:
        yield Queued(store, folder / "files", **options)
    finally:
        await store.close()
