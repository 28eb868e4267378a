"""Programs under measurement: built, started on a separate core, measured through /proc, stopped. Linux only."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORE = CORES[-1]
LOAD_CORE = CORES[0]
"""One core for what is measured, another for the upstream and the load. With a single core they share it."""
FILES = 16_384
"""Sockets that 1,000 streams need on both sides, and room."""
START_SECONDS = 120.0
STOP_SECONDS = 10.0
OUTPUT_CHARS = 2_000
"""Characters of a failed program's output that are shown: the end of a traceback."""


class Missing(Exception):
    """Something that this benchmark needs is not on this machine."""


def compile_tools() -> None:
    """The mock upstream and the load generator, from their sources beside this file."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Missing("gcc is needed to build the mock upstream and the load generator (apt-get install gcc libc6-dev)")
    BUILD.mkdir(exist_ok=True)
    for name in ("mock", "load"):
        source, target = ROOT / "bench" / f"{name}.c", BUILD / name
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            subprocess.run([compiler, "-O2", "-o", str(target), str(source)], check=True)


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard), hard))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find(name: str, package: str) -> str:
    """A program of the system. Root installs the Debian package where it is missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {package} …", file=sys.stderr)
        subprocess.run(["apt-get", "install", "-y", package], capture_output=True, check=False)
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"{name} is not installed (apt-get install {package})")
    return found


class Ended(Exception):
    """A program ended while it was being measured."""


class Program:
    """A process with its children, on one core. Its output goes to a file in ``.build``."""

    def __init__(self, name: str, command: list[str], core: int, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = BUILD / f"{name}.log"
        self._output = self.log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )

    def wait_for(self, port: int) -> None:
        """Returns when something listens there."""
        limit = time.monotonic() + START_SECONDS
        while not listens(port):
            if self._process.poll() is not None or time.monotonic() > limit:
                raise self._not_started()
            time.sleep(0.002)

    def announced_port(self) -> int:
        """The port in the first address that the program prints."""
        limit = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < limit:
            found = re.search(r"http://[^:/]+:(\d+)", self.output())
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise self._not_started()

    def wait_for_text(self, text: str) -> None:
        """Returns when the program has printed this."""
        limit = time.monotonic() + START_SECONDS
        while text not in self.output():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise self._not_started()
            time.sleep(0.02)

    def check(self) -> None:
        """Raises Ended if the program has ended."""
        status = self._process.poll()
        if status is not None:
            raise Ended(f"{self.name} ended with status {status}: {self._last_words()}")

    def finished(self) -> str:
        """Waits for the end of the program and returns its output. Raises Ended if the program failed."""
        while self._process.poll() is None:
            time.sleep(0.02)
        if self._process.returncode:
            self.check()
        self._output.close()
        return self.output()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def _last_words(self) -> str:
        return self.output()[-OUTPUT_CHARS:].strip() or "(no output)"

    def _not_started(self) -> Missing:
        self.stop()
        return Missing(f"{self.name} did not start: {self._last_words()}")

    def processes(self) -> list[int]:
        found, waiting = [], [self._process.pid]
        while waiting:
            process = waiting.pop()
            found.append(process)
            for children in Path(f"/proc/{process}/task").glob("*/children"):
                waiting += [int(child) for child in children.read_text().split()]
        return found

    def cpu_seconds(self) -> float:
        """By the CPU clock of each process: nanoseconds, with those of threads that have ended."""
        return sum(time.clock_gettime((~process << 3) | 2) for process in self.processes())

    def resident_bytes(self) -> int:
        total = 0
        for process in self.processes():
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            total += pages * resource.getpagesize()
        return total

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tree_cpu_seconds(parent: int) -> float:
    """CPU seconds of a process, of its children, and of the children that have ended, in steps of 10 ms: of a database server."""
    children = [int(child) for place in Path(f"/proc/{parent}/task").glob("*/children") for child in place.read_text().split()]
    ticks = 0
    for process in (parent, *children):
        try:
            times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]
        except OSError:  # it has just ended
            continue
        ticks += sum(map(int, times if process == parent else times[:2]))
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_and_time_of(command: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds of a command that ends by itself."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - began
