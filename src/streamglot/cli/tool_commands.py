"""The commands around tools: tools list, show, run and serve, and mcp."""

from __future__ import annotations

from typing import Annotated

import typer

from .guard import guarded

app = typer.Typer()
tools = typer.Typer(help="Tools that models may call: list them, show one, run one.", no_args_is_help=True)
app.add_typer(tools, name="tools")

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@tools.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="A glob that the names must match.")] = "*",
    json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Also tools that are not enabled.")] = False,
) -> None:
    """The tools that models may call."""
    with guarded():
        from .tool_list import list_tools

        raise typer.Exit(list_tools(pattern, json, every))


@tools.command()
def show(name: Annotated[str, typer.Argument(help="The name of the tool.")]) -> None:
    """What a tool does, and which arguments it takes."""
    with guarded():
        from .tool_list import show_tool

        raise typer.Exit(show_tool(name))


@tools.command()
def run(
    name: Annotated[str, typer.Argument(help="The name of the tool.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="key=value for each argument.")] = None,
) -> None:
    """Runs a tool once and shows its answer."""
    with guarded():
        from .tool_list import run_tool

        raise typer.Exit(run_tool(name, arguments or []))


Port = Annotated[int | None, typer.Option(help="Serve over HTTP at this port; over standard input and output if left out.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]


@tools.command()
def serve(port: Port = None, host: Host = "127.0.0.1") -> None:
    """Offers the enabled tools as an MCP server."""
    with guarded():
        from .mcp_serve import run

        raise typer.Exit(run(port, host, queries=False))


@app.command()
def mcp(port: Port = None, host: Host = "127.0.0.1") -> None:
    """Offers the enabled tools, and `query` over any model, as an MCP server."""
    with guarded():
        from .mcp_serve import run

        raise typer.Exit(run(port, host, queries=True))
