"""``streamglot tools`` and ``mcp``: lists, shows and runs tools, signs in at their servers, and serves them.

``streamglot mcp``: an MCP server with the enabled tools and ``query`` for any model. ``tools serve`` has only the tools.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ...client import Client
from ...config import LoadedConfig, load
from ...engine.tool_call import ToolCall
from ...errors import ConfigError, PolicyRefused, StreamglotError
from ...installation import require
from ...json.from_types import ArgumentsError
from ...json_types import JSON_ERRORS, JsonObject
from ...stages import collect
from ...tools import FunctionTool, Tool, ToolError, ToolOutput, ToolRegistry, ToolsConfig
from ...tools.registry import by_model_name
from ...tools.settings import McpOAuth
from ..exit_status import TERMINATION_SIGNALS
from ..options import (
    Command,
    group,
    text,
    together,
)
from ..output.terminal import is_terminal, neutral, print_error

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

SERVER_NAME: Final = "streamglot"


def run_mcp(port: int | None, host: str, *, queries: bool) -> int:
    """Serves over standard input and output, or over HTTP if a port is given."""
    require("mcp")
    if port is None and is_terminal(sys.stdin):
        print_error(
            "this speaks MCP on standard input and output, for a program that starts it; --port serves HTTP. Ctrl-C ends it"
        )
    asyncio.run(_serve(port, host, queries))
    return 0


async def _serve(port: int | None, host: str, queries: bool) -> None:
    async with Client(config=load()) as client:
        server = OfferedTools(client, queries).server()
        if port is None:
            signalled = await _until_signalled(_over_stdio(server))
        else:
            signalled = await _over_http(server, host, port)
    if signalled:
        # The SDK reads standard input in a thread, which ends with the next line only: asyncio would wait for it.
        os._exit(128 + signalled)


async def _over_http(server: Server, host: str, port: int) -> int:
    """Serves until a signal, which uvicorn handles."""
    import uvicorn

    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}); choose another --port or --host") from None
    with listener:
        shown = f"[{host}]" if ":" in host else host
        print_error(f"serving MCP at http://{shown}:{listener.getsockname()[1]}/mcp; Ctrl-C ends it")
        settings = uvicorn.Config(server.streamable_http_app(host=host), log_level="warning")
        await uvicorn.Server(settings).serve([listener])
    return 0


async def _over_stdio(server: Server) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def _until_signalled(serving: Coroutine[object, object, None]) -> int:
    """Serves until the client is gone or a signal comes. Returns the number of the signal, or 0."""
    loop = asyncio.get_running_loop()
    received: list[int] = []
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        received.append(number)
        stopped.set()

    for number in (signal.SIGINT, *TERMINATION_SIGNALS):
        loop.add_signal_handler(number, stop, number)
    served = asyncio.ensure_future(serving)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((served, stopping), return_when=asyncio.FIRST_COMPLETED)
    if received:
        return received[0]
    stopping.cancel()
    await served
    return 0


class OfferedTools:
    """The enabled tools, and ``query`` if models are offered too."""

    def __init__(self, client: Client, queries: bool) -> None:
        self._client = client
        self._own: list[Tool] = [FunctionTool(self.query, read_only=True)] if queries else []

    async def query(self, prompt: str, model: str = "", system: str = "") -> str:
        """Asks a language model and returns its answer.

        Args:
            prompt: What to ask.
            model: The model, or upstream/model; the default model if left out.
            system: The system message.
        """
        try:
            events = [event async for event in self._client.stream(model=model, messages=prompt, system=system)]
        except StreamglotError as error:
            raise ToolError(error.message) from None
        response = collect(events)
        if response.error is not None:
            raise ToolError(response.error.message)
        return response.choices[0].text

    async def tools(self) -> dict[str, Tool]:
        found, faults = await self._client.pool.tools.registry.select(["*"])
        for fault in faults:
            print_error(fault)
        return by_model_name([*self._own, *found])

    async def call(self, name: str, arguments: JsonObject) -> ToolOutput:
        tool = (await self.tools()).get(name)
        if tool is None:
            return ToolOutput(f"There is no tool {name!r}.", is_error=True)
        pool = self._client.pool
        try:
            call = ToolCall(pool, tool, arguments, unlimited=tool in self._own)  # a model has its own time limits
            return await call.run(self._client.exchange(call.request, collects=True, call=call))
        except (ToolError, ArgumentsError, PolicyRefused) as error:
            return ToolOutput(str(error), is_error=True)
        except TimeoutError:
            seconds = pool.tools.limits.seconds
            return ToolOutput(f"The tool {name!r} did not finish within {seconds:g} s and was stopped.", is_error=True)
        except Exception as error:  # a tool is foreign code and may raise anything
            return ToolOutput(f"The tool {name!r} failed: {type(error).__name__}: {error}", is_error=True)

    def server(self) -> Server:
        """The server object of the SDK."""
        import mcp_types as types
        from mcp.server.lowlevel import Server

        from ... import __version__

        async def on_list_tools(_context: object, _params: object) -> types.ListToolsResult:
            listed = [
                types.Tool(
                    name=name,
                    description=tool.description,
                    input_schema=tool.parameters,
                    annotations=None if tool.read_only is None else types.ToolAnnotations(read_only_hint=tool.read_only),
                )
                for name, tool in (await self.tools()).items()
            ]
            return types.ListToolsResult(tools=listed)

        async def on_call_tool(_context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
            output = await self.call(params.name, params.arguments or {})
            content: list[types.ContentBlock] = [types.TextContent(type="text", text=output.text)] if output.text else []
            for medium in output.media:
                if medium.mime.startswith("audio/"):
                    content.append(types.AudioContent(type="audio", data=medium.data, mime_type=medium.mime))
                else:
                    content.append(types.ImageContent(type="image", data=medium.data, mime_type=medium.mime))
            return types.CallToolResult(content=content, is_error=output.is_error)

        return Server(SERVER_NAME, version=__version__, on_list_tools=on_list_tools, on_call_tool=on_call_tool)


ALL: Final = "`streamglot tools list --all` lists them all"
tools = group("List the tools that models may call, show one, run one, or serve them.")
LISTENER = together(
    click.option("--port", type=click.IntRange(0, 65_535), help="Serve HTTP at this port instead of standard input and output."),
    click.option("--host", type=text, default="127.0.0.1", show_default=True, help="The address to listen on."),
)


@tools.command("list", examples=("streamglot tools list", "streamglot tools list 'docs.*' --all"))
@click.argument("pattern", type=text, default="*")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--all", "every", is_flag=True, help="Also list tools that are not enabled.")
def tools_list(pattern: str, json: bool, every: bool) -> int:
    """List the tools that models may call. PATTERN is a glob that the names must match."""

    async def work(registry: ToolRegistry, loaded: LoadedConfig) -> int:
        found, faults = await registry.select([pattern])
        enabled = ToolRegistry(loaded.config.tools).enabled
        if json:
            rows = [{"name": tool.name, "description": tool.description, "enabled": enabled(tool.name)} for tool in found]
            print(msgspec.json.encode(rows).decode())
        else:
            for tool in found:
                mark = "" if enabled(tool.name) else "  (not enabled)"
                summary = tool.description.partition("\n")[0]
                print(neutral(f"{tool.name:<24} {summary}{mark}".rstrip()))
        if not found and not faults and not json:
            print_error(
                f"no tool matches {pattern!r}" if every else f"no tool that matches {pattern!r} is enabled (tools.enabled); {ALL}"
            )
        for fault in faults:
            print_error(fault)
        return 1 if faults else 0

    return _with_tools(work, every=every)


@tools.command("show", examples=("streamglot tools show time",))
@click.argument("name", type=text)
def tools_show(name: str) -> int:
    """Show the description and the arguments of the tool NAME."""

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


@tools.command("run", examples=("streamglot tools run calculator expression='2 * 21'",))
@click.argument("name", type=text)
@click.argument("arguments", nargs=-1, type=text)
def tools_run(name: str, arguments: tuple[str, ...]) -> int:
    """Run the tool NAME once and print its answer. ARGUMENTS are key=value pairs."""

    async def work() -> int:
        loaded = load()
        loaded.config.tools = _every(loaded.config.tools)
        async with Client(config=loaded, discover=False) as client:
            tool = await _find(client.pool.tools.registry, name)
            values = {key: _value(tool, key, value) for key, value in map(_pair, arguments)}
            try:
                call = ToolCall(client.pool, tool, values, approved=True)
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


@tools.command("login", examples=("streamglot tools login docs",))
@click.argument("server", type=text)
def tools_login(server: str) -> int:
    """Sign in at the configured MCP server SERVER with OAuth. The tokens are stored in a file that only you can read."""
    servers = load().config.tools.mcp
    settings = servers.get(server)
    if settings is None or not settings.url:
        known = ", ".join(other for other, named in servers.items() if named.url) or "none"
        raise ConfigError(f"there is no MCP server {server!r} with a url in the configuration; there are: {known}")
    if settings.oauth is not None and settings.oauth.client_secret_env:
        raise ConfigError(f"tools.mcp.{server} needs no login: it signs in with the secret in {settings.oauth.client_secret_env}")
    try:
        from ...tools.mcp.oauth import login
    except ModuleNotFoundError:
        raise ConfigError("MCP needs the package mcp: pip install 'streamglot[mcp]'") from None

    async def show(address: str) -> None:
        print_error(f"open this address to sign in:\n{address}")

    try:
        tools = asyncio.run(login(server, settings.url, settings.oauth or McpOAuth(), show))
    except Exception as error:
        raise StreamglotError(f"the sign-in at {server!r} failed: {_reason(error)}") from None
    print(f"signed in at {server!r}, which has {len(tools)} tools")
    if settings.oauth is None:
        print_error(f"add `oauth = {{}}` to tools.mcp.{server} to use this login")
    return 0


@tools.command("serve", examples=("streamglot tools serve", "streamglot tools serve --port 8486"))
@LISTENER
def tools_serve(port: int | None, host: str) -> int:
    """Offer the enabled tools as an MCP server."""
    return run_mcp(port, host, queries=False)


@click.command(cls=Command, examples=("streamglot mcp", "streamglot mcp --port 8486"))
@LISTENER
def mcp(port: int | None, host: str) -> int:
    """Offer the enabled tools and `query` for any model as an MCP server."""
    return run_mcp(port, host, queries=True)


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
    """The value for the schema: a string stays as it is, anything else is parsed as JSON if it is valid JSON."""
    schema = tool.parameters.get("properties", {}).get(key, {})
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return msgspec.json.decode(text)
    except JSON_ERRORS:
        return text


def _reason(error: BaseException) -> str:
    """The innermost message of an error, because the SDK wraps errors into groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
