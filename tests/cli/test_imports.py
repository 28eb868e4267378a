"""Commands import little, so that they start quickly. The time itself depends on the machine and is not tested."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.shell import Shell
from waiting import WAIT_SECONDS

SCRIPT = """\
import atexit, os, sys
atexit.register(lambda: os.write(2, "\\n".join(["", "modules:", *sys.modules]).encode()))
from streamglot.cli import main
main()
"""
SLOW = {
    "aiohttp",
    "genai_prices",
    "prometheus_client",
    "prompt_toolkit",
    "pydantic",
    "starlette",
    "typer",
    "uvicorn",
    "xllamacpp",
}
"""Packages that only some commands need."""
DATABASE = {"sqlite3"}
OTHER_DATABASE = {"asyncpg", "valkey"}


def imported(shell: Shell, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=shell.environment,
        cwd=shell.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.partition("modules:\n")[2].split("\n"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["query", "--help"],
        ["config", "show"],
        ["models"],
        ["query", "--no-log", "-m", "replay", "hi"],
    ],
    ids=" ".join,
)
def test_commands_without_a_store_import_no_database(shell: Shell, arguments: list[str]) -> None:
    assert not imported(shell, *arguments) & {*SLOW, *DATABASE, *OTHER_DATABASE, "rich"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "-m", "replay", "hi"],
        ["logs", "list"],
        ["logs", "show"],
        ["sessions", "list"],
    ],
    ids=" ".join,
)
def test_commands_with_a_store_import_no_other_database(shell: Shell, arguments: list[str]) -> None:
    shell.run("query", "-m", "replay", "first")  # it makes the database, at its newest version
    modules = imported(shell, *arguments)
    assert modules >= DATABASE
    assert not modules & {*SLOW, *OTHER_DATABASE}


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["--help"], {"ask", "logs", "serve", "batch", "policies"}),
        (["logs", "list"], {"ask", "chat", "serve", "batch", "tools"}),
        (["models"], {"ask", "logs", "serve", "tools"}),
        (["translate", "--help"], {"ask", "probe", "logs", "serve"}),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_command_loads_no_module_of_another_one(shell: Shell, arguments: list[str], others: set[str]) -> None:
    modules = imported(shell, *arguments)
    assert not modules & {f"streamglot.cli.commands.{name}" for name in others}
    assert not modules & {"streamglot.gateway", "streamglot.cli.question" if arguments != ["models"] else ""}
    if arguments == ["logs", "list"]:
        assert not modules & {"streamglot.client", "streamglot.engine"}
