"""How a command is declared: the types of its options, options of several commands, files that they name, and whole help texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ..errors import ConfigError
from ..json_types import JsonValue
from .output.terminal import well_formed
from .output.units import shown_size

Offer = Callable[[str], Sequence[str | tuple[str, str]]]
"""A function from the beginning of a word to completions, each with or without a description."""


def text(value: str) -> str:
    """Converts a value to text for requests and the database. (Click shows the name of this function as the type.)"""
    return well_formed(value)


FILE: Final = click.Path(path_type=Path)
CONFIG_FILE = click.option("-c", "--config", type=FILE, help="The configuration file.")
JSON = click.option("--json", is_flag=True, help="Print JSON.")
JSON_LINES = click.option("--json", is_flag=True, help="Print one JSON object a line.")
CALLER = click.option("--caller", type=text, help="Only those of this caller, such as the name of a key.")
HERE = click.option("--here", is_flag=True, help="Use the last conversation of this directory.")


def completed(offer: Offer) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Click's completion callback for the words of ``offer``."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = ((word, "") if isinstance(word, str) else word for word in offer(incomplete))
        return [CompletionItem(word, help=about or None) for word, about in words]

    return complete


WIDTH: Final = 80
"""The width of help texts in columns: that of the smallest common terminal."""
CONFIG_VARIABLE: Final = "STREAMGLOT_CONFIG"
"""The variable that names the configuration file. (``config/__init__.py`` reads it; importing that would slow down every command.)"""
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
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())

    def summaries(self) -> list[tuple[str, str]]:
        """Each command with the first sentence of its help."""
        return [(name, summary(command)) for name, command in self.commands.items() if not command.hidden]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # Click's signature
        """The commands in the order in which they were added: the most used first."""
        return list(self.commands)


def summary(command: click.Command) -> str:
    """The first sentence of a command's help."""
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


SETTINGS_BYTES: Final = 4 * 2**20
"""Bytes of a schema, a list of tools or the settings of a client. Such files are written for people and stay small."""


def read_file(path: Path, limit: int, what: str = "the file") -> bytes:
    """The bytes of a file. Raises ConfigError if it cannot be read or has more than ``limit`` bytes; the message calls it
    ``what``."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
        raise ConfigError(f"{what} {shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise ConfigError(f"{what} {shown(path)} is larger than the limit of {shown_size(limit)}")
    return data


def read_json(data: bytes, what: str) -> JsonValue:
    """The value of a JSON text. Error messages call the text ``what``."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{what} is not valid JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply to be read") from None


def shown(path: Path) -> str:
    """The name of a file for messages and requests."""
    return well_formed(str(path))


def declared_tools(path: Path | None) -> list[JsonValue] | None:
    """The tool definitions in this file: a JSON list, as in chat requests."""
    if path is None:
        return None
    tools = read_json(read_file(path, SETTINGS_BYTES, "the tools file"), f"the tools file {shown(path)}")
    if not isinstance(tools, list):
        raise ConfigError(f"the tools file {shown(path)} must contain a JSON list of tool definitions")
    return tools


def this_directory() -> str:
    """The working directory; empty if it was removed."""
    try:
        return well_formed(os.getcwd())
    except OSError:
        return ""


def directory_for_here() -> str:
    """The directory for ``--here``."""
    directory = this_directory()
    if not directory:
        raise ConfigError("--here needs a working directory, but this one was removed; change to another one")
    return directory
