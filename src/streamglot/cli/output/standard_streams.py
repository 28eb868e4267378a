"""The standard streams of the process: opens them at the start and flushes them at the end."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

_MODES = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""How a stream that the caller closed is opened on the null device. Standard input is empty, and messages are discarded. Standard
output is opened for reading, so that a write fails and the caller learns that the output is lost."""


def open_standard_streams() -> None:
    """Opens streams that the caller closed, so that the next opened file does not become a standard stream. Input bytes that are
    not valid in their encoding are read as U+FFFD; characters that the output's encoding lacks are written as escapes."""
    for number, (name, flags, mode) in enumerate(_MODES):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, flags)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # it stays open until the process ends
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")


def flush_failure(stream: TextIO) -> OSError | None:
    """Flushes the stream and returns the error if that fails. The rest of the output is then discarded, so that the interpreter
    does not fail on it again and exit with its own status (120)."""
    try:
        stream.flush()
    except OSError as error:
        discard(stream)
        return error
    except ValueError:  # the stream is closed
        return None
    return None


def discard(stream: TextIO) -> None:
    """Sends all further output of this stream to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    except (OSError, ValueError):  # not a file: a stream of a test
        return
    finally:
        os.close(null)


def is_broken_pipe(error: OSError) -> bool:
    return error.errno == errno.EPIPE
