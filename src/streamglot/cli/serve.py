"""``streamglot serve``: the configuration, a table of what was found, and off it goes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ..gateway.app import Gateway
from ..gateway.config import load
from ..gateway.serve import listen, serve
from ..upstream.discovery import discover


def run(path: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    loaded = load(path, overrides={"server.host": host, "server.port": port, "server.workers": workers})
    server = loaded.config.server
    rows: list[tuple[str, ...]] = [
        (name, "configured", upstream.dialect, upstream.place) for name, upstream in loaded.config.upstreams.items()
    ]
    if server.discover:
        known = set(loaded.config.upstreams)
        for found in asyncio.run(discover(os.environ)):
            if found.provider.name not in known:
                rows.append((found.provider.name, "found" if found.there else "not found", found.provider.dialect, found.because))
    rows.append(("replay", "found", "openai_chat", "always there: it says back what it is told"))
    Gateway(loaded)  # a bad configuration is refused before anything is said or listens
    listener = listen(server.host, server.port)
    address = f"[{server.host}]" if ":" in server.host else server.host
    print(table(rows), file=sys.stderr)
    print(f"streamglot listens on http://{address}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    return serve(loaded, listener)


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
