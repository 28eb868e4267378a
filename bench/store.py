"""The store: finished turns a second, on a file of SQLite and wherever STREAMGLOT_BENCH_STORE points; and what it costs a gateway
to keep its streams, beside one that keeps nothing. ``python -m bench.store``."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamglot.messages import Message, Request, Response, ResponseChoice, TextPart, TokenCounts
from streamglot.store import Filter, Finished, Session, SessionHints, Started, Store, StoreSettings
from streamglot.store.conversation import hash_conversation

from .agent_turn import print_growth
from .candidates import Candidate, mock, streamglot
from .gateway import Run
from .programs import Missing, compile_tools, free_port, raise_file_limit

TURNS = 20_000
TARGET = 2_000
HISTORY = 12
PAIRS = 4
"""Restarts of the gateways. The memory layout of a process alone changes its cost by some percent."""
REPEATS = 3
MAX_GROWTH = 0.15
"""Share of the CPU of a chunk, at the pace of models. In a burst a chunk costs so little that the cost of the turn dominates."""
SETTLE_SECONDS = 1.0
"""Seconds to wait after a load until everything is written, because writing is part of its cost."""
PACED = "paced: 100 streams of 20 chunks/s"
LOADS: dict[str, tuple[object, ...]] = {
    PACED: ("-c", 100, "-k", 100, "-n", 200, "-d", 50_000, "-r", 500),
    "burst: streams of 100 chunks": ("-c", 16, "-k", 600, "-n", 100),
    "burst: streams of 1,000 chunks": ("-c", 16, "-k", 64, "-n", 1_000),
}
CHUNKS = {load: int(str(options[options.index("-n") + 1])) for load, options in LOADS.items()}


def turns(count: int) -> list[tuple[Request, Response]]:
    """Conversations of six questions; each request repeats all messages before it."""
    made: list[tuple[Request, Response]] = []
    system = Message("system", [TextPart("You are a careful assistant. " * 40)])
    for number in range(count):
        depth = number % (HISTORY // 2)
        conversation = number // (HISTORY // 2)
        messages = [system]
        for step in range(depth):
            messages += [
                Message("user", [TextPart(f"question {step} of talk {conversation}: " + "why is that so? " * 10)]),
                Message("assistant", [TextPart(f"answer {step} of talk {conversation}: " + "because it is. " * 40)]),
            ]
        messages.append(Message("user", [TextPart(f"question {depth} of talk {conversation}: " + "why is that so? " * 10)]))
        answer = TextPart(f"answer {depth} of talk {conversation}: " + "because it is. " * 40)
        response = Response(f"resp_{number}", "model", 1, [ResponseChoice(0, [answer], "end")], TokenCounts(1000, 200))
        made.append((Request(model="model", messages=messages, stream=True), response))
    return made


async def finished_turns(url: str, apart: bool) -> None:
    """``apart``: every turn is committed when it starts and again when it ends, as turns of some seconds are."""
    work = turns(TURNS)
    store = await Store.open(StoreSettings(url=url, queue_bytes=2**31, queue_entries=10**6))
    begin, cpu = time.perf_counter(), time.process_time()
    open_turns = []
    for number, (request, response) in enumerate(work):
        session = Session(id=f"ses_{number // (HISTORY // 2)}", conversation=hash_conversation("", request.messages))
        turn = store.start(session, Started(request=request, dialect="openai_chat", model="model"))
        open_turns.append((turn, response))
        if not apart or number % 1000 == 999:
            if apart:
                await store.writer.flush()
            for turn, response in open_turns:
                turn.finish(Finished(ending="end", response=response, upstream="one", upstream_request=turn.started.request))
            open_turns.clear()
        if number % 100 == 0:
            await asyncio.sleep(0)
    for turn, response in open_turns:
        turn.finish(Finished(ending="end", response=response, upstream="one", upstream_request=turn.started.request))
    await store.writer.flush()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    found = await store.queries.turns(Filter(limit=1))
    report = await store.close()
    lost = sum(report.dropped.values()) + sum(report.unfit.values())
    assert found, "nothing was written"
    how = "started and ended in two commits" if apart else "started and ended in one commit"
    print(
        f"  {how:34} {TURNS / seconds:7.0f} turns/s  {cpu / TURNS * 1e6:5.0f} µs CPU a turn  {report.commits} commits, {lost} lost"
    )
    if TURNS / seconds < TARGET:
        print(f"  below the target of {TARGET}")


async def latency(url: str) -> None:
    """The waits of a request: finding its session, and queueing its turn."""
    store = await Store.open(StoreSettings(url=url))
    find: list[float] = []
    hand: list[float] = []
    for request, response in turns(600):
        begin = time.perf_counter()
        session = await store.find_session(SessionHints(caller="other"), request)
        middle = time.perf_counter()
        turn = store.start(session, Started(request=request, caller="other"))
        turn.finish(Finished(ending="end", response=response))
        hand.append(time.perf_counter() - middle)
        find.append(middle - begin)
    await store.close()
    for name, times in (("find the session", find), ("hand over the turn", hand)):
        times.sort()
        print(f"  {name:34} median {times[len(times) // 2] * 1e6:6.0f} µs, 99 of 100 within {times[-6] * 1e6:6.0f} µs")


def growth() -> None:
    """CPU for each chunk of a gateway that keeps everything and of one that keeps nothing, both under the same load at the same
    time, so that other load on the machine affects both."""
    compile_tools()
    raise_file_limit()
    port = free_port()
    upstream = mock(port)
    spent: dict[str, list[tuple[float, float]]] = {load: [] for load in LOADS}
    try:
        for _ in range(PAIRS):
            for load, costs in of_a_pair(port).items():
                spent[load] += costs
    finally:
        upstream.stop()
    print(f"CPU µs for each chunk, chat to chat, nothing kept or everything in SQLite: medians of {PAIRS} x {REPEATS}")
    for load, costs in spent.items():
        off, on, ratio = (statistics.median(values) for values in (*zip(*costs, strict=True), [on / off for off, on in costs]))
        if load == PACED:
            verdict = f"{'within' if ratio <= 1 + MAX_GROWTH else 'ABOVE'} the line of {MAX_GROWTH:.0%}"
        else:
            verdict = f"{(on - off) * CHUNKS[load]:.0f} µs a turn"
        print(f"  {load:34} off {off:6.2f}  on {on:6.2f}  grows by {ratio - 1:5.1%}  {verdict}")


def of_a_pair(port: int) -> dict[str, list[tuple[float, float]]]:
    spent: dict[str, list[tuple[float, float]]] = {load: [] for load in LOADS}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
        gateways = [streamglot(port, "chat"), streamglot(port, "chat", f"sqlite:///{directory}/s.db")]
        try:
            for gateway in gateways:
                gateway.program.wait_for(gateway.port)
            for repeat in range(REPEATS + 1):  # the first one is for warming up
                for load, options in LOADS.items():
                    off, on = pool.map(lambda gateway: cost_of_chunk(gateway, *options), gateways)  # noqa: B023  # it runs before the next round
                    spent[load] += [(off, on)] if repeat else []
        finally:
            for gateway in gateways:
                gateway.program.stop()
    return spent


def cost_of_chunk(gateway: Candidate, *options: object) -> float:
    before = gateway.program.cpu_seconds()
    run = Run(gateway, "-m", "st", *options)
    time.sleep(SETTLE_SECONDS)
    return (gateway.program.cpu_seconds() - before) / int(run.load["chunks_all"]) * 1e6


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        urls = {"SQLite": f"sqlite:///{Path(directory) / 'one.db'}"}
        if "STREAMGLOT_BENCH_STORE" in os.environ:
            urls["given"] = os.environ["STREAMGLOT_BENCH_STORE"]
        for name, url in urls.items():
            print(f"{name}: {TURNS} turns of conversations of {HISTORY} messages")
            await finished_turns(url, apart=False)
            await finished_turns(url.replace("one.db", "two.db"), apart=True)
            await latency(url)
            await asyncio.to_thread(print_growth, url if name == "given" else "")
        if "SQLite" in urls:
            size = sum(file.stat().st_size for file in Path(directory).iterdir())
            print(f"  {size / 2 / TURNS:.0f} bytes on disk a turn")


if __name__ == "__main__":
    asyncio.run(main())
    try:
        growth()
    except Missing as error:
        sys.exit(f"NOT MEASURED: {error}")
