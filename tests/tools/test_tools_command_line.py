"""Tools at the command line: query and chat with tools, approval, and the tools command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.shell import Shell
from streamglot.cli.question import Approval, add_server, question_about
from streamglot.config import Config, LoadedConfig
from streamglot.errors import ConfigError
from streamglot.tools import Tool
from tools.chat_model import ChatModel
from tools.mcp_process import START_SECONDS

TOOLS = """
import streamglot

@streamglot.tool(read_only=True)
def weather(city: str) -> str:
    "The weather in a city."
    return "sunny in " + city

@streamglot.tool
def delete(city: str) -> str:
    return "deleted " + city
"""
ANSWER = b"sunny in Paris and sunny in Rome"
SERVER = str(Path(__file__).with_name("mcp_test_server.py"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    model = ChatModel()
    shell = Shell(tmp_path)
    (tmp_path / "mytools.py").write_text(TOOLS)
    config = tmp_path / "streamglot.toml"
    config.write_text(
        f'[tools]\npython = ["{tmp_path / "mytools.py"}"]\n{config.read_text()}'
        f'[upstreams.scripted]\nbase_url = "{model.url}"\nmodels = ["m"]\n'
    )
    yield shell
    model.close()


def test_query_runs_the_tools_that_it_names(shell: Shell) -> None:
    done = shell.run("query", "-m", "m", "-T", "wea*", "What is the weather?")
    assert (done.returncode, ANSWER in done.stdout) == (0, True), done.stderr
    assert b"sunny in Rome" in done.stderr


def test_a_tool_that_changes_something_needs_approval(shell: Shell) -> None:
    refused = shell.run("query", "-m", "m", "-T", "delete", "go")
    assert b"does not allow this call" in refused.stdout, refused
    assert b"there is no terminal to ask at; --approve 'delete=always' allows it" in refused.stderr, refused
    allowed = shell.run("query", "-m", "m", "-T", "delete", "--approve", "delete=always", "go")
    assert b"deleted Paris and deleted Rome" in allowed.stdout, allowed
    never = shell.run("query", "-m", "m", "-T", "weather", "--approve", "never", "go")
    assert b"does not allow this call" in never.stdout, never


def test_approval_is_asked_for_at_the_terminal(shell: Shell) -> None:
    with shell.terminal("query", "-m", "m", "-T", "delete", "go") as terminal:
        before = terminal.until(b'Run delete({"city":"Paris"})? [y/N]').partition(b"Run delete")[0]
        assert before.count(b"delete(") == 2, "the question must come after the lines with the calls"
        assert before.rstrip(b" ").endswith(b"\n"), before
        terminal.type("y\n")
        terminal.until(b'Run delete({"city":"Rome"})? [y/N]')
        terminal.type("n\n")
        terminal.until(b"deleted Paris and")


def test_chat_runs_tools_too(shell: Shell) -> None:
    done = shell.run("chat", "-m", "m", "--tools", "weather", stdin=b"weather?\n")
    assert ANSWER in done.stdout, done.stderr


def test_tools_are_listed_shown_and_run(shell: Shell) -> None:
    listed = shell.run("tools", "list", "--all", "--json")
    names = {row["name"]: row["enabled"] for row in msgspec.json.decode(listed.stdout)}
    assert names == {"calculator": False, "delete": False, "time": False, "weather": False}
    none = shell.run("tools", "list")
    assert (none.returncode, none.stdout) == (0, b"")
    assert b"no tool that matches '*' is enabled (tools.enabled); `streamglot tools list --all`" in none.stderr
    assert b"no tool matches 'x*'" in shell.run("tools", "list", "--all", "x*").stderr
    missing = shell.run("tools", "run", "weather")
    assert (missing.returncode, b"required argument 'city' is missing; `streamglot tools show weather`" in missing.stderr) == (
        2,
        True,
    )
    assert b'"city"' in shell.run("tools", "show", "weather").stdout
    assert shell.run("tools", "run", "weather", "city=5").stdout == b"sunny in 5\n"
    for arguments in (["nothing"], ["weather"], ["weather", "city"]):
        assert shell.run("tools", "run", *arguments).returncode != 0
    failed = shell.run("tools", "run", "calculator", "expression=1/0")
    assert (failed.returncode, b"cannot be calculated" in failed.stderr) == (1, True)


def test_a_group_without_a_command_shows_its_help_once(shell: Shell) -> None:
    done = shell.run("tools")
    assert (done.returncode, done.stdout, done.stderr.count(b"Usage:")) == (2, b"", 1)
    assert b"Show the description and the arguments" in done.stderr


def test_tools_of_an_mcp_server_are_run(shell: Shell) -> None:
    config = shell.home / "streamglot.toml"
    config.write_text(
        f'{config.read_text()}[tools.mcp.docs]\ncommand = ["{sys.executable}", "{SERVER}"]\nstart_seconds = {START_SECONDS}\n'
    )
    done = shell.run("tools", "run", "docs.echo", "text=hello")
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr


def test_arguments_shown_for_approval_have_no_control_sequences() -> None:
    shown = question_about(Tool("rm"), {"path": "\x1b[2J\u202e" + "x" * 5000})
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "characters)" in shown


def test_servers_are_named_added_by_address_or_by_command() -> None:
    loaded = LoadedConfig(Config())
    assert add_server(loaded, "https://example.com/mcp") == "mcp"
    assert add_server(loaded, "python docs-server.py") == "docs_server"
    assert add_server(loaded, "python docs-server.py") == "docs_server_"
    assert add_server(loaded, "mcp") == "mcp"
    with pytest.raises(ConfigError, match="--mcp needs"):
        add_server(loaded, "")
    with pytest.raises(ConfigError, match="--approve must be"):
        Approval(["sometimes"])


def test_the_question_waits_until_the_call_is_shown() -> None:
    async def scenario() -> None:
        approval = Approval([])
        looks = iter([False, False, True])
        approval.is_shown = lambda: next(looks)
        asked: list[str] = []

        def ask(question: str) -> bool:
            asked.append(question)
            return next(looks, None) is None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamglot.cli.question._ask", ask)
            assert await approval(Tool("rm"), {})
        assert asked == ["Run rm({})? [y/N] "]

    asyncio.run(scenario())
