"""Our MCP server, seen by the command line of the MCP inspector. It is installed once into the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.shell import PROGRAM, Shell
from tools.mcp_process import mcp_server

PACKAGE = "@modelcontextprotocol/inspector@0.15.0"
"""The newest one that runs with Node 20."""
INSTALL_SECONDS = 300.0
ATTEMPTS = 5
TIMED_OUT = b"timed out"


@pytest.fixture(scope="session")
def inspector() -> str:
    """The path of the inspector. Without it the tests say what is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamglot" / PACKAGE.replace("/", "-")
    program = cache / "node_modules" / ".bin" / "mcp-inspector"
    if not program.exists():
        why = "npm is not installed" if shutil.which("npm") is None else _install(cache)
        if why:
            warnings.warn(f"NOT CHECKED with the MCP inspector: {why}", stacklevel=1)
            pytest.skip(why)
    return str(program)


def _install(cache: Path) -> str:
    """The fault as a text. Several test runs may do this at once: the first one that is done counts."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", f"{folder}/new", PACKAGE]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            return "npm did not finish in time"
        if done.returncode:
            return f"npm failed: {done.stderr.decode()[-300:]}"
        with suppress(OSError):
            Path(folder, "new").rename(cache)
    return ""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    config = tmp_path / "streamglot.toml"
    config.write_text(f'[tools]\nenabled = ["calculator"]\n{config.read_text()}')
    return shell


def _ask(inspector: str, shell: Shell, *words: str) -> Any:
    """The output of the inspector. It waits a fixed time for an answer. On a busy machine that may be too short; then it is run
    again."""
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            [inspector, "--cli", *words], capture_output=True, check=False, env=shell.environment, cwd=shell.home
        )
        if done.returncode == 0 or TIMED_OUT not in done.stderr.lower():
            break
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _check(inspector: str, shell: Shell, *server: str) -> None:
    listed = _ask(inspector, shell, *server, "--method", "tools/list")
    assert {tool["name"] for tool in listed["tools"]} == {"calculator", "query"}
    call = ("--method", "tools/call", "--tool-name", "calculator", "--tool-arg")
    assert _ask(inspector, shell, *server, *call, "expression=6 * 7")["content"] == [{"type": "text", "text": "42"}]
    assert _ask(inspector, shell, *server, *call, "expression=1 / 0")["isError"] is True


def test_over_standard_input_and_output(inspector: str, shell: Shell) -> None:
    _check(inspector, shell, PROGRAM, "mcp")


def test_over_http(inspector: str, shell: Shell) -> None:
    with mcp_server([PROGRAM, "mcp", "--port"], shell.home, shell.environment) as address:
        _check(inspector, shell, address, "--transport", "http")
