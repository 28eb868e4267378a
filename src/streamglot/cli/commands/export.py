"""``streamglot logs export``: turns as JSON lines or Markdown, and a turn's stream as a test of its reader.

The layout of a test is that of the test corpus: a folder for each dialect, ``NAME.EXT`` with the bytes and ``NAME.events.jsonl``
beside it. Binary frames are written as readable lines, ``{"event name": payload}``; the name of an exception begins with ``!``.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final

import click
import msgspec

from ...dialects import dialect
from ...errors import ConfigError, RequestError
from ...events import Event, encode
from ...framing.aws_eventstream import AwsEventStream, frame
from ...json_types import JSON_ERRORS, JsonObject
from ...store import export_jsonl, export_markdown, markdown
from ...store.export import detail_line
from ..options import (
    FILE,
    Command,
)
from ..output.printers import seen
from ..store import FILTER, TURN_ARGUMENT, Selection, StoreView, reading


@click.command(
    "export",
    cls=Command,
    examples=(
        "streamglot logs export -o turns.jsonl --since 30d",
        "streamglot logs export -f markdown -o talks.md",
        "streamglot logs export 06605008c9 --as-test tests/corpus",
    ),
)
@TURN_ARGUMENT
@click.argument("directory", type=FILE, required=False)
@click.option("--as-test", is_flag=True, help="Write the turn's stream and its expected events into DIRECTORY.")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["jsonl", "markdown"]),
    default="jsonl",
    show_default=True,
    help="JSON lines or Markdown.",
)
@click.option("-o", "--output", type=FILE, help="The output file; by default standard output.")
@FILTER
@click.option("-n", "--limit", type=click.IntRange(min=0), default=0, help="At most this many, the newest; by default all.")
def logs_export(  # Any: Click passes the options by their names
    turn: str, directory: Path | None, as_test: bool, form: str, output: Path | None, **selected: Any
) -> int:
    """Write turns to a file, or make a test of one.

    TURN selects one turn; without it, all turns that match the options are written. DIRECTORY is the folder of recordings for
    --as-test.
    """
    if as_test and not turn:
        raise click.UsageError("--as-test needs a turn: name one before DIRECTORY")
    if directory is not None and not as_test:
        raise click.UsageError("DIRECTORY can be used only with --as-test; name the output file with --output")
    if as_test:
        return _write_test(turn, directory or Path())
    selection = Selection(**selected)

    async def work(view: StoreView) -> int:
        count = 0
        with _target(output) as file:
            async for page in _pages(view, turn, selection, form):
                file.write(page)
                count += 1
        return count

    count = reading(work)
    if output is not None:
        print(f"{output}: {count} {'turn' if count == 1 else 'turns'}", file=sys.stderr)
    return 0


async def _pages(view: StoreView, turn: str, selection: Selection, form: str) -> AsyncIterator[bytes]:
    if turn:
        whole = await view.queries.turn(await view.turn_id(turn))
        assert whole is not None
        yield seen(detail_line(whole)) if form == "jsonl" else _page(markdown(whole))
    elif form == "jsonl":
        async for line in export_jsonl(view.queries, await selection.filter(view)):
            yield seen(line)
    else:
        async for text in export_markdown(view.queries, await selection.filter(view)):
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


EVENTS: Final = ".events.jsonl"
SUFFIXES: Final = {"text/event-stream": ".sse", "application/x-ndjson": ".ndjson"}
BINARY: Final = "application/vnd.amazon.eventstream"


# --- a test


def _write_test(turn: str, directory: Path) -> int:
    async def work(view: StoreView) -> tuple[str, str, bytes]:
        turn_id = await view.turn_id(turn)
        found = await view.queries.turn(turn_id)
        assert found is not None
        received = [piece for piece in await view.queries.raw(turn_id) if piece.direction.startswith("up")]
        frames = [piece for piece in received if piece.direction == received[-1].direction]  # of the last attempt
        if not frames:
            raise RequestError(
                f"the bytes of the turn {turn_id} were not stored: set `raw = true` under [store] (or "
                "STREAMGLOT_STORE__RAW=true), ask again, and export that turn"
            )
        return turn_id, found.dialects["upstream"], b"".join(piece.data for piece in frames)

    name, wire, body = reading(work)
    events = _fixture_events(wire, body)
    suffix, kept = _readable(wire, body, events)
    folder = directory / wire
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}{suffix}").write_bytes(kept)
        (folder / f"{name}{EVENTS}").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    except OSError as error:
        raise ConfigError(f"the recording cannot be written to {folder}: {error.strerror or error}") from None
    print(folder / f"{name}{suffix}")
    print(folder / f"{name}{EVENTS}")
    return 0


def _fixture_events(wire: str, body: bytes) -> list[Event]:
    box = dialect(wire).reader()
    return box.feed(body) + box.close()


def _readable(wire: str, body: bytes, events: list[Event]) -> tuple[str, bytes]:
    """The suffix and the content of the recording. Binary frames that lines cannot express stay binary."""
    media_type = dialect(wire).media_type
    if media_type == BINARY:
        lines = _lines(body)
        framed = b"".join(map(_frame, lines))
        same = [encode(event) for event in _fixture_events(wire, framed)] == [encode(event) for event in events]
        return (".frames", b"".join(msgspec.json.encode(line) + b"\n" for line in lines)) if same else (".bin", body)
    plain = media_type == "text/event-stream" and body.lstrip()[:1] in (b"{", b"[")
    return ".json" if plain else SUFFIXES[media_type], body


def _lines(body: bytes) -> list[JsonObject]:
    lines = []
    for found in AwsEventStream().feed(body):
        try:
            payload = msgspec.json.decode(found.data or b"{}")
            if found.event == "chunk":
                payload = msgspec.json.decode(base64.b64decode(payload["bytes"]))
        except (*JSON_ERRORS, KeyError, TypeError):
            return []
        lines.append({f"{'!' if found.kind == 'exception' else ''}{found.event}": payload})
    return lines


def _frame(line: JsonObject) -> bytes:
    """The frame that a reader of the recording builds from the line."""
    ((name, payload),) = line.items()
    body = msgspec.json.encode(payload)
    if name == "chunk":
        body = msgspec.json.encode({"bytes": base64.b64encode(body).decode()})
    kind = ("exception", name[1:]) if name.startswith("!") else ("event", name)
    return frame(body, {f":{kind[0]}-type": kind[1], ":content-type": "application/json", ":message-type": kind[0]})
