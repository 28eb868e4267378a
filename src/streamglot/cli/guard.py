"""How a command ends when something goes wrong: a line on standard error and a status, never a traceback of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ..errors import ConfigError, StreamglotError
from .terminal import complain

BROKEN_PIPE = 141
"""What shells say of a program that wrote to nobody."""


@contextmanager
def guarded() -> Iterator[None]:
    """Settings and options that are wrong exit with 2, all other errors with 1, a reader that went away with silence."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None
    except ConfigError as error:
        complain(error.message)
        raise typer.Exit(2) from None
    except StreamglotError as error:
        complain(error.message)
        raise typer.Exit(1) from None
