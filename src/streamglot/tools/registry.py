"""The registry: all tools of all sources, and which of them may be used.

Its sources are MCP servers (``mcp``), Python modules, files and folders, entry points, and executables.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

import msgspec

from ..errors import FOREIGN_ERRORS, ConfigError
from ..json_types import JSON_ERRORS, JsonObject
from ..plugins import entry_points, import_fault, load_entry_point
from ..text import TOOL_NAME_CHARS, matches_tool, model_name
from .mcp.source import McpSource
from .processes import run_process
from .settings import Executable, ToolsConfig
from .tool import Tool, ToolOutput, as_tool


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
            name = f"{model_name(tool.name)[: TOOL_NAME_CHARS - 4]}_{number}"
            number += 1
        named[name] = tool
    return named


ENTRY_POINTS: Final = "streamglot.tools"


def python_tools(places: Iterable[str]) -> list[Tool]:
    """The tools of modules (``mytools``), files (``./weather.py``) and folders (``./tools``)."""
    tools: list[Tool] = []
    for place in places:
        path = Path(place).expanduser()
        if path.is_dir():
            for file in sorted(path.glob("*.py")):
                tools += _tools_of(_load_file(file))
        elif place.endswith(".py"):
            tools += _tools_of(_load_file(path))
        elif any(mark in place for mark in "/\\"):
            raise ConfigError(f"tools.python has {place!r}: there is no such file or folder")
        else:
            tools += _tools_of(_load_module(place))
    return list({id(tool): tool for tool in tools}.values())


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except FOREIGN_ERRORS as error:  # anything may happen while somebody else's module is imported
        raise ConfigError(f"tools.python: the module {name!r} cannot be imported: {import_fault(error)}") from None


def _load_file(path: Path) -> ModuleType:
    name = f"streamglot_tools_{path.stem}_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"tools.python has {str(path)!r}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look themselves up here
    try:
        spec.loader.exec_module(module)
    except FOREIGN_ERRORS as error:  # anything may happen while somebody else's file is run
        del sys.modules[name]
        raise ConfigError(f"tools.python: {path} cannot be imported: {type(error).__name__}: {error}") from None
    return module


def _tools_of(module: ModuleType) -> list[Tool]:
    return [value for value in vars(module).values() if isinstance(value, Tool)]


def entry_point_tools() -> list[Tool]:
    """Tools that installed packages offer: an entry point names a tool, a list of tools, or a module with tools."""
    tools: list[Tool] = []
    for entry in entry_points(ENTRY_POINTS):
        loaded = load_entry_point(entry)
        found = _tools_of(loaded) if isinstance(loaded, ModuleType) else loaded if isinstance(loaded, (list, tuple)) else [loaded]
        tools += [tool for tool in found if isinstance(tool, Tool)]
    return tools


def executable_tools(executables: Mapping[str, Executable]) -> list[Tool]:
    return [ExecutableTool(name, executable) for name, executable in executables.items()]


class ExecutableTool(Tool):
    """A program that reads its arguments as a JSON object and writes its result: text, or ``{"text": …, "is_error": …}``."""

    def __init__(self, name: str, executable: Executable) -> None:
        super().__init__(name, executable.description, executable.parameters)
        self._command, self._env = executable.command, executable.env

    async def run(self, arguments: JsonObject) -> ToolOutput:
        done = await run_process(self._command, msgspec.json.encode(arguments), env=self._env)
        if done.status:
            return ToolOutput(f"exit status {done.status}\n{done.stderr or done.stdout}".strip(), is_error=True)
        try:
            said = msgspec.json.decode(done.stdout)
        except JSON_ERRORS:
            return ToolOutput(done.stdout)
        if isinstance(said, dict) and isinstance(said.get("text"), str):
            return ToolOutput(said["text"], is_error=said.get("is_error") is True)
        return ToolOutput(done.stdout)
