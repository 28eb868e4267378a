"""Numbers of several processes in one folder: each writes a file of its own, and any of them can read all.

A file is replaced whole, so that a reader never sees half of one, and a process that is killed leaves its last numbers behind. The
process that watches over the others adds the numbers of one that died to those of all that died before; their file lists what it
holds, so that nothing is counted twice while that happens.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")
LIVING: Final = ".live"
DEAD: Final = "dead"
NAMES: Final = 1000
"""Files of dead processes that are remembered by name: a reader may still hold what it read of them a moment ago."""
_encode = msgspec.msgpack.Encoder().encode


class _Dead(Struct):
    """The sum of the processes that are gone, and the names of their files."""

    names: list[str]
    numbers: msgspec.Raw


class MetricsFiles:
    """What is not written or read because of the disk is missing from the page, and nothing else."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._name = ""
        self._owner = 0
        self._written = b""

    def write(self, numbers: Any) -> None:
        """The numbers of this process, if they are others than before."""
        if self._owner != os.getpid():  # the first time, and again behind a fork
            self._owner, self._written = os.getpid(), b""
            self._name = f"{self._owner}-{secrets.token_hex(4)}{LIVING}"
        data = _encode(numbers)
        if data != self._written and self._put(self._name, data):
            self._written = data

    def read(self, kind: type[T]) -> tuple[list[T], list[T]]:
        """The numbers of the other living processes, and of those that are gone."""
        found = {path.name: _decoded(path, kind) for path in self._folder.glob(f"*{LIVING}") if path.name != self._name}
        dead = _decoded(self._folder / DEAD, _Dead)  # the last of all: what was living when it was read may stand here too
        living = [numbers for name, numbers in found.items() if numbers is not None and (dead is None or name not in dead.names)]
        return living, [] if dead is None else [msgspec.msgpack.decode(dead.numbers, type=kind)]

    def retire(self, process: int, kind: type[T], add: Callable[[list[T]], T]) -> None:
        """Adds the numbers of a process that died to those of the others that did. Only one process may do this."""
        dead = _decoded(self._folder / DEAD, _Dead) or _Dead([], msgspec.Raw(_encode(add([]))))
        for path in self._folder.glob(f"{process}-*{LIVING}"):
            numbers = _decoded(path, kind)
            if numbers is not None:
                both = add([msgspec.msgpack.decode(dead.numbers, type=kind), numbers])
                dead = _Dead([*dead.names, path.name][-NAMES:], msgspec.Raw(_encode(both)))
                if not self._put(DEAD, _encode(dead)):
                    return
            with suppress(OSError):
                path.unlink()

    def _put(self, name: str, data: bytes) -> bool:
        new = self._folder / f"{name}.{os.getpid()}.new"
        try:
            new.write_bytes(data)
            new.replace(self._folder / name)
        except OSError:
            return False
        return True


def _decoded(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):
        return None
