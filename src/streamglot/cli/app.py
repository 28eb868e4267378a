"""The commands. Each imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="streamglot",
    help="Every LLM stream, one language.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False) -> None:
    if version:
        from .. import __version__

        typer.echo(f"streamglot {__version__}")
        raise typer.Exit


@app.command()
def translate(
    file: Annotated[Path | None, typer.Argument(help="The recorded stream; standard input if left out.")] = None,
    source: Annotated[str, typer.Option("--from", help="The dialect of the input, or `text`.")] = "openai_chat",
    target: Annotated[
        str, typer.Option("--to", help="A dialect; `events`, one a line; `response`, the whole answer.")
    ] = "events",
    strict: Annotated[bool, typer.Option(help="Write the fields of the dialect's specification only.")] = False,
    inband: Annotated[
        str | None, typer.Option(help="The format of calls and thinking inside the text (`streamglot formats`).")
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="A JSON list of the tools that were declared, for --inband.")] = None,
) -> None:
    """Reads a stream in one dialect and writes it in another, as it comes. Exits with 1 if it ended in an error."""
    from ..errors import ConfigError
    from .translate import run

    try:
        raise typer.Exit(run(file, source, target, strict, inband, tools))
    except ConfigError as error:
        raise typer.BadParameter(error.message) from None


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The configuration file.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the socket.")] = None,
) -> None:
    """Runs the gateway: any client, any upstream."""
    from ..errors import ConfigError
    from .serve import run

    try:
        raise typer.Exit(run(config, host, port, workers))
    except ConfigError as error:
        typer.echo(f"streamglot: {error.message}", err=True)
        raise typer.Exit(2) from None


@app.command("config")
def config_show(
    action: Annotated[str, typer.Argument(help="`show`: every value and where it came from.")] = "show",
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The configuration file.")] = None,
) -> None:
    """Shows the configuration with the origin of each value; secrets as dots."""
    from ..errors import ConfigError
    from ..gateway.config import load, shown

    if action != "show":
        raise typer.BadParameter(f"there is no action {action!r}; there is: show")
    try:
        for place, value, origin in shown(load(config)):
            typer.echo(f"{place} = {value}  # {origin}")
    except ConfigError as error:
        typer.echo(f"streamglot: {error.message}", err=True)
        raise typer.Exit(2) from None


@app.command()
def formats() -> None:
    """Lists the in-band formats, with an example of each."""
    from ..inband import FORMATS

    for name, row in FORMATS.items():
        typer.echo(f"{name:24} {' '.join(row.example.split())}")
