"""``streamglot serve``: reads the configuration, prints a table of the upstreams, and runs the gateway."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from ...config import load
from ...config.checks import Authentication
from ...errors import StreamglotError
from ...installation import require
from ...json_types import JsonObject
from ...upstream.discovery import Found, discover
from ...upstream.local import NAME, LocalServer, local_server, missing
from ...upstream.local.weights import CHOICE
from ...upstream.providers import KNOWN_PROVIDERS
from ..address import http_address, reachable_host
from ..options import (
    CONFIG_FILE,
    Command,
    text,
)
from ..output.terminal import neutral
from ..setup.recipes import RECIPES, recipe

ADDRESSES = (
    ("chat and inspector", "/"),
    ("OpenAI", "/v1"),
    ("Anthropic", "/"),
    ("Gemini", "/v1beta"),
    ("Ollama", "/"),
    ("AG-UI", "/agui"),
    ("Vercel AI SDK", "/ui"),
)
"""The address of the page, and the base address for each kind of client."""
BLANK_LINE = "\n\n"
WIDTH = 110
"""Columns of a list that is folded."""
NO_BREAK = "\N{NO-BREAK SPACE}"
YOUR_KEY = "YOUR_KEY"
"""The placeholder for a key in the examples. The gateway does not know the keys themselves."""
REPLAY = "replay"
ONLY_REPLAY = (
    "No model was found, so the gateway uses replay, which repeats the question. For a real model, run `streamglot local pull` or "
    "set a provider's key, and start again."
)


@click.command(
    cls=Command,
    examples=(
        "streamglot serve",
        "streamglot serve --port 9000 --workers 2",
        "streamglot serve --config gateway.toml --host 0.0.0.0",
    ),
)
@CONFIG_FILE
@click.option("--host", type=text, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port to listen on; 0 for any free one.")
@click.option("--workers", type=click.IntRange(min=1), help="The number of processes that share the socket.")
def serve(config: Path | None, host: str | None, port: int | None, workers: int | None) -> int:
    """Run the gateway: any client, any upstream."""
    require("prometheus_client", "wsproto")
    # the gateway is slow to import, and its packages are optional: `serve --help` works without them
    from ...gateway.app import Gateway
    from ...gateway.http.server import block_signals
    from ...gateway.supervisor import listen
    from ...gateway.supervisor import serve as serve_gateway

    overrides: JsonObject = {"server.host": host, "server.port": port, "server.workers": workers}
    loaded = load(config, overrides=overrides)
    rows: list[tuple[str, ...]] = [
        (name, "configured", upstream.dialect, upstream.place) for name, upstream in loaded.config.upstreams.items()
    ]
    known = set(loaded.config.upstreams)
    discovered = asyncio.run(discover(os.environ)) if loaded.config.server.discover else []
    for fault in KNOWN_PROVIDERS.faults() if loaded.config.server.discover else ():
        print(f"left out: {neutral(fault)}", file=sys.stderr)
    alone = not known and not any(found.there for found in discovered)
    wanted = loaded.config.server.discover and NAME not in known
    lazy = not alone and CHOICE not in os.environ  # beside other upstreams it may never be used
    local = local_server(log=True, lazy=lazy) if wanted else None
    try:
        if local is not None:
            rows.append(_started(local, overrides, "on demand" if lazy else "started"))
            loaded = load(config, overrides=overrides)
        elif NAME not in known:
            rows.append((NAME, "not started", "openai_chat", missing() if wanted else "server.discover is off"))
        others = [found for found in discovered if found.provider.name not in known]
        rows += [(found.provider.name, "found", found.provider.dialect, found.because) for found in others if found.there]
        rows.append((REPLAY, "found", "openai_chat", "built in: it repeats the question"))
        gateway = Gateway(loaded)
        asyncio.run(gateway.check())  # refuses a bad configuration before anything is printed or listens
        server = loaded.config.server
        listener = listen(server.host, server.port)
        block_signals()  # from here on callers know that it runs, so no signal may end it before its handlers are set
        port = listener.getsockname()[1]
        started = f"upstreams.{NAME}" in overrides
        place = http_address(server.host, port), http_address(reachable_host(server.host), port)
        absent = [f"{found.provider.name}{NO_BREAK}({_looked_for(found)})" for found in others if not found.there]
        _print_banner(rows, absent, *place, NAME if started else REPLAY, gateway.access.authenticator.state)
        if alone and wanted and not started:
            print(f"\n{ONLY_REPLAY}", file=sys.stderr, flush=True)
        return serve_gateway(loaded, listener)
    finally:
        if local is not None:
            local.stop()


def _started(local: LocalServer, overrides: JsonObject, state: str) -> tuple[str, ...]:
    """Adds the local model to the upstreams of the settings, so that it survives a reload of the configuration."""
    try:
        upstream = local.start()
    except StreamglotError as error:
        return (NAME, "failed", "openai_chat", error.message)
    overrides[f"upstreams.{NAME}"] = msgspec.to_builtins(upstream)
    return (NAME, state, upstream.dialect, f"{local.weights.name} at {upstream.place}")


def _looked_for(found: Found) -> str:
    return found.provider.key_env or urlsplit(found.provider.probe).netloc


def _print_banner(
    rows: list[tuple[str, ...]], absent: list[str], listens: str, address: str, model: str, keys: Authentication
) -> None:
    print(table(rows), file=sys.stderr)
    if absent:
        listed = f"not found, with what was looked for: {', '.join(absent)}"
        folded = textwrap.fill(listed, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        print(folded.replace(NO_BREAK, " "), file=sys.stderr)
    print(f"\nstreamglot listens on {listens}", file=sys.stderr)
    print(table([(f"  {client}", f"{address}{place}") for client, place in ADDRESSES]), file=sys.stderr)
    if not keys.usable:
        print(f"\nThe gateway cannot be used: {keys.summary}. Every request is refused with 401: {keys.step}", file=sys.stderr)
    elif keys.required:
        print(f"\n{keys.summary[0].upper()}{keys.summary[1:]}. Put one in place of {YOUR_KEY}.", file=sys.stderr)
    key = YOUR_KEY if keys.required else "streamglot"
    curl, openai, anthropic = (recipe(client, address, model, key).text for client in ("curl", "openai", "anthropic"))
    print(f"\nTry it:\n\n{curl.partition(BLANK_LINE)[0]}", file=sys.stderr)
    print(f"\nOr point a program at it:\n\n{openai}\n{anthropic}", file=sys.stderr)
    others = ", ".join(client for client in RECIPES if client not in ("openai", "anthropic"))
    print(f"More: streamglot setup CLIENT ({others})", file=sys.stderr, flush=True)


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
