"""The standard streams of the process: open when the program starts, written to the end when it leaves."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

_MODES = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""How a stream that the caller closed is opened on the null device. Reading finds nothing; messages go nowhere. Standard output
is opened so that writing to it fails, because the caller must learn that the output is lost."""


def open_standard_streams() -> None:
    """Opens what the caller closed: the next file that is opened must not become a standard stream. Bytes that are no text in
    the input's encoding are read as U+FFFD; characters that the output's encoding lacks are written as escapes."""
    for number, (name, flags, mode) in enumerate(_MODES):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, flags)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # it stays open as long as the process lives
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")


def flush_failure(stream: TextIO) -> OSError | None:
    """Writes out what the stream holds. If that fails, the error; what is left to be written is then thrown away, so that
    the interpreter does not fail on it once more and exit with a status of its own (120)."""
    try:
        stream.flush()
    except OSError as error:
        discard(stream)
        return error
    except ValueError:  # the stream is closed
        return None
    return None


def discard(stream: TextIO) -> None:
    """From now on, what is written to this stream goes to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    except (OSError, ValueError):  # it is no file: a test's own stream
        return
    finally:
        os.close(null)


def is_broken_pipe(error: OSError) -> bool:
    return error.errno == errno.EPIPE
