"""Shares a recording: as a test with the bytes, the expected events and a pytest file, and its request as a ``curl`` command.

Requests for display are shortened.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
from collections.abc import Mapping
from typing import Final

import msgspec

from ..dialects import DIALECTS
from ..events import encode
from ..json_types import JsonValue
from ..text import neutral
from .detection import InBandReader, open_reader
from .frames import AWS, LINES
from .inspection import UP
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


# --- requests

MAX_STRING_CHARS: Final = 4_000
"""Characters of one string in a request that are shown: a page of prose, but not an image."""
MAX_DEPTH: Final = 100
"""Levels of nested objects and lists. Deeper ones are not shown."""
MAX_SHOWN_BYTES: Final = 2**20
"""Bytes of a request that a browser can compare line by line."""


def shortened(value: object, depth: int = 0) -> JsonValue:
    """A JSON value with its long strings cut and its control characters visible."""
    if isinstance(value, str):
        text = neutral(value[:MAX_STRING_CHARS])
        return text if len(value) <= MAX_STRING_CHARS else f"{text}… ({len(value)} characters in all)"
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {shortened(name, depth): shortened(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner, depth + 1) for inner in value]
    return value


def shown_body(body: bytes) -> JsonValue:
    """The body of a request for display; a note if it is too large or not JSON."""
    try:
        value = shortened(msgspec.json.decode(body))
        if len(msgspec.json.encode(value)) <= MAX_SHOWN_BYTES:
            return value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {"note": f"{len(body)} bytes that are not JSON"}
    return {"note": f"too large to be shown: {len(body)} bytes; the curl command has all of it"}


def curl(url: str, headers: Mapping[str, str], body: bytes) -> str:
    """A command that repeats the request. Values that the recording hides are shell variables."""
    lines = [f"curl -N {shlex.quote(url)}"]
    lines += [f"  -H {_header(name, value)}" for name, value in headers.items()]
    lines.append(f"  --data-binary {shlex.quote(body.decode('utf-8', 'replace'))}")
    return " \\\n".join(lines) + "\n"


def _header(name: str, value: str) -> str:
    """A header as one shell word. A ``$NAME`` in it is a variable that the user sets, so it is in double quotes."""
    if "$" in value and value.replace("Bearer ", "").replace("$", "").replace("_", "").isalnum():
        return f'"{name}: {value}"'
    return shlex.quote(f"{name}: {value}")
