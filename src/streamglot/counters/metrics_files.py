"""Shares the numbers of several processes in one folder: each process writes its own files, and any of them can read all.

A process writes its numbers several times a second, so a write is one system call on an open file. It alternates between two
files, so that one of them is complete even if the process is killed. A checksum shows which file is complete, a counter which is
newer.

The supervising process adds the numbers of a process that died to those of all that died before. That file lists the processes it
includes, so that nothing is counted twice.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct

T = TypeVar("T")
LIVE_SUFFIX: Final = ".live"
DEAD: Final = "dead"
NAMES: Final = 1000
"""Dead processes that are listed by name, because a reader may have read their files a moment ago."""
ATTEMPTS: Final = 5
"""Attempts to read a file that is being written at that moment."""
_HEAD: Final = struct.Struct("<IIQ")
"""Checksum of what follows, length of the numbers, and the number of earlier writes."""
_encode = msgspec.msgpack.Encoder().encode


class _Dead(Struct):
    """The sum of the ended processes, and their names."""

    names: list[str]
    numbers: msgspec.Raw


class MetricsFiles:
    """The files of one folder. If the disk fails, the affected numbers are missing from the page, without further effect."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._name = ""
        self._owner = 0
        self._files: list[int] = []
        self._writes = 0
        self._written = b""

    def write(self, numbers: object) -> None:
        """Writes the numbers of this process if they have changed."""
        data = _encode(numbers)
        if data == self._written and self._owner == os.getpid():
            return
        try:
            if self._owner != os.getpid():  # the first write, or the first one after a fork
                self._open()
            self._writes += 1
            body = _HEAD.pack(0, len(data), self._writes)[4:] + data
            os.pwrite(self._files[self._writes % 2], crc32(body).to_bytes(4, "little") + body, 0)
        except OSError:
            return
        self._written = data

    def _open(self) -> None:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        paths = [self._folder / f"{name}.{number}{LIVE_SUFFIX}" for number in range(2)]
        self._files = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600) for path in paths]
        self._name, self._owner = name, os.getpid()

    def read(self, kind: type[T]) -> tuple[list[T], list[T]]:
        """The numbers of the other living processes, and of those that ended."""
        found = self._living(kind)
        dead = self._dead()  # read last: a process that lived when its file was read may be included here too
        living = [numbers for name, numbers in found.items() if dead is None or name not in dead.names]
        return living, [] if dead is None else [msgspec.msgpack.decode(dead.numbers, type=kind)]

    def retire(self, process: int, kind: type[T], add: Callable[[list[T]], T]) -> None:
        """Adds the numbers of a process that died to those of the others that died. Only one process may do this."""
        dead = self._dead() or _Dead([], msgspec.Raw(_encode(add([]))))
        for name, numbers in self._living(kind, f"{process}-").items():
            both = add([msgspec.msgpack.decode(dead.numbers, type=kind), numbers])
            dead = _Dead([*dead.names, name][-NAMES:], msgspec.Raw(_encode(both)))
        new = self._folder / f"{DEAD}.new"
        try:
            new.write_bytes(_encode(dead))
            new.replace(self._folder / DEAD)
        except OSError:
            return
        for path in self._folder.glob(f"{process}-*{LIVE_SUFFIX}"):
            with suppress(OSError):
                path.unlink()

    def _living(self, kind: type[T], prefix: str = "") -> dict[str, T]:
        """The newest numbers of each process, by its name."""
        newest: dict[str, tuple[int, bytes]] = {}
        for path in self._folder.glob(f"{prefix}*{LIVE_SUFFIX}"):
            name = path.name.partition(".")[0]
            read = _whole(path) if name != self._name else None
            if read is not None and (name not in newest or newest[name][0] < read[0]):
                newest[name] = read
        return {name: msgspec.msgpack.decode(data, type=kind) for name, (_, data) in newest.items()}

    def _dead(self) -> _Dead | None:
        try:
            return msgspec.msgpack.decode((self._folder / DEAD).read_bytes(), type=_Dead)
        except (OSError, ValueError):
            return None


def _whole(path: Path) -> tuple[int, bytes] | None:
    """A file's content and the number of its write; None if the file was never written completely."""
    for _ in range(ATTEMPTS):
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) > _HEAD.size:
            check, length, writes = _HEAD.unpack_from(data)
            end = _HEAD.size + length
            if len(data) >= end and crc32(data[4:end]) == check:
                return writes, data[_HEAD.size : end]
    return None
