"""The options for tools: which tools a model gets, from which MCP servers, and who approves a call."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from ..client import Client
from ..config import LoadedConfig, load
from ..errors import ConfigError
from ..json_types import JsonValue
from ..tool_names import matches_tool
from ..tools import Tool
from ..tools.settings import McpServer
from .output.terminal import neutral, print_error

MODES: Final = ("always", "ask", "never")
SHOWN_CHARS: Final = 2000
"""Characters of the arguments that are shown for approval, so that the question fits on the screen."""

SHOWN_SECONDS: Final = 0.01
"""Seconds between two checks whether the call is shown: shorter than a person notices."""


class ToolOptions(Struct, kw_only=True):
    """``patterns``: globs of tools; naming them here enables them. ``mcp``: names of configured servers, addresses, or commands.
    ``approve``: ``always``, ``ask`` or ``never``, or ``GLOB=MODE`` for some tools."""

    patterns: list[str] = field(default_factory=list)
    mcp: list[str] = field(default_factory=list)
    approve: list[str] = field(default_factory=list)

    def client(self) -> Client:
        """Returns a client whose models may use these tools."""
        if not self.patterns and not self.mcp:
            return Client()
        loaded = load()
        patterns = [*self.patterns, *(f"{add_server(loaded, server)}.*" for server in self.mcp)]
        loaded.config.tools.enabled = [*loaded.config.tools.enabled, *patterns]
        client = Client(config=loaded, tools=patterns)
        client.pool.tools.approve = Approval(self.approve)
        return client


def add_server(loaded: LoadedConfig, server: str) -> str:
    """Returns the name of a configured server, or adds a server by its address or its command and returns the new name."""
    servers = loaded.config.tools.mcp
    if server in servers:
        return server
    if server.startswith(("http://", "https://")):
        settings, name = McpServer(url=server), "mcp"
    else:
        command = shlex.split(server)
        if not command:
            raise ConfigError("--mcp needs the name of a server, its address, or the command that starts it")
        settings, name = McpServer(command=command), Path(command[-1]).stem or "mcp"
    name = "".join(letter if letter.isalnum() else "_" for letter in name)
    while name in servers:
        name += "_"
    servers[name] = settings
    return name


class Approval:
    """Asks at the terminal before a tool runs, unless the options allow it or the tool is ``read_only``."""

    def __init__(self, rules: list[str]) -> None:
        self._default = "ask"
        self._rules: list[tuple[str, str]] = []
        for rule in rules:
            pattern, _, mode = rule.rpartition("=")
            if mode not in MODES:
                raise ConfigError(
                    f"--approve must be {', '.join(MODES)}, or a glob with one of them (weather*=always), not {rule!r}"
                )
            if pattern:
                self._rules.append((pattern, mode))
            else:
                self._default = mode
        self._asking = asyncio.Lock()
        self.is_shown: Callable[[], bool] = lambda: True
        """Whether the terminal shows all that has arrived: the question must not appear inside the line with the call."""

    async def __call__(self, tool: Tool, arguments: Mapping[str, JsonValue]) -> bool:
        mode = next((mode for pattern, mode in self._rules if matches_tool(tool.name, [pattern])), self._default)
        if mode == "ask" and tool.read_only:
            return True
        if mode != "ask":
            return mode == "always"
        async with self._asking:
            while not self.is_shown():
                await asyncio.sleep(SHOWN_SECONDS)
            allowed = await asyncio.to_thread(_ask, question_about(tool, arguments))
        if allowed is None:
            print_error(f"{tool.name} was not run: there is no terminal to ask at; --approve '{tool.name}=always' allows it")
        return bool(allowed)


def question_about(tool: Tool, arguments: Mapping[str, JsonValue]) -> str:
    """Returns the question without control characters."""
    given = msgspec.json.encode(arguments).decode()
    shown = given if len(given) <= SHOWN_CHARS else f"{given[:SHOWN_CHARS]} … ({len(given)} characters)"
    return f"Run {neutral(tool.name)}({neutral(shown)})? [y/N] "


def _ask(question: str) -> bool | None:
    """Asks the user at the terminal; None without a terminal."""
    try:
        with open("/dev/tty", "w") as shown, open("/dev/tty") as typed:  # standard input may hold the question to the model
            shown.write(question)
            shown.flush()
            return typed.readline().strip().lower() in ("y", "yes")
    except OSError:
        return None
