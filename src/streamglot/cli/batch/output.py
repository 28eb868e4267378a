"""The output file of a run: one JSON object a line, appended when its row is done. A later run resumes from it.

A run can end in any way: only the last line of the file can be incomplete. A new run removes that line and the rows that
failed, and keeps the rows that are done.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final
from zlib import crc32

import msgspec

from ...errors import ConfigError
from ...json_types import JsonObject
from ..files import shown

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # there is no other way to say that a module may be missing

_decode = msgspec.json.Decoder().decode
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
