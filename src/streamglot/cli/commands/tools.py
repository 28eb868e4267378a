"""The commands for tools: ``tools list``, ``show``, ``run``, ``login`` and ``serve``, and ``mcp``."""

from __future__ import annotations

import click

from ..help import Command, group, together
from ..values import text

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
    from .tool_list import list_tools

    return list_tools(pattern, json, every)


@tools.command("show", examples=("streamglot tools show time",))
@click.argument("name", type=text)
def tools_show(name: str) -> int:
    """Show the description and the arguments of the tool NAME."""
    from .tool_list import show_tool

    return show_tool(name)


@tools.command("run", examples=("streamglot tools run calculator expression='2 * 21'",))
@click.argument("name", type=text)
@click.argument("arguments", nargs=-1, type=text)
def tools_run(name: str, arguments: tuple[str, ...]) -> int:
    """Run the tool NAME once and print its answer. ARGUMENTS are key=value pairs."""
    from .tool_list import run_tool

    return run_tool(name, list(arguments))


@tools.command("login", examples=("streamglot tools login docs",))
@click.argument("server", type=text)
def tools_login(server: str) -> int:
    """Sign in at the configured MCP server SERVER with OAuth. The tokens are stored in a file that only you can read."""
    from .tool_login import run

    return run(server)


@tools.command("serve", examples=("streamglot tools serve", "streamglot tools serve --port 8486"))
@LISTENER
def tools_serve(port: int | None, host: str) -> int:
    """Offer the enabled tools as an MCP server."""
    from .mcp_serve import run

    return run(port, host, queries=False)


@click.command(cls=Command, examples=("streamglot mcp", "streamglot mcp --port 8486"))
@LISTENER
def mcp(port: int | None, host: str) -> int:
    """Offer the enabled tools and `query` for any model as an MCP server."""
    from .mcp_serve import run

    return run(port, host, queries=True)


COMMANDS = (mcp,)
GROUPS = {"tools": tools}
