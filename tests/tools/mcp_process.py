"""An MCP server in a process of its own, over HTTP."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import warm
from ports import free_port
from waiting import WAIT_SECONDS, until

START_SECONDS = 2 * WAIT_SECONDS
"""Seconds for a server to list its tools. Two processes import the SDK for it, one after the other."""


@contextmanager
def mcp_server(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Starts the command with a free port as its last word, and gives the address."""
    port = free_port()
    process = warm.Popen([*command, str(port)], cwd=directory, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port), lambda: "the MCP server did not start")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
