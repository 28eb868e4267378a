"""Our own MCP server, seen by the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from cli.shell import PROGRAM, Shell, text_answer
from tools.mcp_process import mcp_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.add_recording("talk", text_answer("hello ", "world"))
    config = tmp_path / "streamglot.toml"
    config.write_text(f'[tools]\nenabled = ["calculator"]\n{config.read_text()}')
    return shell


async def _use_tools(client: Any) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == {"calculator", "query"}
    assert listed["calculator"].annotations.read_only_hint
    assert (await client.call_tool("calculator", {"expression": "6 * 7"})).content[0].text == "42"
    assert (await client.call_tool("query", {"prompt": "hi", "model": "talk"})).content[0].text == "hello world"
    for name, arguments in (
        ("calculator", {"expression": "1 / 0"}),
        ("calculator", {"formula": "1"}),
        ("nothing", {}),
        ("query", {"prompt": "hi", "model": "unknown/model"}),
    ):
        assert (await client.call_tool(name, arguments)).is_error


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_over_standard_input_and_output(shell: Shell, mode: Any) -> None:
    server = StdioServerParameters(command=PROGRAM, args=["mcp"], env=shell.environment, cwd=shell.home)
    async with Client(server, mode=mode, read_timeout_seconds=60) as client:
        await _use_tools(client)


async def test_the_official_client_over_http(shell: Shell) -> None:
    with mcp_server([PROGRAM, "mcp", "--port"], shell.home, shell.environment) as address:
        async with Client(address, read_timeout_seconds=60) as client:
            await _use_tools(client)


async def test_tools_serve_offers_the_tools_alone(shell: Shell) -> None:
    server = StdioServerParameters(command=PROGRAM, args=["tools", "serve"], env=shell.environment, cwd=shell.home)
    async with Client(server, read_timeout_seconds=60) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["calculator"]


def test_a_terminal_shows_the_purpose_and_ctrl_c_ends_it(shell: Shell) -> None:
    with shell.terminal("mcp") as terminal:
        terminal.until(b"this speaks MCP on standard input and output", b"Ctrl-C ends it")
        terminal.type("hello\n")
        terminal.type("\x03")
        assert terminal.end() == 130


def test_the_address_is_printed_and_a_port_in_use_is_refused(shell: Shell) -> None:
    with shell.started("mcp", "--port", "0") as process:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
        assert port
        second = shell.run("mcp", "--port", str(port))
        assert (second.returncode, f"cannot listen at 127.0.0.1:{port}".encode() in second.stderr) == (2, True), second
        process.terminate()
        process.wait()
