"""``streamglot logs export``: writes turns as JSON lines or as Markdown to a file or to standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Literal

from ...errors import ConfigError
from ...store import export_jsonl, export_markdown, markdown
from ...store.export import detail_line
from ..output.json_output import seen
from ..store_view import StoreView, reading
from .logs import Chosen


def run(turn: str, chosen: Chosen, form: Literal["jsonl", "markdown"], output: Path | None) -> int:
    async def work(view: StoreView) -> int:
        count = 0
        with _target(output) as file:
            async for page in _pages(view, turn, chosen, form):
                file.write(page)
                count += 1
        return count

    count = reading(work)
    if output is not None:
        print(f"{output}: {count} {'turn' if count == 1 else 'turns'}", file=sys.stderr)
    return 0


async def _pages(view: StoreView, turn: str, chosen: Chosen, form: str) -> AsyncIterator[bytes]:
    if turn:
        whole = await view.queries.turn(await view.turn_id(turn))
        assert whole is not None
        yield seen(detail_line(whole)) if form == "jsonl" else _page(markdown(whole))
    elif form == "jsonl":
        async for line in export_jsonl(view.queries, await chosen.filter(view)):
            yield seen(line)
    else:
        async for text in export_markdown(view.queries, await chosen.filter(view)):
            yield _page(text)


def _page(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "replace")


@contextmanager
def _target(output: Path | None) -> Iterator[IO[bytes]]:
    """Opens the output. Only the owner can read the file. An existing file is replaced when the new one is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    try:
        if output.exists() and not output.is_file():  # a pipe, a device
            with output.open("wb") as file:
                yield file
            return
        place = output.resolve()
        with NamedTemporaryFile(dir=place.parent, prefix=f".{place.name[:64]}.", delete=False) as beside:
            try:
                yield beside.file
                beside.close()
                os.replace(beside.name, place)
            except BaseException:
                os.unlink(beside.name)
                raise
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
