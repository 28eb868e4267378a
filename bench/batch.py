"""Durable batches against an instant mock upstream, beside a bare asyncio loop over our client: the limit. ``python -m
bench.batch``.

    BENCH_ITEMS=5000                    a short run (20,000 items by default)
    BENCH_ROUNDS=3                      runs of each kind, alternating with the bare loop; medians are printed (1 by default)
    BENCH_MEMORY=10000,100000,1000000   the sizes of the batches whose memory is compared (10000,100000 by default)
    BENCH_DATABASE=postgresql           the database of the memory runs (sqlite by default)

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamglot import Client
from streamglot.batch.durable.catalog import Catalog
from streamglot.batch.durable.importer import Importer
from streamglot.batch.durable.model import FILE_API, Batch, File, new_id
from streamglot.batch.durable.queue import BatchQueue
from streamglot.batch.durable.storage import DirectoryStorage
from streamglot.batch.runner import collected
from streamglot.cli.commands.batch import READY
from streamglot.messages import Message, Request, TextPart
from streamglot.store import Store, StoreSettings
from streamglot.upstream import Upstream

from .candidates import gateway_command, mock
from .programs import (
    GATEWAY_CORE,
    LOAD_CORE,
    ROOT,
    Ended,
    Missing,
    Program,
    compile_tools,
    free_port,
    raise_file_limit,
    tree_cpu_seconds,
)

ITEMS = int(os.environ.get("BENCH_ITEMS", "20000"))
SIZES = [int(size) for size in os.environ.get("BENCH_MEMORY", "10000,100000").split(",")]
MEMORY_DATABASE = os.environ.get("BENCH_DATABASE", "sqlite")
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "1"))
CONCURRENCY = 64
SHARE = 0.6
"""The share of the limit that a worker should reach."""
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
    """The same calls by our client, each answered as a whole, without a queue, a store or results."""
    upstream = Upstream(name="mock", dialect="openai_chat", base_url=f"http://127.0.0.1:{port}/v1")
    numbers = iter(range(items))
    async with Client(upstreams=[upstream]) as client:

        async def calls() -> None:
            for number in numbers:
                message = Message("user", [TextPart(f"{QUESTION}{number}")])
                request = Request(model="mock-model", messages=[message], stream=False)
                outcome = await collected(client.pool, client.exchange(request, collects=True))
                assert outcome.error is None, outcome.error

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
    if claimed is not None:  # otherwise a worker was faster
        await importer.run(claimed)
    return batch


@dataclass
class Run:
    """``rate``: items a second, from the first result to the last. ``cpu``: microseconds of the workers for each item. ``resident``: bytes of the largest worker, at
    most; ``last_resident`` at the end. ``progress``: seconds of the longest query for the progress."""

    rate: float
    cpu: float
    resident: int
    last_resident: int
    progress: float


async def run_batch(folder: Path, port: int, url: str, items: int, workers: int, content: bool) -> Run:
    store = await Store.open(StoreSettings(url=url))
    queue = BatchQueue(store.database, store.process.id)
    catalog = Catalog(store.database, queue)
    command = [gateway_command(), "batch", "worker", "--config", config(folder, port, url, content)]
    cores = (GATEWAY_CORE, LOAD_CORE)  # a second worker shares a core with the upstream, which needs little of it
    programs = [Program(f"batch-worker-{number}", command, cores[number]) for number in range(workers)]
    try:
        for program in programs:
            program.wait_for_text(READY)
        cpu = sum(program.cpu_seconds() for program in programs)
        batch = await submit(store, folder, items)  # now, so that no worker has done a part before another one has started
        resident, last_resident, progress = 0, 0, 0.0
        while True:
            for program in programs:
                program.check()
            asked = time.perf_counter()
            now = await catalog.batch(batch.id, None)
            assert now is not None
            await queue.totals(now)
            progress = max(progress, time.perf_counter() - asked)
            last_resident = max(program.resident_bytes() for program in programs)
            resident = max(resident, last_resident)
            if now.ended is not None:
                break
            await asyncio.sleep(0.1)
        assert now.totals is not None
        assert now.totals.succeeded == items, now
        question = "SELECT min(at) AS first, max(at) AS last FROM batch_results WHERE batch_id = :id"
        span = await store.database.fetch(question, id=batch.id)
        first, last = map(float, span[0])
        rate = (items - 1) / (last - first)
        spent = sum(program.cpu_seconds() for program in programs) - cpu
    finally:
        for program in programs:
            program.stop()
        await store.close()
    return Run(rate, spent / items * 1e6, resident, last_resident, progress)


def throughput(port: int, databases: dict[str, Callable[[], str]], server_cpu: Callable[[], float]) -> None:
    """The limit is measured again before each run, so that other load on the machine affects both. Medians of ROUNDS."""
    for name, make in databases.items():
        for workers in (1, 2):
            for content in (True, False):
                limits, runs, database_cpu = [], [], []
                for _ in range(ROUNDS):
                    limits.append(limit(port))
                    before = server_cpu()
                    with tempfile.TemporaryDirectory() as directory:
                        runs.append(asyncio.run(run_batch(Path(directory), port, make(), ITEMS, workers, content)))
                    database_cpu.append((server_cpu() - before) / ITEMS * 1e6)
                what = f"{name}, {workers} worker{'s' * (workers > 1)}, turns {'with' if content else 'without'} contents"
                print(f"  {what}", flush=True)
                most, least_cpu = (statistics.median(column) for column in zip(*limits, strict=True))
                rate, cpu = statistics.median(run.rate for run in runs), statistics.median(run.cpu for run in runs)
                share = rate / most
                verdict = "" if share >= SHARE else f", BELOW {SHARE:.0%}"
                print(f"    {rate:6.0f} items/s, bare loop {most:6.0f}: {share:4.0%} of the limit{verdict}")
                database = f", database {statistics.median(database_cpu):.0f}" if any(database_cpu) else ""
                print(f"    CPU an item: worker {cpu:.0f} µs, bare loop {least_cpu:.0f} ({least_cpu / cpu:.0%}){database}")
                print(f"    progress within {max(run.progress for run in runs) * 1e3:.0f} ms", flush=True)


def memory(port: int, server: Any) -> None:
    """The largest resident memory of a worker, and the resident memory at its end, for batches of several sizes."""
    found = {}
    for items in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite:///{directory}/s.db" if MEMORY_DATABASE == "sqlite" else asyncio.run(server.database())
            run = asyncio.run(run_batch(Path(directory), port, url, items, 1, False))
            found[items] = run.resident
            print(
                f"  {items:9,} items  {run.resident / 2**20:5.0f} MB resident at most, {run.last_resident / 2**20:5.0f} MB at the end"
                f"  {run.rate:6.0f} items/s  progress within {run.progress * 1e3:.0f} ms",
                flush=True,
            )
    print(f"  growth from {SIZES[0]:,} to {SIZES[-1]:,} items: {found[SIZES[-1]] / found[SIZES[0]] - 1:.1%}")


# --- live requests beside a batch


def live(port: int) -> None:
    """Alternates between the two, so that other load on the machine affects both."""
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
    """A PostgreSQL server from a wheel, as in the tests; None where there is none."""
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
    server = postgres() if "throughput" in parts or MEMORY_DATABASE != "sqlite" else None
    try:
        if "throughput" in parts:
            print(f"{ITEMS} items, {CONCURRENCY} calls at once")
            with tempfile.TemporaryDirectory() as directory:
                names = iter(range(1000))
                databases: dict[str, Callable[[], str]] = {"SQLite": lambda: f"sqlite:///{directory}/{next(names)}.db"}
                if server is not None:
                    databases["PostgreSQL"] = lambda: asyncio.run(server.database())
                process = server.process() if server is not None and server.own else 0
                throughput(port, databases, lambda: tree_cpu_seconds(process) if process else 0.0)
        if "memory" in parts:
            print(f"memory of a worker, {MEMORY_DATABASE}")
            memory(port, server)
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
