"""The command line as a whole. Each command imports what it needs when it runs, so that all of them start quickly."""

from __future__ import annotations

from collections.abc import Sequence

import click

from . import completion
from .commands import admin, approvals, ask, batch, history, policies, streams, tools
from .help import SETTINGS, Group


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from .. import __version__
        from ..versions import version_lines

        print("\n".join(version_lines(__version__)))
        context.exit()


@click.group(cls=Group, name=completion.PROGRAM, no_args_is_help=True, context_settings=SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version, and those of the main packages.",
)
@completion.options
def app() -> None:
    """Ask models, run the gateway, and work with their streams. Every LLM stream, one language."""


for command in (*ask.COMMANDS, *admin.COMMANDS, *streams.COMMANDS, *tools.COMMANDS):
    app.add_command(command)
GROUPS = {**batch.GROUPS, **history.GROUPS, **admin.GROUPS, **policies.GROUPS, **approvals.GROUPS, **tools.GROUPS}
for name, commands in GROUPS.items():
    app.add_command(commands, name)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. Errors are raised."""
    status = completion.requested(app, arguments)
    if status is None:
        with app.make_context(completion.PROGRAM, list(arguments)) as context:
            status = app.invoke(context)
    return status or 0
