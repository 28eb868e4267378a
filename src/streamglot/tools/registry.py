"""The registry: all tools of all sources, and which of them may be used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from ..errors import ConfigError
from ..tool_names import NAME_CHARS, matches_tool, model_name
from .mcp_server import McpSource
from .settings import ToolsConfig
from .tool import Tool, as_tool


class ToolSource(Protocol):
    """A source whose tools are known only after asking it, such as an MCP server. ``name`` prefixes their names."""

    name: str

    async def tools(self) -> list[Tool]: ...
    async def close(self) -> None: ...


class ToolRegistry:
    """The tools of a configuration, and ``given`` ones, which are enabled because a program gave them."""

    def __init__(self, config: ToolsConfig | None = None, given: Iterable[object] = ()) -> None:
        self.config = config or ToolsConfig()
        self._tools: dict[str, Tool] = {}
        self._given: set[str] = set()
        self._sources: list[ToolSource] = [McpSource(name, server) for name, server in self.config.mcp.items()]
        for tool in given:
            self.add(as_tool(tool), given=True)
        if self.config.enabled:
            # Imported here because most processes run no tools, and these modules take a while to load.
            from .built_in import built_in_tools
            from .sources import entry_point_tools, executable_tools, python_tools

            for found in (
                built_in_tools(self.config.built_in),
                executable_tools(self.config.executables),
                python_tools(self.config.python),
                entry_point_tools(),
            ):
                for one in found:
                    self.add(one)

    def __bool__(self) -> bool:
        """Whether there is any tool that may run."""
        return bool(self._given or (self.config.enabled and (self._tools or self._sources)))

    def add(self, tool: Tool, *, given: bool = False) -> None:
        """Adds a tool. Another tool with the same name is an error, because a model could not tell them apart. The same function,
        given by a program and named in the configuration, is one tool."""
        known = self._tools.get(tool.name)
        if known is not None and not given and tool.name in self._given and known.is_same(tool):
            return
        if known is not None:
            raise ConfigError(f"there are two tools with the name {tool.name!r}; rename one of them")
        self._tools[tool.name] = tool
        if given:
            self._given.add(tool.name)

    def given(self) -> list[Tool]:
        """The tools that a program gave."""
        return [tool for name, tool in self._tools.items() if name in self._given]

    def add_source(self, source: ToolSource) -> None:
        self._sources.append(source)

    def enabled(self, name: str) -> bool:
        if name in self._given:
            return True
        return matches_tool(name, self.config.enabled) and not matches_tool(name, self.config.disabled)

    async def select(self, patterns: Sequence[str]) -> tuple[list[Tool], list[str]]:
        """The enabled tools that match one of the patterns, by name, and the faults of sources that could not be asked."""
        found = [tool for tool in self._tools.values() if matches_tool(tool.name, patterns) and self.enabled(tool.name)]
        matching = [source for source in self._sources if _may_match(source.name, patterns)]
        faults: list[str] = []
        for source, tools in zip(
            matching, await asyncio.gather(*(source.tools() for source in matching), return_exceptions=True), strict=True
        ):
            if isinstance(tools, BaseException):
                if not isinstance(tools, Exception):
                    raise tools
                faults.append(f"the tools of {source.name!r} are not available: {tools or type(tools).__name__}")
            else:
                found += [tool for tool in tools if matches_tool(tool.name, patterns) and self.enabled(tool.name)]
        return sorted(found, key=lambda tool: tool.name), faults

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._sources), return_exceptions=True)


def _may_match(source: str, patterns: Iterable[str]) -> bool:
    """Whether a tool of this source may match, before its tools are known."""
    for pattern in patterns:
        head, dot, _ = pattern.partition(".")
        if fnmatchcase(source, head) or (not dot and ("*" in head or head.startswith(f"{source}__"))):
            return True
    return False


def by_model_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by the names that a model knows them by. Names that become the same get a number."""
    named: dict[str, Tool] = {}
    for tool in tools:
        name, number = model_name(tool.name), 2
        while name in named:
            name = f"{model_name(tool.name)[: NAME_CHARS - 4]}_{number}"
            number += 1
        named[name] = tool
    return named
