"""Durable batches against an instant mock upstream, beside a bare asyncio loop over our client: the limit. ``python -m bench.batch``.

    BENCH_ITEMS=5000       a short run (20,000 items by default)
    BENCH_MANY=1000000     the items of the large batch whose memory is compared with that of 10,000 items (100,000 by default)

One worker has a core, the upstream has the other; a second worker shares that. PostgreSQL, where there is one, has both.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from streamglot import Client
from streamglot.batch.catalog import Catalog
from streamglot.batch.files import DirectoryStorage
from streamglot.batch.importing import Importer
from streamglot.batch.model import FILE_API, Batch, File
from streamglot.batch.queue import BatchQueue
from streamglot.batch.rows import new_id
from streamglot.cli.commands.batch_worker import READY
from streamglot.events import StreamEnd
from streamglot.store import Store, StoreSettings
from streamglot.upstream import Upstream

from .candidates import gateway_command, mock
from .programs import GATEWAY_CORE, LOAD_CORE, ROOT, Ended, Missing, Program, compile_tools, free_port, raise_file_limit

ITEMS = int(os.environ.get("BENCH_ITEMS", "20000"))
FEW = 10_000
MANY = int(os.environ.get("BENCH_MANY", "100000"))
CONCURRENCY = 64
SHARE = 0.6
"""Of the limit that a worker should reach."""
LIVE_REQUESTS = 300
LIVE_ROUNDS = 5
LIVE_PAUSE = 0.01
"""Seconds between two live requests."""
MORE_LATENCY = 0.2
"""By how much a batch may slow live requests down."""
ENDPOINT = "/v1/chat/completions"
QUESTION = "What is the capital of the country with the longest coast? Answer in one word. "


def line(number: int) -> bytes:
    body = {"model": "mock-model", "messages": [{"role": "user", "content": f"{QUESTION}{number}"}]}
    return json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": ENDPOINT, "body": body}).encode() + b"\n"


# --- the limit


async def bare_loop(port: int, items: int) -> None:
    """The same calls by our client, without a queue, a store or results."""
    upstream = Upstream(name="mock", dialect="openai_chat", base_url=f"http://127.0.0.1:{port}/v1")
    numbers = iter(range(items))
    async with Client(upstreams=[upstream]) as client:

        async def calls() -> None:
            for number in numbers:
                last: object = None
                async for event in client.stream(model="mock-model", messages=f"{QUESTION}{number}", stream=False):
                    last = event
                assert isinstance(last, StreamEnd)

        begin, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(calls() for _ in range(CONCURRENCY)))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps({"rate": items / seconds, "cpu": cpu / items * 1e6}))


def limit(port: int) -> tuple[float, float]:
    """Items a second, and the CPU of each."""
    command = [sys.executable, "-m", "bench.batch", "loop", str(port), str(ITEMS)]
    found = json.loads(Program("bare-loop", command, GATEWAY_CORE).finished().splitlines()[-1])
    return float(found["rate"]), float(found["cpu"])


# --- workers


def config(folder: Path, port: int, store: str, content: bool, worker: bool = True) -> str:
    path = folder / f"batch-{content}-{worker}.toml"
    path.write_text(
        f'[server]\ndiscover = false\nlog = false\n[store]\nurl = "{store}"\ncontent = {str(content).lower()}\n'
        f'[batches]\nconcurrency = {CONCURRENCY}\ndirectory = "{folder}/files"\nworker = {str(worker).lower()}\n'
        f'[upstreams.mock]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
    )
    return str(path)


async def submit(store: Store, folder: Path, items: int) -> Batch:
    """A batch of this many items, read and ready to run."""
    queue = BatchQueue(store.database, store.process.id)
    catalog, storage = Catalog(store.database, queue), DirectoryStorage(folder / "files")

    async def chunks() -> AsyncIterator[bytes]:
        for first in range(0, items, 1000):
            yield b"".join(line(number) for number in range(first, min(items, first + 1000)))

    file = File(id=new_id("file-"), owner="", filename="in.jsonl", purpose="batch", bytes=0, created=time.time())
    file.bytes = await storage.save(file.id, chunks(), 2**40)
    await catalog.add_file(file)
    batch = Batch(
        id=new_id("batch_"), owner="", api=FILE_API, endpoint=ENDPOINT, input_file=file.id, status="validating", expires=2e9
    )
    await catalog.add_batch(batch, [])
    importer = Importer(
        store.database,
        queue,
        catalog,
        storage,
        route=lambda batch: lambda model: "mock",
        describe=lambda fault: b"",
        line_bytes=2**20,
        max_items=10**9,
    )
    claimed = await importer.claim()
    assert claimed is not None
    await importer.run(claimed)
    return batch


async def run_batch(
    folder: Path, port: int, url: str, items: int, workers: int, content: bool
) -> tuple[float, float, int, float]:
    """Items a second, CPU of each, the largest worker's memory, and the longest question for the progress."""
    store = await Store.open(StoreSettings(url=url))
    batch = await submit(store, folder, items)
    queue = BatchQueue(store.database, store.process.id)
    catalog = Catalog(store.database, queue)
    command = [gateway_command(), "batch", "worker", "--config", config(folder, port, url, content)]
    cores = (GATEWAY_CORE, LOAD_CORE)  # a second worker shares a core with the upstream, which needs little of it
    programs = [Program(f"batch-worker-{number}", command, cores[number]) for number in range(workers)]
    try:
        for program in programs:
            program.wait_for_text(READY)
        cpu = sum(program.cpu_seconds() for program in programs)
        resident, progress, begin, began = 0, 0.0, 0.0, 0
        while True:
            for program in programs:
                program.check()
            asked = time.perf_counter()
            now = await catalog.batch(batch.id, None)
            assert now is not None
            totals = await queue.totals(now)
            progress = max(progress, time.perf_counter() - asked)
            if totals.done and not begin:
                begin, began = time.perf_counter(), totals.done
            resident = max([resident, *(program.resident_bytes() for program in programs)])
            if now.ended is not None:
                break
            await asyncio.sleep(0.1)
        assert now.totals is not None
        assert now.totals.succeeded == items, now
        rate = (items - began) / (now.ended - (time.time() - (time.perf_counter() - begin)))
        spent = sum(program.cpu_seconds() for program in programs) - cpu
    finally:
        for program in programs:
            program.stop()
        await store.close()
    return rate, spent / items * 1e6, resident, progress


def throughput(port: int, databases: dict[str, Callable[[], str]]) -> None:
    """The limit is measured anew before each run, so that what else happens on the machine happens to both."""
    for name, make in databases.items():
        for workers in (1, 2):
            for content in (True, False):
                most, least_cpu = limit(port)
                with tempfile.TemporaryDirectory() as directory:
                    rate, cpu, _, progress = asyncio.run(run_batch(Path(directory), port, make(), ITEMS, workers, content))
                what = f"{name}, {workers} worker{'s' * (workers > 1)}, turns {'with' if content else 'without'} contents"
                verdict = f"{rate / most:4.0%} of the limit" + ("" if rate >= SHARE * most else f", BELOW {SHARE:.0%}")
                print(
                    f"  {what:44} {rate:6.0f} items/s, bare loop {most:6.0f}: {verdict}; {cpu:4.0f} µs CPU an item, "
                    f"bare loop {least_cpu:4.0f}; progress within {progress * 1e3:.0f} ms",
                    flush=True,
                )


def memory(port: int) -> None:
    found = {}
    for items in (FEW, MANY):
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite:///{directory}/s.db"
            rate, _, resident, progress = asyncio.run(run_batch(Path(directory), port, url, items, 1, False))
            found[items] = resident
            size = f"{resident / 2**20:5.0f} MB resident"
            print(f"  {items:9,} items  {size}  {rate:6.0f} items/s  progress within {progress * 1e3:.0f} ms", flush=True)
    print(f"  growth by {found[MANY] / found[FEW] - 1:.1%}")


# --- live requests beside a batch


def live(port: int) -> None:
    """In turns, so that what else happens on the machine happens to both."""
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside a batch": []}
    for _ in range(LIVE_ROUNDS):
        for name, figures in found.items():
            times = sorted(live_round(port, 0 if name == "alone" else ITEMS))
            figures.append((statistics.median(times), times[int(len(times) * 0.99)]))
    medians = {name: [statistics.median(column) for column in zip(*figures, strict=True)] for name, figures in found.items()}
    for name, (p50, p99) in medians.items():
        print(f"  live requests {name:16} p50 {p50 * 1e3:6.2f} ms  p99 {p99 * 1e3:6.2f} ms  (medians of {LIVE_ROUNDS} rounds)")
    for place, name in enumerate(("p50", "p99")):
        more = medians["beside a batch"][place] / medians["alone"][place] - 1
        print(f"  {name} grows by {more:.0%}{'' if more <= MORE_LATENCY else f', ABOVE {MORE_LATENCY:.0%}'}")


def live_round(port: int, items: int) -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        folder, url, own = Path(directory), f"sqlite:///{directory}/s.db", free_port()
        if items:
            asyncio.run(_submitted(url, folder, items))
        command = [gateway_command(), "serve", "--port", str(own), "--config", config(folder, port, url, False)]
        gateway = Program("batch-live", command, GATEWAY_CORE)
        try:
            gateway.wait_for(own)
            return latencies(own)
        finally:
            gateway.stop()


async def _submitted(url: str, folder: Path, items: int) -> None:
    store = await Store.open(StoreSettings(url=url))
    await submit(store, folder, items)
    await store.close()


def latencies(port: int) -> list[float]:
    """Requests of four clients, each waiting a moment between two."""
    found: list[float] = []
    body = json.dumps({"model": "mock-model", "messages": [{"role": "user", "content": "mock:p=20000"}]})

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(LIVE_REQUESTS):
            begin = time.perf_counter()
            connection.request("POST", ENDPOINT, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            if number > LIVE_REQUESTS // 10:
                found.append(time.perf_counter() - begin)
            time.sleep(LIVE_PAUSE)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# --- all of it


def postgres() -> Any:
    """A server of its own from a wheel, as the tests have it; None where there is none."""
    sys.path.insert(0, str(ROOT / "tests"))
    from store.servers import NoServer, Postgres

    try:
        return Postgres()
    except NoServer as error:
        print(f"PostgreSQL is NOT MEASURED: {error}")
        return None


def main(parts: list[str]) -> None:
    compile_tools()
    raise_file_limit()
    port = free_port()
    upstream = mock(port)
    upstream.wait_for(port)
    server = postgres() if "throughput" in parts else None
    try:
        if "throughput" in parts:
            print(f"{ITEMS} items, {CONCURRENCY} calls at once")
            with tempfile.TemporaryDirectory() as directory:
                names = iter(range(1000))
                databases: dict[str, Callable[[], str]] = {"SQLite": lambda: f"sqlite:///{directory}/{next(names)}.db"}
                if server is not None:
                    databases["PostgreSQL"] = lambda: asyncio.run(server.database())
                throughput(port, databases)
        if "memory" in parts:
            print("memory of a worker")
            memory(port)
        if "live" in parts:
            print("live requests of four clients")
            live(port)
    finally:
        upstream.stop()
        if server is not None:
            server.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["loop"]:
        try:
            import uvloop
        except ModuleNotFoundError:
            asyncio.run(bare_loop(int(sys.argv[2]), int(sys.argv[3])))
        else:
            uvloop.run(bare_loop(int(sys.argv[2]), int(sys.argv[3])))
    else:
        try:
            main(sys.argv[1:] or ["throughput", "memory", "live"])
        except (Missing, Ended) as error:
            sys.exit(f"NOT MEASURED: {error}")
