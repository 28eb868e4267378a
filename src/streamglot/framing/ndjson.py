"""One JSON value per line."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import LimitExceeded
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame
from .lines import Lines


class NdJson:
    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._lines = Lines(limits)

    @property
    def error(self) -> LimitExceeded | None:
        return self._lines.error

    def feed(self, chunk: bytes) -> list[Frame]:
        return self._frames(self._lines.feed(chunk))

    def close(self) -> list[Frame]:
        return self._frames(self._lines.close())

    def _frames(self, lines: Iterable[bytes]) -> list[Frame]:
        return [Frame(line) for line in lines if line.strip()]


def line(data: bytes) -> bytes:
    """One line. There are no keep-alive lines: clients fail on an empty one."""
    return data + b"\n"
