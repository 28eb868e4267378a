"""``streamglot tools login``: signs the user in at an MCP server that requires OAuth."""

from __future__ import annotations

import asyncio

from ...config import load
from ...errors import ConfigError, StreamglotError
from ...tools.settings import McpOAuth
from ..output.terminal import print_error


def run(name: str) -> int:
    servers = load().config.tools.mcp
    server = servers.get(name)
    if server is None or not server.url:
        known = ", ".join(other for other, settings in servers.items() if settings.url) or "none"
        raise ConfigError(f"there is no MCP server {name!r} with a url in the configuration; there are: {known}")
    if server.oauth is not None and server.oauth.client_secret_env:
        raise ConfigError(f"tools.mcp.{name} needs no login: it signs in with the secret in {server.oauth.client_secret_env}")
    try:
        from ...tools.mcp_oauth import login
    except ModuleNotFoundError:
        raise ConfigError("MCP needs the package mcp: pip install 'streamglot[mcp]'") from None

    async def show(address: str) -> None:
        print_error(f"open this address to sign in:\n{address}")

    try:
        tools = asyncio.run(login(name, server.url, server.oauth or McpOAuth(), show))
    except Exception as error:
        raise StreamglotError(f"the sign-in at {name!r} failed: {_reason(error)}") from None
    print(f"signed in at {name!r}, which has {len(tools)} tools")
    if server.oauth is None:
        print_error(f"add `oauth = {{}}` to tools.mcp.{name} to use this login")
    return 0


def _reason(error: BaseException) -> str:
    """Returns the innermost message of an error, because the SDK wraps errors into groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
