"""``streamglot mcp``: an MCP server with the enabled tools and ``query`` for any model. ``tools serve`` has only the tools."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from ...client import Client
from ...config import load
from ...engine.tool_call import ToolCall
from ...errors import ConfigError, PolicyRefused, StreamglotError
from ...installation import require
from ...json.from_types import ArgumentsError
from ...json_types import JsonObject
from ...stages import collect
from ...tools import FunctionTool, Tool, ToolError, ToolOutput
from ...tools.registry import by_model_name
from ..exit_status import TERMINATION_SIGNALS
from ..output.terminal import is_terminal, print_error

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

NAME: Final = "streamglot"


def run(port: int | None, host: str, *, queries: bool) -> int:
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

        return Server(NAME, version=__version__, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
