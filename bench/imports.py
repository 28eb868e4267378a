"""The time that imports take: ``python -m bench.imports``. Each is measured in a new process, less the start of Python itself."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

REPEATS: Final = 7
"""Processes for each import. The fastest counts: everything else that runs makes the others slower."""
IMPORTS: Final = (
    ("streamglot", "import streamglot; streamglot.reader"),
    ("streamglot[client]", "from streamglot import Client; Client"),
    ("streamglot[server], the command line", "from streamglot.cli.app import run"),
    ("streamglot[server], the gateway", "import streamglot.gateway.app"),
    ("streamglot[all], the gateway with telemetry", "from streamglot.gateway.observe.tracing import Tracing; Tracing()"),
)


def seconds(code: str) -> float:
    """The shortest time of a process that runs this code."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    start = seconds("pass")
    print(f"Python itself: {start * 1000:.0f} ms")
    for what, code in IMPORTS:
        print(f"{what}: {(seconds(code) - start) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
