"""``streamglot tools``: lists tools, shows one, and runs one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ...client import Client
from ...config import LoadedConfig, load
from ...engine.tool_call import ToolCall
from ...errors import ConfigError, PolicyRefused
from ...json.from_types import ArgumentsError
from ...json_types import JSON_ERRORS
from ...tools import Tool, ToolError, ToolRegistry, ToolsConfig
from ..output.terminal import neutral, print_error

ALL: Final = "`streamglot tools list --all` lists them all"


def list_tools(pattern: str, json: bool, every: bool) -> int:
    """Lists the enabled tools; with ``every``, also those that are not enabled."""

    async def work(registry: ToolRegistry, loaded: LoadedConfig) -> int:
        tools, faults = await registry.select([pattern])
        enabled = ToolRegistry(loaded.config.tools).enabled
        if json:
            rows = [{"name": tool.name, "description": tool.description, "enabled": enabled(tool.name)} for tool in tools]
            print(msgspec.json.encode(rows).decode())
        else:
            for tool in tools:
                mark = "" if enabled(tool.name) else "  (not enabled)"
                summary = tool.description.partition("\n")[0]
                print(neutral(f"{tool.name:<24} {summary}{mark}".rstrip()))
        if not tools and not faults and not json:
            print_error(
                f"no tool matches {pattern!r}" if every else f"no tool that matches {pattern!r} is enabled (tools.enabled); {ALL}"
            )
        for fault in faults:
            print_error(fault)
        return 1 if faults else 0

    return _with_tools(work, every=every)


def show_tool(name: str) -> int:
    async def work(registry: ToolRegistry, _loaded: LoadedConfig) -> int:
        tool = await _find(registry, name)
        print(neutral(tool.name))
        if tool.description:
            print(neutral(tool.description))
        print(neutral(msgspec.json.format(msgspec.json.encode(tool.parameters), indent=2).decode()))
        for reason in tool.unchecked:
            print_error(f"{tool.name}: arguments are passed on without this check: {reason}")
        return 0

    return _with_tools(work, every=True)


def run_tool(name: str, pairs: list[str]) -> int:
    """Runs a tool once. Each pair is ``key=value``. A value is parsed as JSON unless the schema wants a string."""

    async def work() -> int:
        loaded = load()
        loaded.config.tools = _every(loaded.config.tools)
        async with Client(config=loaded, discover=False) as client:
            tool = await _find(client.pool.tools.registry, name)
            arguments = {key: _value(tool, key, value) for key, value in map(_pair, pairs)}
            try:
                call = ToolCall(client.pool, tool, arguments, approved=True)
                output = await call.run(client.exchange(call.request, collects=True, call=call))
            except ArgumentsError as error:
                raise ConfigError(f"{tool.name}: {error}; `streamglot tools show {tool.name}` shows its arguments") from None
            except (ToolError, PolicyRefused) as error:
                print_error(f"{tool.name}: {error}")
                return 1
            except TimeoutError:
                seconds = client.pool.tools.limits.seconds
                print_error(f"{tool.name} did not finish within {seconds:g} s (tools.limits.seconds)")
                return 1
        print(neutral(output.text), file=sys.stderr if output.is_error else sys.stdout)
        for medium in output.media:
            print_error(f"{tool.name} also returned {medium.mime}, {len(medium.data) * 3 // 4} bytes")
        return int(output.is_error)

    return asyncio.run(work())


def _with_tools(work: Callable[[ToolRegistry, LoadedConfig], Awaitable[int]], *, every: bool) -> int:
    """Runs ``work`` with the tools of the configuration. ``every``: also those that models may not use."""

    async def run() -> int:
        loaded = load()
        registry = ToolRegistry(_every(loaded.config.tools) if every else loaded.config.tools)
        try:
            return await work(registry, loaded)
        finally:
            await registry.close()

    return asyncio.run(run())


def _every(tools: ToolsConfig) -> ToolsConfig:
    """The same tools, all of them enabled."""
    return msgspec.structs.replace(tools, enabled=["*"], disabled=[])


async def _find(registry: ToolRegistry, name: str) -> Tool:
    tools, faults = await registry.select([name])
    if len(tools) != 1:
        for fault in faults:
            print_error(fault)
        raise ConfigError(f"there is no tool {name!r}; {ALL}")
    return tools[0]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"the argument {text!r} has no `=`: write key=value")
    return key, value


def _value(tool: Tool, key: str, text: str) -> object:
    """Returns the value for the schema: a string stays as it is, anything else is parsed as JSON if it is valid JSON."""
    schema = tool.parameters.get("properties", {}).get(key, {})
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return msgspec.json.decode(text)
    except JSON_ERRORS:
        return text
