"""``streamglot batch worker``: a gateway without a socket that runs the batches of its store."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

from ...config import DISABLED, load
from ...errors import ConfigError
from ...gateway.app import Gateway
from ...gateway.observe.memory import set_collector
from ...gateway.serve import raise_file_limit
from ...json_types import JsonObject

READY: Final = "streamglot runs the batches in"
"""The beginning of the line that says that the worker runs."""


def run(path: Path | None, concurrency: int | None) -> int:
    overrides: JsonObject = {"batches.enabled": True, "batches.worker": True, "batches.concurrency": concurrency}
    loaded = load(path, overrides=overrides)
    if loaded.config.store.url == DISABLED:
        raise ConfigError("a worker needs a store, but store.url is none; set store.url to the database of the gateway")
    raise_file_limit()
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(work(Gateway(loaded)))
    else:
        uvloop.run(work(Gateway(loaded)))
    return 0


async def work(gateway: Gateway) -> None:
    """Runs until SIGTERM or SIGINT. Calls in flight may end; the other requests return to the queue."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with gateway.running():
        assert gateway.recording.store is not None
        set_collector()
        print(f"{READY} {gateway.recording.store.database.shown}", file=sys.stderr, flush=True)
        await stop.wait()
