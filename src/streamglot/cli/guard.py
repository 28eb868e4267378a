"""How a command ends when something goes wrong: a line on standard error and a status, never a traceback of ours."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

import typer

from ..errors import ConfigError, StreamglotError
from .terminal import complain

BROKEN_PIPE = 141
"""What shells say of a program that wrote to nobody."""
FAREWELLS: Final = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """Somebody ended the program: Ctrl-C, but for good. ``status`` is what shells say of it."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP stop an answer as Ctrl-C does, so that what came of it is kept. A second one changes nothing (a
    terminal that goes away sends several), and one that is ignored (``nohup``) stays so."""
    heeded = [number for number in FAREWELLS if signal.getsignal(number) is signal.SIG_DFL]
    status = 0

    def end(number: int, _: FrameType | None) -> NoReturn:
        nonlocal status
        status = 128 + number
        for other in heeded:
            signal.signal(other, signal.SIG_IGN)
        raise Ended(status)

    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    except Ended as ended:
        raise typer.Exit(ended.status) from None
    except OSError:  # a terminal that went away takes no words
        if not status:
            raise
        _write_nowhere()
        raise typer.Exit(status) from None
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def guarded() -> Iterator[None]:
    """Settings and options that are wrong exit with 2, all other errors with 1, a reader that went away with silence."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        raise typer.Exit(BROKEN_PIPE) from None
    except ConfigError as error:
        complain(error.message)
        raise typer.Exit(2) from None
    except StreamglotError as error:
        complain(error.message)
        raise typer.Exit(1) from None


def _write_nowhere() -> None:
    """What is left to be written would only fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
