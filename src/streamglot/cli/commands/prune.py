"""``streamglot logs prune``: removes old turns by age or by the size of the store."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ...errors import ConfigError
from ...store import prune_turns
from ...store.prune import size as contents_size
from ..output.terminal import is_terminal
from ..output.units import seconds, shown_size, size
from ..store_view import StoreView, reading


def run(older_than: str, larger_than: str, archive: Path | None, forget_spending: bool, yes: bool) -> int:
    if not older_than and not larger_than:
        raise ConfigError("prune needs a limit: give --older-than 30d, --larger-than 1GB or both")
    age = seconds(older_than) if older_than else None
    max_bytes = size(larger_than) if larger_than else None
    if not yes:
        _ask(older_than, larger_than, archive)

    async def work(view: StoreView) -> str:
        try:
            done = await prune_turns(
                view.database, older_than=age, max_bytes=max_bytes, archive=archive, forget_spending=forget_spending
            )
        except OSError as error:
            raise ConfigError(f"{archive} cannot be written, so no more turns are removed: {error.strerror or error}") from None
        archived = f", {done.archived} of them archived in {archive}" if archive is not None else ""
        left = await view.lookup.count_turns()
        return (
            f"{done.turns} turns removed{archived}; {left} are left; "
            f"contents: {shown_size(done.bytes_before)} before, {shown_size(done.bytes_after)} now"
        )

    print(reading(work))
    return 0


def _ask(older_than: str, larger_than: str, archive: Path | None) -> None:
    if not is_terminal(sys.stdin):
        raise ConfigError("turns are removed permanently, and there is no terminal to ask at: confirm with --yes")

    async def work(view: StoreView) -> tuple[int, int]:
        return await view.lookup.count_turns(), await contents_size(view.database)

    count, taken = reading(work)
    wanted = [f"those older than {older_than}"] if older_than else []
    wanted += [f"the oldest until the rest is at most {larger_than}"] if larger_than else []
    kept = f"archived in {archive} and then removed" if archive is not None else "removed permanently"
    if not click.confirm(
        f"{count} turns are stored, {shown_size(taken)}; {', then '.join(wanted)}, will be {kept}. Go on?", err=True
    ):
        raise click.exceptions.Exit(1)
