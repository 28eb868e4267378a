"""A frame: one message of a wire, still in bytes."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from ..errors import LimitExceeded
from ..limits import Limits


class Frame(Struct, frozen=True, gc=False):
    """``data`` is a payload; ``comment`` a keep-alive; ``stray`` a line that belongs to no event (an error, often)."""

    data: bytes
    event: str = ""
    kind: Literal["data", "comment", "stray"] = "data"


class Framing(Protocol):
    """The box that cuts bytes into frames. ``close`` gives what the end of the input leaves.

    A limit that is passed does not throw away the frames before it: it is left in ``error``, and nothing more is read.
    """

    error: LimitExceeded | None

    def __init__(self, limits: Limits = ...) -> None: ...
    def feed(self, chunk: bytes) -> list[Frame]: ...
    def close(self) -> list[Frame]: ...
