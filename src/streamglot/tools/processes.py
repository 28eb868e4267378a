"""Child processes of tools: their output is limited, and they end with the call that started them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from .tool import ToolError

OUTPUT_BYTES: Final = 4 * 2**20
"""Bytes of output that are read from one process. A process that writes more is stopped, because no model reads that much."""
REAP_SECONDS: Final = 2.0
"""Seconds to wait for a killed process. A child that left the process group may hold its pipes open for longer."""
_READ_BYTES: Final = 2**16


class Done(Struct):
    status: int
    stdout: str
    stderr: str


ENVIRONMENT: Final = (
    *("HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERPROFILE"),
)
"""The variables that a program needs to run, on Unix and on Windows. Other variables of ours may be secrets, and a model decides what
a tool does."""


def program_environment(extra: Mapping[str, str] | None = None, *more: str) -> dict[str, str]:
    """The variables of a program that is started for a model: those that it needs to run, those named in ``more``, and ``extra``."""
    known = ((name, os.environ.get(name)) for name in (*ENVIRONMENT, *more))
    return {**{name: value for name, value in known if value is not None}, **(extra or {})}


async def run_process(
    command: Sequence[str], stdin: bytes = b"", cwd: str | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """Runs a program without a shell. A cancellation kills it with all processes that it started. ``env`` is added to the variables
    that every program gets."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=program_environment(env),
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{command[0]!r} cannot be started: {error.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        stdout, stderr, _ = await asyncio.gather(_read(process.stdout), _read(process.stderr), _write(process.stdin, stdin))
        status = await process.wait()
        return Done(status, stdout, stderr)
    finally:
        kill_group(process)
        await reap(process)


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Writes the input while the output is read. A program need not read its input."""
    with suppress(OSError):
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _read(stream: asyncio.StreamReader) -> str:
    pieces, size = [], 0
    while piece := await stream.read(_READ_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > OUTPUT_BYTES:
            raise ToolError(f"the process wrote more than {OUTPUT_BYTES // 2**20} MiB and was stopped")
    return b"".join(pieces).decode("utf-8", "replace")


async def reap(process: asyncio.subprocess.Process) -> None:
    """Reads what is left in the pipes of a process that was killed: its pipes are closed only after that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REAP_SECONDS):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(_READ_BYTES):
                    pass
            await process.wait()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills a process and what it started, which are a group of their own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
