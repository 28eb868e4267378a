"""``streamglot serve``: the configuration, a table of what was found, and off it goes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ..gateway.config import load
from ..gateway.serve import serve
from ..upstream.discovery import discover


def run(path: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    loaded = load(path, overrides={"server.host": host, "server.port": port, "server.workers": workers})
    server = loaded.config.server
    print(f"streamglot on http://{server.host}:{server.port}", file=sys.stderr)
    for name, upstream in loaded.config.upstreams.items():
        print(f"  {name:14} {upstream.dialect:18} {upstream.base_url}", file=sys.stderr)
    if server.discover:
        for found in asyncio.run(discover(os.environ)):
            if found.there:
                print(f"  {found.provider.name:14} {found.provider.dialect:18} {found.because}", file=sys.stderr)
    return serve(loaded)
