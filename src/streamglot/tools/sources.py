"""Sources of tools beside MCP servers: Python modules, files and folders, entry points, and executables."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from ..errors import FOREIGN_ERRORS, ConfigError
from ..json_types import JSON_ERRORS, JsonObject
from ..plugins import entry_points, import_fault, load_entry_point
from .settings import Executable
from .subprocesses import run_process
from .tool import Tool, ToolOutput

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
