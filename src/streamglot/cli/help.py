"""Commands and groups with complete help: sentences are wrapped and never cut, and each command shows examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

WIDTH: Final = 80
"""The width of help texts in columns: that of the smallest common terminal."""
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


class Command(click.Command):
    """A command with ``examples``: complete command lines, some with a comment after ``#``."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:  # Any: those of click.Command
        super().__init__(*arguments, **settings)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


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
