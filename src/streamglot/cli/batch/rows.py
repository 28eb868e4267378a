"""The files of a run: rows read one by one from CSV, JSON Lines or Parquet, and one JSON object a line written for each.

No file is held in memory. A line is appended when its row is done, and a later run resumes from the output. A run can end in any
way: only the last line can be incomplete. A new run removes that line and the rows that failed, and keeps the rows that are done.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol
from zlib import crc32

import msgspec
from msgspec import Struct

from ...errors import ConfigError
from ...installation import require
from ...json_types import JsonObject
from ..options import shown

ROW_BYTES: Final = 32 * 2**20
"""Bytes of the largest line or cell: the gateway accepts no larger request."""
PARQUET_ROWS: Final = 256
"""Rows of a Parquet file that are decoded at a time."""

_decode = msgspec.json.Decoder().decode


class Row(Struct):
    """One row. ``number`` counts from 1. A row that cannot be read has an ``error`` in place of ``values``."""

    number: int
    values: JsonObject
    error: str = ""


class Rows(Protocol):
    """``columns`` is None if the columns are not known before the first row is read. ``total`` is None if the number of rows is
    not known."""

    columns: list[str] | None
    total: int | None

    def __iter__(self) -> Iterator[Row]: ...
    def fraction(self) -> float:
        """The part of the file that was read, from 0 to 1."""


def open_rows(path: Path) -> Rows:
    """Opens a file. The suffix of its name determines the format."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(f"the format of {shown(path)} is not supported: the name must end with {', '.join(FORMATS)}")
    try:
        return FORMATS[kind](path)
    except OSError as error:
        raise ConfigError(f"the file {shown(path)} cannot be read: {error.strerror or error}") from None


class _File:
    """A file that reports how much of it was read."""

    columns: list[str] | None = None
    total: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._file: IO[bytes] = path.open("rb", buffering=2**18)

    def fraction(self) -> float:
        return min(1.0, self._file.tell() / self._size) if self._size and not self._file.closed else 1.0


class JsonLines(_File):
    """One JSON object a line. Empty lines are skipped."""

    def __iter__(self) -> Iterator[Row]:
        with self._file as file:
            number = 0
            while line := file.readline(ROW_BYTES + 1):
                number += 1
                if len(line) > ROW_BYTES:
                    while line and not line.endswith(b"\n"):
                        line = file.readline(ROW_BYTES)
                    yield Row(number, {}, f"the line is longer than {ROW_BYTES} bytes")
                elif line.strip():
                    yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Row:
    try:
        value = _decode(line)
    except (ValueError, RecursionError) as error:
        return Row(number, {}, f"the line is not JSON: {error}")
    if not isinstance(value, dict):
        return Row(number, {}, "the line is not a JSON object")
    return Row(number, value)


class Csv(_File):
    """A table with its column names in the first line."""

    delimiter = ","

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        csv.field_size_limit(ROW_BYTES)
        self._lines = csv.reader(_text_lines(self._file), delimiter=self.delimiter, strict=True)
        try:
            self.columns = next(self._lines, [])
        except csv.Error as error:
            raise ConfigError(f"{shown(path)} is not CSV: {error}") from None
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise ConfigError(f"the first line of {shown(path)} must have the names of the columns, each name once")

    def __iter__(self) -> Iterator[Row]:
        number = 0
        assert self.columns is not None
        with self._file:
            while True:
                number += 1
                try:
                    cells = next(self._lines)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield Row(number, {}, f"the row is not CSV: {error}")
                    continue
                if not cells:
                    number -= 1  # an empty line is not a row
                elif len(cells) != len(self.columns):
                    yield Row(number, {}, f"the row has {len(cells)} cells, but the file has {len(self.columns)} columns")
                else:
                    yield Row(number, dict(zip(self.columns, cells, strict=True)))


class Tsv(Csv):
    delimiter = "\t"


def _text_lines(file: IO[bytes]) -> Iterator[str]:
    """The lines of a file as text, without a byte order mark; bytes that are not UTF-8 become U+FFFD."""
    first = True
    while line := file.readline(ROW_BYTES):
        yield line.decode("utf-8-sig" if first else "utf-8", "replace")
        first = False


class Parquet:
    """A Parquet file, a few rows at a time."""

    def __init__(self, path: Path) -> None:
        require("pyarrow")
        import pyarrow  # type: ignore[import-untyped]  # pyarrow has no types
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]  # pyarrow has no types

        try:
            self._file: Any = ParquetFile(path)  # Any: for the same reason
        except pyarrow.ArrowException as error:
            raise ConfigError(f"{shown(path)} is not a Parquet file: {error}") from None
        self.columns: list[str] | None = list(self._file.schema_arrow.names)
        self.total: int | None = self._file.metadata.num_rows
        self._read = 0

    def __iter__(self) -> Iterator[Row]:
        with self._file as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for values in batch.to_pylist():
                    self._read += 1
                    yield Row(self._read, values)

    def fraction(self) -> float:
        return self._read / self.total if self.total else 1.0


FORMATS: Final[dict[str, type[JsonLines] | type[Csv] | type[Parquet]]] = {
    ".csv": Csv,
    ".tsv": Tsv,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".parquet": Parquet,
}


try:
    import fcntl
except ModuleNotFoundError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # there is no other way to say that a module may be missing

# --- the output

COPY_BYTES: Final = 2**20
"""Bytes that are read at a time while the file is copied."""

Done = Callable[[JsonObject], tuple[int, bytes, bool] | None]
"""Parses a line of the output: the number of its row, the identity of the row, and whether it succeeded. None if no run wrote the
line."""


class RowsDone:
    """The set of finished rows, with a checksum of each row's content. It takes five bytes a row."""

    def __init__(self) -> None:
        self.count = 0
        self._sums = array("I")
        self._flags = bytearray()

    def add(self, number: int, row: bytes) -> None:
        if number > len(self._flags):
            more = max(number - len(self._flags), len(self._flags))
            self._flags.extend(bytes(more))
            self._sums.extend([0] * more)
        self.count += not self._flags[number - 1]
        self._flags[number - 1] = 1
        self._sums[number - 1] = crc32(row)

    def has(self, number: int) -> bool:
        return 0 < number <= len(self._flags) and bool(self._flags[number - 1])

    def same(self, number: int, row: bytes) -> bool:
        return self._sums[number - 1] == crc32(row)


class OutputFile:
    """``done`` has the rows that an earlier run finished."""

    def __init__(self, path: Path, read: Done) -> None:
        self.path = path
        self.done = RowsDone()
        try:
            self._file = self._open()
            self._resume(read)
        except OSError as error:
            raise ConfigError(f"{shown(path)} cannot be written: {error.strerror or error}") from None

    def write(self, line: JsonObject) -> None:
        """Appends a line. When this returns, the line is in the file and survives a kill of the process."""
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+b")
        if fcntl is not None:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise ConfigError(
                    f"another run is writing to {shown(self.path)}; wait until it ends, or name another file with -o"
                ) from None
        return file

    def _resume(self, read: Done) -> None:
        """Reads the existing file and keeps only complete lines of rows that succeeded."""
        drop: list[tuple[int, int]] = []
        whole = 0
        for start, end, line in self._lines():
            if not line.endswith(b"\n"):
                break
            whole = end
            parsed = _parse_line(line, read)
            if parsed is None:
                raise ConfigError(
                    f"{shown(self.path)} has a line at byte {start} that no run wrote; name another file with -o, or remove it"
                )
            number, row, succeeded = parsed
            if succeeded:
                self.done.add(number, row)
            elif drop and drop[-1][1] == start:
                drop[-1] = drop[-1][0], end
            else:
                drop.append((start, end))
        if drop:
            self._rewrite(drop, whole)
        elif whole < self._file.seek(0, os.SEEK_END):
            self._file.truncate(whole)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        self._file.seek(0)
        start = 0
        for line in self._file:
            yield start, start + len(line), line
            start += len(line)

    def _rewrite(self, drop: list[tuple[int, int]], whole: int) -> None:
        """Removes these ranges. The new file replaces the old one atomically, so that a kill loses nothing."""
        new = self.path.with_name(f"{self.path.name}.new")
        with new.open("wb") as copy:
            for start, end in zip([0, *(end for _, end in drop)], [*(start for start, _ in drop), whole], strict=True):
                self._file.seek(start)
                left = end - start
                while left and (piece := self._file.read(min(left, COPY_BYTES))):
                    copy.write(piece)
                    left -= len(piece)
            copy.flush()
            os.fsync(copy.fileno())
        os.replace(new, self.path)
        old, self._file = self._file, self._open()
        old.close()


def _parse_line(line: bytes, read: Done) -> tuple[int, bytes, bool] | None:
    try:
        value = _decode(line)
    except (ValueError, RecursionError):
        return None
    return read(value) if isinstance(value, dict) else None
