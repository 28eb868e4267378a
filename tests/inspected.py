"""The lines of an inspection, joined: all rows of all pages."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import msgspec
from msgspec import Struct

from streamglot.inspect.inspection import Inspection
from streamglot.inspect.paging import Pager
from streamglot.inspect.recording import RecordedPiece

COLUMNS = ("upstream", "events", "client")


class Inspected(Struct):
    """``facts`` are those of the last line that had any. ``head`` is the last page without its rows."""

    facts: dict[str, Any]
    head: dict[str, Any]
    rows: dict[str, dict[str, list[Any]]]
    bars: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    lines: list[dict[str, Any]]

    def events(self) -> list[Any]:
        return [msgspec.json.decode(text) for text in self.rows["events"]["text"]]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events()]


def joined(lines: list[dict[str, Any]]) -> Inspected:
    found = Inspected({}, {}, {name: {"at": [], "link": [], "mark": [], "text": []} for name in COLUMNS}, [], [], lines)
    for line in lines:
        if "turn" in line or "pasted" in line:
            found.facts = line.get("turn") or line["pasted"]
        if "rows" not in line:
            continue
        page = line["rows"]
        for name in COLUMNS:
            assert page[name]["first"] == len(found.rows[name]["at"]), "a page begins where the one before it ended"
            for column, values in found.rows[name].items():
                values += page[name][column]
        found.bars[page["waterfall"]["first"] :] = page["waterfall"]["bars"]
        found.removed += page["removed"]
        found.head = {key: value for key, value in page.items() if key not in COLUMNS}
    return found


def of_answer(body: bytes) -> Inspected:
    return joined([msgspec.json.decode(line) for line in body.splitlines()])


def of_pieces(inspection: Inspection, pieces: list[RecordedPiece]) -> Inspected:
    pager = Pager(inspection)
    pages = [*pager.feed(pieces), pager.close()]
    return joined([msgspec.json.decode(msgspec.json.encode({"rows": page})) for page in pages])


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
