"""A frame: one message of a wire format, still as bytes."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from ..errors import StreamglotError
from ..limits import Limits


class Frame(Struct, frozen=True, gc=False):
    """``data`` is a payload; ``comment`` a keep-alive; ``stray`` a line that belongs to no event (often an error); ``exception``
    an error that the wire format marks as one, named in ``event``."""

    data: bytes
    event: str = ""
    kind: Literal["data", "comment", "stray", "exception"] = "data"


class Framing(Protocol):
    """A box that splits bytes into frames. ``close`` returns the frames that the end of the input completes.

    An exceeded limit or a broken frame does not discard the frames before it: it is stored in ``error``, and nothing more is
    read.
    """

    @property
    def error(self) -> StreamglotError | None: ...

    def __init__(self, limits: Limits = ...) -> None: ...
    def feed(self, chunk: bytes) -> list[Frame]: ...
    def close(self) -> list[Frame]: ...
