"""Exports a recording as a test: the bytes, the expected events and a pytest file, in one archive."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Final

from ..dialects import DIALECTS
from ..events import encode
from .detection import open_reader
from .frames import AWS, LINES
from .inspection import UP
from .reading import InBandReader
from .recording import PastedSource, RecordedPiece

_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9_]+")
_TEMPLATE: Final = '''"""The stream {name}, recorded in the dialect {dialect}: it must give the same events again."""

from pathlib import Path

import streamglot
from streamglot.events import decode

FOLDER = Path(__file__).parent


def test_{name}() -> None:
    body = (FOLDER / "{file}").read_bytes()
    expected = [decode(line) for line in (FOLDER / "{name}.events.jsonl").read_bytes().splitlines()]
    reader = streamglot.reader("{dialect}")
    events = reader.feed(body) + reader.close()
{inband}    assert events == expected
'''
_IN_BAND: Final = """    parser = streamglot.PerChoice(lambda: streamglot.inband("{inband}", starts_in_reasoning={starts}))
    events = [given for event in events for given in parser.feed(event)] + parser.close()
"""


def pytest_archive(name: str, source: PastedSource) -> bytes:
    """A zip file with ``test_NAME.py``, the recording, its times and its events.

    It uses the last attempt, which answered.
    """
    name = _NOT_IN_A_NAME.sub("_", name.lower()).strip("_")[:60] or "stream"
    received = [piece for piece in source.pieces if piece.direction.startswith(UP)]
    pieces = [piece for piece in received if piece.direction == received[-1].direction]
    body = b"".join(piece.data for piece in pieces)
    has_inband = source.inband not in ("", "none")
    reader = open_reader(source.dialect)
    if has_inband:
        reader = InBandReader(reader, source.inband, starts=source.starts)
    events = [*reader.feed(body), *reader.close()]
    file = f"{name}{_suffix(source.dialect, body)}"
    inband_lines = _IN_BAND.format(inband=source.inband, starts=source.starts) if has_inband else ""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"test_{name}.py", _TEMPLATE.format(name=name, dialect=source.dialect, file=file, inband=inband_lines))
        archive.writestr(file, body)
        archive.writestr(f"{name}.events.jsonl", b"".join(encode(event) + b"\n" for event in events))
        if source.timed:
            archive.writestr(f"{file}.times", _times(pieces))
    return written.getvalue()


def _times(pieces: list[RecordedPiece]) -> str:
    """The times of the pieces in the format of ``streamglot replay``."""
    first = pieces[0].at if pieces else 0.0
    return "".join(f"{max(0.0, piece.at - first):.6f} {len(piece.data)}\n" for piece in pieces)


def _suffix(dialect: str, body: bytes) -> str:
    media_type = DIALECTS[dialect].media_type if dialect in DIALECTS else LINES
    if media_type == AWS:
        return ".bin"
    if body.lstrip()[:1] in (b"{", b"[") and media_type != LINES:
        return ".json"
    return ".ndjson" if media_type == LINES else ".sse"
