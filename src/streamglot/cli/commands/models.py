"""``streamglot models``: lists the models that ``-m`` accepts."""

from __future__ import annotations

import asyncio
import sys

import msgspec
from msgspec import Struct

from ...client import Client
from ...directories import data_directory
from ...upstream.local import NAME, missing
from ...upstream.model_lists import WAIT_SECONDS
from ...upstream.providers import provider_name
from ..output.terminal import neutral


class _Row(Struct):
    model: str
    upstream: str
    provider: str
    pattern: bool


def run(as_json: bool) -> int:
    rows, default = asyncio.run(_rows())
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode({"default": default, "models": rows}) + b"\n")
        return 0
    width = max(len(row.model) for row in rows)
    owner = max(len(row.upstream) for row in rows)
    for row in rows:
        note = "  (the default)" if row.model == default else ""
        provider = f"  {row.provider}" if row.provider != row.upstream else ""
        print(neutral(f"{row.model.ljust(width)}  {row.upstream.ljust(owner) if provider else row.upstream}{provider}{note}"))
    if NAME not in {row.upstream for row in rows}:
        print(f"no local model: {missing() or 'server.discover is off'}", file=sys.stderr)
    return 0


async def _rows() -> tuple[list[_Row], str]:
    """Returns the models, then the patterns of upstreams that serve more than they list, and the default model."""
    async with Client(model_lists=data_directory() / "model-lists") as client:
        routes = client.pool.routes
        named = await client.pool.models_known(WAIT_SECONDS)
        patterns = [
            (model, name) for name, upstream in routes.upstreams.items() for model in upstream.models if _is_pattern(model)
        ]
        shown = [*named, *((f"{name}/*" if model == "*" else model, name) for model, name in patterns)]
        rows = [_Row(model, name, provider_name(routes.upstreams[name]), _is_pattern(model)) for model, name in shown]
        return rows, routes.named("")


def _is_pattern(model: str) -> bool:
    return any(mark in model for mark in "*?[")
