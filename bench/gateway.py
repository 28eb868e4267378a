"""The gateway on one core beside nginx and peers, in one run. ``python -m bench.gateway``; writes docs/benchmarks.md.

A fast mock upstream and the load generator have one core, what is measured has the other. The candidates take turns within
each of three repeats, and medians are reported. Every answer is checked to be whole.

    BENCH_SECONDS=0.5    a short run (2 by default: the length of each measurement)
    BENCH_PEERS=1        LiteLLM and TensorZero too, installed into .build/
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

from . import report
from .candidates import OWN, PEERS, Candidate, gateway_command, gateway_config, mock
from .programs import (
    BUILD,
    GATEWAY_CORE,
    LOAD_CORE,
    Missing,
    Program,
    compile_tools,
    cpu_and_time_of,
    free_port,
    raise_file_limit,
)

SECONDS = float(os.environ.get("BENCH_SECONDS", "2"))
REPEATS = 3
CONNECTIONS = (1, 32, 256)
STREAMS = 1000
PACE_MICROSECONDS = 50_000
"""20 chunks a second."""
LONG_CHUNKS = 20_000

Figures = dict[str, float]
"""The results of one candidate, by the names in bench/report.py."""


class Run:
    """One load on one candidate: the load generator's report, and the CPU time that the candidate used meanwhile."""

    def __init__(self, candidate: Candidate, *options: object) -> None:
        command = [str(BUILD / "load"), "-p", str(candidate.port), *candidate.load, *map(str, options)]
        before = candidate.program.cpu_seconds()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CORE})
        ) as load:
            self.resident = 0
            while load.poll() is None:
                self.resident = max(self.resident, candidate.program.resident_bytes())
                time.sleep(0.05)
            assert load.stdout is not None
            self.load: dict[str, Any] = json.loads(load.stdout.read())
        self.cpu = candidate.program.cpu_seconds() - before
        self.broken = int(self.load["err"]) + int(self.load["unfinished"])
        if self.broken:
            print(f"  {candidate.name}: {self.broken} answers not whole: {self.load.get('errsample', '')}", file=sys.stderr)

    def per(self, what: str) -> float:
        """CPU microseconds for each of these."""
        return self.cpu / max(1, int(self.load[what])) * 1e6


def measure(candidate: Candidate) -> Figures:
    figures: Figures = {}
    runs = []
    for connections in CONNECTIONS:
        run = Run(candidate, "-m", "ns", "-c", connections, "-T", SECONDS)
        figures[f"requests_s_{connections}"] = run.load["rps"]
        figures[f"latency_{connections}"] = run.load["lat_p50"]
        if connections == 32:
            figures["request_cpu"] = run.per("ok_all")
        runs.append(run)
    first = Run(candidate, "-m", "st", "-c", 1, "-T", SECONDS / 2, "-n", 5, "-d", 1000)
    burst = Run(candidate, "-m", "st", "-c", 32, "-T", SECONDS, "-n", 100)
    long = Run(candidate, "-m", "st", "-c", 1, "-k", 1, "-n", LONG_CHUNKS)
    chunks = max(10, round(SECONDS * 30))
    pace = ("-c", STREAMS, "-k", STREAMS, "-n", chunks, "-d", PACE_MICROSECONDS, "-r", 1000)
    paced = Run(candidate, "-m", "st", *pace)
    figures["first_chunk"] = first.load["ttfc_p50"]
    figures["burst_chunks_s"], figures["burst_cpu"] = burst.load["chunks_s"], burst.per("chunks_all")
    figures["long_chunks_s"], figures["long_cpu"] = long.load["chunks_s"], long.per("chunks_all")
    figures["paced_chunks_s"], figures["paced_cpu"] = paced.load["chunks_s"], paced.per("chunks_all")
    figures["paced_delay"] = paced.load["del_p50"]
    figures["resident"] = paced.resident / 2**20
    figures["broken"] = sum(run.broken for run in (*runs, first, burst, long, paced))
    return figures


def startup(upstream_port: int) -> Figures:
    """How long ``--help`` and the start of ``serve`` take: the best of three, as only disturbances make it longer."""
    command = gateway_command()
    spent = [cpu_and_time_of([command, "--help"])[0] for _ in range(REPEATS + 1)][1:]
    times = []
    for _ in range(REPEATS):
        port, began = free_port(), time.monotonic()
        program = Program(
            "start", [command, "serve", "--port", str(port), "--config", gateway_config(upstream_port)], GATEWAY_CORE
        )
        try:
            program.wait_for(port)
            times.append(time.monotonic() - began)
        finally:
            program.stop()
    return {"help_cpu": min(spent), "ready": min(times)}


def start_all(upstream_port: int, direct: Candidate) -> list[Candidate]:
    candidates = [direct]
    for name, make in [*OWN, *(PEERS if os.environ.get("BENCH_PEERS") == "1" else [])]:
        candidate: Candidate | None = None
        try:
            candidate = make(upstream_port)
            candidate.program.wait_for(candidate.port)
            time.sleep(1.0)
            candidate.idle_bytes = candidate.program.resident_bytes()
            probe(candidate)
        except Missing as error:
            print(f"SKIPPED {name}: {error}", file=sys.stderr)
            if candidate is not None:
                candidate.program.stop()
        else:
            candidates.append(candidate)
    return candidates


def probe(candidate: Candidate) -> None:
    """One answer of each kind must be whole before anything is measured."""
    for kind in ("ns", "st"):
        if Run(candidate, "-m", kind, "-c", 1, "-k", 1, "-n", 20).broken:
            raise Missing(f"its answers are not whole; see {candidate.program.log}")


def medians(repeats: list[Figures]) -> Figures:
    """The median of each figure, and the sum of the broken answers."""
    found = {name: statistics.median(figures[name] for figures in repeats) for name in repeats[0]}
    found["broken"] = sum(figures["broken"] for figures in repeats)
    return found


def main() -> int:
    try:
        compile_tools()
    except Missing as error:
        print(f"STOPPED: {error}", file=sys.stderr)
        return 1
    raise_file_limit()
    began = time.monotonic()
    port = free_port()
    direct = Candidate("direct", mock(port), port)
    direct.program.wait_for(port)
    started = startup(port)
    candidates = start_all(port, direct)
    measured: dict[str, list[Figures]] = defaultdict(list)
    try:
        for repeat in range(REPEATS):
            for candidate in candidates:
                if candidate.peer and repeat:
                    continue  # a peer that falls behind takes minutes: once is enough for a ratio
                print(f"repeat {repeat + 1} of {REPEATS}: {candidate.name}", file=sys.stderr)
                measured[candidate.name].append(measure(candidate))
    finally:
        for candidate in candidates:
            candidate.program.stop()
    results = {name: medians(repeats) for name, repeats in measured.items()}
    for candidate in candidates:
        results[candidate.name]["idle"] = candidate.idle_bytes / 2**20
    if report.CHAT not in results:
        print("STOPPED: the gateway itself could not be measured", file=sys.stderr)
        return 1
    report.write(results, started, time.monotonic() - began, SECONDS)
    return 1 if any(figures["broken"] for name, figures in results.items() if name.startswith("streamglot")) else 0


if __name__ == "__main__":
    sys.exit(main())
