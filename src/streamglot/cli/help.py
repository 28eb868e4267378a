"""Commands and groups with complete help: sentences are wrapped and never cut, and each command shows examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from .values import FILE

WIDTH: Final = 80
"""The width of help texts in columns: that of the smallest common terminal."""
CONFIG_VARIABLE: Final = "STREAMGLOT_CONFIG"
"""The variable that names the configuration file. (``config.py`` reads it; importing that would slow down every command.)"""
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


class Command(click.Command):
    """A command with ``examples``: complete command lines, some with a comment after ``#``. Every command takes ``--config``; one
    without a parameter of this name finds the file where all look for it."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:  # Any: those of click.Command
        super().__init__(*arguments, **settings)
        self.examples = examples
        if all(parameter.name != "config" for parameter in self.params):
            taken = {name for parameter in self.params for name in parameter.opts}
            names = [name for name in ("-c", "--config") if name not in taken]
            self.params.append(
                click.Option(
                    names, type=FILE, is_eager=True, expose_value=False, callback=_choose_config, help="The configuration file."
                )
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


def _choose_config(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """Names the file in the environment while the command runs, so that the processes that it starts read it, too."""
    if file is None:
        return
    before = os.environ.get(CONFIG_VARIABLE)
    os.environ[CONFIG_VARIABLE] = str(file)

    def restore() -> None:
        if before is None:
            os.environ.pop(CONFIG_VARIABLE, None)
        else:
            os.environ[CONFIG_VARIABLE] = before

    context.call_on_close(restore)


class Group(click.Group):
    """A group that lists its commands with their whole first sentence."""

    command_class = Command
    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # Click's signature
        rows = [(name, summary(command)) for name, command in self.commands.items() if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # Click's signature
        """Returns the commands in the order in which they were added: the most used first."""
        return list(self.commands)


def summary(command: click.Command) -> str:
    """Returns the first sentence of a command's help."""
    paragraph = " ".join((command.help or "").partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return f"{sentence}." if stop else paragraph


def group(help: str) -> Group:
    return Group(help=help, no_args_is_help=True, context_settings=SETTINGS)


F = TypeVar("F", bound=Callable[..., object])


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Combines several options into one decorator. The help shows them in this order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate
