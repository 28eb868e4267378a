"""Reads the input file of a batch into items and jobs, in transactions of a few thousand lines, so that memory use does not grow
with the file.

The file is cut into lines and each line is checked; the result does not depend on how the bytes are cut. A line that cannot be
used immediately becomes a result with its line number, and does not stop other lines. The jobs can be claimed when the whole file
has been read. An import whose process died starts again from the first line.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from ...errors import StreamglotError, excerpt
from ...json_types import JsonValue
from ...store.database import Database, StoreUnavailable
from ...store.database.sql import Connection, DatabaseRow, Insert, NotUnique, SqlRow, SqlValues
from .catalog import Catalog, locked_batch, update_batch
from .model import CLOSED, FILE_API, HELD, OPEN, RANGE_BYTES, RANGE_ITEMS, Batch, LineError, Result, as_json, batch_of, fault_line
from .queue import LEASE_SECONDS, RESULTS, BatchQueue
from .storage import FileStorage, FileStorageUnavailable

CUSTOM_ID_CHARS: Final = 512
"""Characters of the longest custom_id. It is part of a database index."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Route = Callable[[str], str]
"""Returns the upstream for a model, or raises the error of an unusable model."""


class _RequestLine(Struct):
    custom_id: JsonValue = None
    method: JsonValue = "POST"
    url: JsonValue = None
    body: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


class _Body(Struct):
    model: JsonValue = None


_line: Final = msgspec.json.Decoder(_RequestLine)
_body: Final = msgspec.json.Decoder(_Body)


class CheckedLine(Struct):
    """One line: a request for an upstream, or a ``fault``."""

    line: int
    custom_id: str | None
    body: bytes
    upstream: str = ""
    model: str = ""
    fault: LineError | None = None


CHUNK_ITEMS: Final = 2_000
"""Lines that one transaction stores, so that others can write in between."""
CHUNK_BYTES: Final = 8 * 2**20
"""Bytes of requests that one transaction stores, to bound the memory."""
LISTED_ERRORS: Final = 100
"""Errors that the batch object lists. Its error file has all of them."""
_ITEMS: Final = Insert("batch_items", ("batch_id", "number", "line", "custom_id", "body"), "")
_JOBS: Final = Insert("batch_jobs", ("batch_id", "first", "last", "upstream", "priority", "state"), "")
_WAITING: Final = """
    ended IS NULL AND status = 'validating'
    AND (process IS NULL OR process = :process OR lease < :now OR process IN :dead)
"""
"""Batches whose file no living process reads. One of this process is an import that a database error ended."""
_CLAIM: Final = f"UPDATE batches SET process = :process, lease = :lease WHERE id = :id AND {_WAITING}"
_RELEASE_JOBS: Final = f"UPDATE batch_jobs SET state = :state WHERE batch_id = :batch_id AND state = '{HELD}'"
_KNOWN: Final = "SELECT custom_id, line FROM batch_items WHERE batch_id = :batch_id AND custom_id IN :names"


class _Stopped(Exception):
    """Raised when the batch was cancelled while its file was read."""


class _Lost(Exception):
    """Raised when another process has taken the import over, because this one did not renew its lease in time."""


class Importer:
    """Imports input files.

    ``route`` returns, for a batch, a function from a model to its upstream. ``describe`` formats an error for the message API.
    """

    def __init__(
        self,
        database: Database,
        queue: BatchQueue,
        catalog: Catalog,
        storage: FileStorage,
        *,
        route: Callable[[Batch], Route],
        describe: Callable[[LineError], bytes],
        line_bytes: int,
        max_items: int,
        strict: bool = False,
    ) -> None:
        self._database = database
        self._queue = queue
        self._catalog = catalog
        self._storage = storage
        self._route = route
        self._describe = describe
        self._line_bytes = line_bytes
        self._max_items = max_items
        self._strict = strict

    async def claim(self) -> Batch | None:
        """Claims a batch whose file no process reads, or whose reader died. Only claims files that this process can read."""
        now = time.time()
        dead = await self._queue.dead_processes(now)
        values = {"process": self._queue.process, "now": now, "dead": dead}
        for row in await self._database.fetch(f"SELECT * FROM batches WHERE {_WAITING}", **values):
            if not await self._storage.exists(row.input_file):
                if self._storage.shared or await self._catalog.file(row.input_file, None) is None:
                    await self._refuse(
                        batch_of(row), "the input file was deleted before it was read; upload it again and create a new batch"
                    )
                continue
            if await self._database.execute(_CLAIM, id=row.id, lease=now + LEASE_SECONDS, **values):
                return batch_of(row)
        return None

    async def run(self, batch: Batch) -> None:
        """Reads the file of a claimed batch. Leaves it to the process that has taken it over, if there is one."""
        with suppress(_Lost):
            await self._import(batch)

    async def _import(self, batch: Batch) -> None:
        await self._catalog.remove_parts(batch.id)
        reading = _FileReading(self, batch)
        splitter = LineSplitter(self._line_bytes)
        checker = LineChecker(batch.api, batch.endpoint, self._line_bytes, self._route(batch))
        try:
            async for chunk in self._storage.chunks(batch.input_file):
                await self._take(reading, checker, splitter.feed(chunk))
            await self._take(reading, checker, splitter.close())
            await reading.flush(last=True)
        except _Stopped:
            pass
        except StreamglotError as error:
            if isinstance(error, (StoreUnavailable, FileStorageUnavailable)):  # the import is repeated later
                raise
            await self._renew(batch)
            await self._refuse(batch, error.message)
            return
        await self._finish(batch, reading)

    async def _refuse(self, batch: Batch, why: str) -> None:
        """Ends a batch whose file cannot be read."""
        await self._catalog.remove_parts(batch.id)
        batch.errors, batch.total = [LineError("file_unreadable", why, None, "input_file_id")], 0
        await self._catalog.fail(batch)

    async def _take(self, reading: _FileReading, checker: LineChecker, lines: list[tuple[int, bytes | None]]) -> None:
        for number, line in lines:
            if line is not None and not line.strip():
                continue
            await reading.add(checker.check(number, line))
            if reading.total > self._max_items:
                error = LineError(
                    "too_many_requests", f"a batch has at most {self._max_items} requests (batches.max_items)", number
                )
                reading.refused = error
                raise _Stopped

    async def _finish(self, batch: Batch, reading: _FileReading) -> None:
        batch.errors, batch.total = reading.errors, reading.stored if reading.stopped else reading.total
        if reading.refused is not None:
            batch.errors = [reading.refused]
        elif not reading.total and not reading.stopped:
            batch.errors = [LineError("empty_file", "the input file has no requests; upload one with a request on each line")]
        bad = batch.api == FILE_API and bool(batch.errors) and (self._strict or reading.faults == reading.total)
        if not reading.stopped and (reading.refused is not None or bad):
            await self._renew(batch)
            await self._catalog.remove_parts(batch.id)
            batch.total = 0
            await self._catalog.fail(batch)
            return
        now = time.time()

        async def work(connection: Connection) -> None:
            row = await self._own(connection, batch)
            values: SqlRow = {"total": batch.total, "model": reading.model, "process": None, "lease": None}
            values["errors"] = as_json(batch.errors) if batch.errors else None
            if row.status == "validating":  # a batch that is being cancelled stays so
                values |= {"status": "in_progress", "times": as_json(batch_of(row).times | {"in_progress": now})}
            await update_batch(connection, batch.id, **values)
            await connection.execute(_RELEASE_JOBS, batch_id=batch.id, state=CLOSED if row.closing else OPEN)

        await self._database.write(work)

    async def _renew(self, batch: Batch) -> None:
        """Renews the lease, so that no other process reads the file while this one ends the import."""
        await self._database.write(lambda connection: self._own(connection, batch))

    async def _own(self, connection: Connection, batch: Batch) -> DatabaseRow:
        """Locks the row of the batch, renews the lease, and returns the row. Until the transaction ends, the batch is not
        cancelled."""
        row = await locked_batch(connection, batch.id)
        if row is None or row.process != self._queue.process:
            raise _Lost
        await update_batch(connection, batch.id, lease=time.time() + LEASE_SECONDS)
        return row

    async def store(self, batch: Batch, ranges: list[list[CheckedLine]], first: int) -> tuple[list[CheckedLine], int]:
        """Stores ranges of entries, beginning with item number ``first``.

        Returns those that repeat a custom_id, and the next number.
        """
        try:
            return await self._database.write(lambda connection: self._store(connection, batch, ranges, first, False))
        except NotUnique:  # a custom_id repeats one of an earlier transaction, which is rare
            return await self._database.write(lambda connection: self._store(connection, batch, ranges, first, True))

    async def _store(
        self, connection: Connection, batch: Batch, ranges: list[list[CheckedLine]], first: int, look_up: bool
    ) -> tuple[list[CheckedLine], int]:
        """``look_up``: ask the database first which of these custom_ids exist. Without it, the database refuses all of them if
        one exists."""
        if (await self._own(connection, batch)).closing:
            raise _Stopped
        known = await self._known(connection, batch, ranges) if look_up else {}
        repeats: list[CheckedLine] = []
        stored: list[list[CheckedLine]] = []
        for entries in ranges:
            unique = []
            for entry in entries:
                if entry.custom_id is not None and entry.custom_id in known:
                    repeats.append(repeated(entry, known[entry.custom_id]))
                else:
                    if entry.custom_id is not None:
                        known[entry.custom_id] = entry.line
                    unique.append(entry)
            if unique:
                stored.append(unique)
        return repeats, await self._insert(connection, batch, stored, first)

    async def _known(self, connection: Connection, batch: Batch, ranges: list[list[CheckedLine]]) -> dict[str, int]:
        """The lines of those custom_ids of these entries that the database has."""
        names = [entry.custom_id for entries in ranges for entry in entries if entry.custom_id is not None]
        return {row.custom_id: row.line for row in await connection.fetch(_KNOWN, batch_id=batch.id, names=names)}

    async def _insert(self, connection: Connection, batch: Batch, ranges: list[list[CheckedLine]], first: int) -> int:
        """Stores each range as items and a job; faults also as results. Returns the number after the last item."""
        items: list[SqlValues] = []
        jobs: list[SqlRow] = []
        for entries in ranges:
            begin = first + len(items)
            items += [(batch.id, number, entry.line, entry.custom_id, entry.body) for number, entry in enumerate(entries, begin)]
            state = HELD if entries[0].fault is None else CLOSED
            row = {"batch_id": batch.id, "first": begin, "last": begin + len(entries), "upstream": entries[0].upstream}
            jobs.append(row | {"priority": batch.priority, "state": state})
        await connection.insert(_ITEMS, items)
        await connection.insert(_JOBS, _JOBS.tuples(jobs))
        for entries, job in zip(ranges, jobs, strict=True):
            if job["state"] == CLOSED:
                await self._report(connection, batch, entries, job["first"])
        return first + len(items)

    async def _report(self, connection: Connection, batch: Batch, entries: list[CheckedLine], first: int) -> None:
        """Stores the results of a range of faults, and ends its job."""
        now = time.time()
        results = [
            Result(
                batch.id,
                number,
                "errored",
                fault_line(
                    batch, number, entry.custom_id, entry.fault, b"" if batch.api == FILE_API else self._describe(entry.fault)
                ),
                attempts=0,
                at=now,
            )
            for number, entry in enumerate(entries, first)
            if entry.fault is not None
        ]
        await connection.insert(RESULTS, list(map(astuple, results)))
        await self._queue.finish_job(connection, batch.id, first, first + len(entries))


class _FileReading:
    """A file that is being read. It fills one range per upstream, so that all items of a job have the same upstream."""

    def __init__(self, importer: Importer, batch: Batch) -> None:
        self.total = self.faults = 0
        self.errors: list[LineError] = []
        self.model = ""
        self.refused: LineError | None = None
        self.stopped = False
        self._importer = importer
        self._batch = batch
        self.stored = 0
        self._open: dict[str, list[CheckedLine]] = defaultdict(list)
        self._sizes: dict[str, int] = defaultdict(int)
        self._full: list[list[CheckedLine]] = []
        self._items = self._bytes = 0

    async def add(self, entry: CheckedLine) -> None:
        self.total += 1
        self.model = self.model or entry.model
        self._count(entry)
        name = entry.upstream
        self._open[name].append(entry)
        self._sizes[name] += len(entry.body)
        if len(self._open[name]) >= RANGE_ITEMS or self._sizes[name] >= RANGE_BYTES:
            self._close_range(name)
        self._items += 1
        self._bytes += len(entry.body)
        if self._items >= CHUNK_ITEMS or self._bytes >= CHUNK_BYTES:
            await self.flush()

    def _count(self, entry: CheckedLine) -> None:
        if entry.fault is not None:
            self.faults += 1
            if len(self.errors) < LISTED_ERRORS:
                self.errors.append(entry.fault)

    def _close_range(self, name: str) -> None:
        if entries := self._open.pop(name, []):
            self._full.append(entries)
        self._sizes.pop(name, None)

    async def flush(self, last: bool = False) -> None:
        """Stores the full ranges. Stores all ranges at the end of the file, or if there are only small ones."""
        if last or not self._full or self._bytes >= CHUNK_BYTES:
            for name in list(self._open):
                self._close_range(name)
        repeats: list[CheckedLine] = []
        try:
            repeats, self.stored = await self._importer.store(self._batch, self._full, self.stored)
            for entry in repeats:
                self._count(entry)
            if repeats:
                _, self.stored = await self._importer.store(self._batch, [repeats], self.stored)
        except _Stopped:
            self.stopped = True
            raise
        self._full.clear()
        self._items = sum(map(len, self._open.values()))
        self._bytes = sum(self._sizes.values())


class LineSplitter:
    """Splits bytes into lines with their numbers, from 1. A line of more than ``most`` bytes is returned as None."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._number = 0
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes | None]]:
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._hold(piece)
            lines.append(self._take())
        self._hold(rest)
        return lines

    def close(self) -> list[tuple[int, bytes | None]]:
        return [self._take()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._maximum:
            self._held.append(piece)
        else:
            self._held.clear()

    def _take(self) -> tuple[int, bytes | None]:
        self._number += 1
        line = b"".join(self._held) if self._size <= self._maximum else None
        self._held.clear()
        self._size = 0
        if line is not None and self._number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return self._number, line


class LineChecker:
    """Checks the lines of one batch. ``route`` finds the upstream of a model."""

    def __init__(self, api: str, endpoint: str, line_bytes: int, route: Route) -> None:
        self._api = api
        self._endpoint = endpoint
        self._line_bytes = line_bytes
        self._route = route

    def check(self, number: int, line: bytes | None) -> CheckedLine:
        if line is None:
            what = f"the line has more than {self._line_bytes} bytes (server.max_body_bytes); send less in one request"
            return _fault(number, None, "request_too_large", what)
        try:
            found = _line.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return _fault(number, None, "invalid_json_line", f"the line is not a JSON object: {error}")
        custom_id = found.custom_id
        if not isinstance(custom_id, str) or not custom_id:
            return _fault(number, None, "missing_required_parameter", "custom_id must be a string that is not empty", "custom_id")
        if len(custom_id) > CUSTOM_ID_CHARS or not custom_id.isprintable():
            rule = f"custom_id must have at most {CUSTOM_ID_CHARS} characters, all of them printable; it is {excerpt(custom_id)}"
            return _fault(number, None, "invalid_custom_id", rule, "custom_id")
        body = found.params
        if self._api == FILE_API:
            body = found.body
            if found.method != "POST":
                return _fault(
                    number, custom_id, "invalid_method", f"method must be POST; it is {excerpt(found.method)}", "method"
                )
            if found.url != self._endpoint:
                rule = f"url must be the endpoint of the batch, {self._endpoint}; it is {excerpt(found.url)}"
                return _fault(number, custom_id, "mismatched_endpoint", rule, "url")
        return self._with_body(number, custom_id, body)

    def _with_body(self, number: int, custom_id: str, body: Raw | UnsetType) -> CheckedLine:
        name = "body" if self._api == FILE_API else "params"
        try:
            model = _body.decode(body).model if body is not UNSET else None
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return _fault(number, custom_id, "invalid_request", f"{name} must be an object", name)
        if body is UNSET or not isinstance(model, str):
            missing = name if body is UNSET else f"{name}.model"
            return _fault(number, custom_id, "missing_required_parameter", f"{missing} is required", missing)
        try:
            upstream = self._route(model)
        except StreamglotError as error:
            return _fault(number, custom_id, error.code, error.message, f"{name}.model")
        return CheckedLine(number, custom_id, bytes(body), upstream, model)


def repeated(entry: CheckedLine, line: int | None) -> CheckedLine:
    """The entry for a custom_id that another line has. It has no custom_id, because each custom_id is reported once."""
    other = f"line {line}" if line is not None else "another line"
    what = f"the custom_id {excerpt(entry.custom_id)} is used by {other}; give each request a unique custom_id"
    return _fault(entry.line, None, "duplicate_custom_id", what, "custom_id")


def _fault(line: int, custom_id: str | None, code: str, message: str, param: str | None = None) -> CheckedLine:
    return CheckedLine(line, custom_id, b"", fault=LineError(code, message, line, param))
