"""Reads the rows of an input file one by one: CSV, JSON Lines or Parquet. The file is never held in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
from msgspec import Struct

from ...errors import ConfigError
from ...extras import require
from ...json_types import JsonObject
from ..files import shown

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
        """Returns the part of the file that was read, from 0 to 1."""


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
    """Yields the lines of a file as text, without a byte order mark; bytes that are not UTF-8 become U+FFFD."""
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
