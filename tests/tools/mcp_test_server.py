"""A server of the official SDK that behaves well and badly on request. Run as ``python mcp_test_server.py [port]``."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image

server = MCPServer("test")


@server.tool()
async def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool()
async def environment() -> dict[str, str]:
    return dict(os.environ)


@server.tool()
async def hang() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return ""


@server.tool()
async def die() -> str:
    """Ends the process."""
    os._exit(3)


@server.tool()
async def flood(megabytes: int) -> str:
    """Writes a lot."""
    return "x" * (megabytes * 2**20)


@server.tool()
async def fail() -> str:
    """Fails."""
    raise ValueError("it failed")


@server.tool()
async def meta(context: Context) -> dict[str, Any]:
    """The metadata of the call."""
    return dict(context.request_context.meta or {})


@server.tool()
async def picture() -> Image:
    """An image."""
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")


@server.tool()
async def structured() -> dict[str, Any]:
    """An object."""
    return {"answer": 42}


@server.tool()
async def grow(context: Context[Any]) -> str:
    """Adds a tool."""

    async def grown() -> str:
        """New."""
        return "grown"

    server.add_tool(grown)
    await context.notify_tools_changed()
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
