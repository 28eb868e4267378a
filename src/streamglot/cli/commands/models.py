"""``streamglot models``: lists the models that ``-m`` accepts."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from ...client import Client
from ...upstream.local import NAME, missing
from ..output.terminal import neutral


def run(as_json: bool) -> int:
    rows, default = asyncio.run(_rows())
    if as_json:
        listed = [{"model": model, "upstream": upstream, "pattern": _is_pattern(model)} for model, upstream in rows]
        sys.stdout.buffer.write(msgspec.json.encode({"default": default, "models": listed}) + b"\n")
        return 0
    width = max(len(model) for model, _ in rows)
    for model, upstream in rows:
        note = "  (the default)" if model == default else ""
        print(neutral(f"{model.ljust(width)}  {upstream}{note}"))
    if NAME not in {upstream for _, upstream in rows}:
        print(f"no local model: {missing() or 'server.discover is off'}", file=sys.stderr)
    return 0


async def _rows() -> tuple[list[tuple[str, str]], str]:
    async with Client() as client:
        routes = client.pool.routes
        named = routes.models()
        patterns = [
            (model, name) for name, upstream in routes.upstreams.items() for model in upstream.models if _is_pattern(model)
        ]
        return [*named, *((f"{name}/*" if model == "*" else model, name) for model, name in patterns)], routes.named("")


def _is_pattern(model: str) -> bool:
    return any(mark in model for mark in "*?[")
