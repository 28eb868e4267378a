"""A frame: one message of a wire, still in bytes."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from ..errors import StreamglotError
from ..limits import Limits


class Frame(Struct, frozen=True, gc=False):
    """``data`` is a payload; ``comment`` a keep-alive; ``stray`` a line that belongs to no event (an error, often);
    ``exception`` an error that the wire itself marks as one, named in ``event``."""

    data: bytes
    event: str = ""
    kind: Literal["data", "comment", "stray", "exception"] = "data"


class Framing(Protocol):
    """The box that cuts bytes into frames. ``close`` gives what the end of the input leaves.

    A limit that is passed, or a frame that is broken, does not throw away the frames before it: it is left in ``error``,
    and nothing more is read.
    """

    @property
    def error(self) -> StreamglotError | None: ...

    def __init__(self, limits: Limits = ...) -> None: ...
    def feed(self, chunk: bytes) -> list[Frame]: ...
    def close(self) -> list[Frame]: ...
