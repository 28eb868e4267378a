"""Finds out whether a call begins, without emitting it."""

from __future__ import annotations

from collections.abc import Generator

from .declared import Declared
from .emitter import Emitter
from .engines.engine import FormatEngine
from .reader import CallReader
from .scan import Malformed, Source


class _Certain(Exception):
    """A probe has found that a call begins here."""


class _Probe(Emitter):
    def start_call(self, name: str, call_id: str) -> None:  # noqa: ARG002  # only the start matters
        raise _Certain


def call_begins(engine: FormatEngine, source: Source, declared: Declared, opener: str) -> Generator[None, None, bool]:
    """Whether the engine finds a call after this opener. The source keeps a record of what was read."""
    try:
        yield from engine.read(CallReader(source, _Probe(), declared), opener)
    except _Certain:
        return True
    except Malformed:
        return False
    return False
