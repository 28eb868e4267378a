"""The command line as a whole. Each command imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from . import conversation, house, kept, streams, tool_commands

app = typer.Typer(
    name="streamglot",
    help="Every LLM stream, one language.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it is twice as quick
)
for part in (conversation.app, streams.app, kept.app, house.app, tool_commands.app):
    app.add_typer(part)


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False) -> None:
    if version:
        from .. import __version__

        typer.echo(f"streamglot {__version__}")
        raise typer.Exit
