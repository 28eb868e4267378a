"""docs/commands.md: every command with its arguments, options and examples, from Click."""

from __future__ import annotations

from collections.abc import Iterator

import click

from streamglot.cli.app import app

from .words import NOTE, cell


def commands_page() -> str:
    lines = [
        "# Commands",
        "",
        NOTE,
        "Every command and its options, as `streamglot COMMAND --help` shows them. [The command line](command-line.md) is the guide: output,",
        "exit status, variables, and what is stored.",
        "",
    ]
    for path, command in _commands(app, ()):
        lines += _command(path, command)
    return "\n".join(lines)


def _commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> list[str]:
    name = " ".join(path)
    lines = [f"{'#' * (len(path) + 1)} {name}", "", _help(command), ""]
    if isinstance(command, click.Group):
        return lines
    context = click.Context(command, info_name=f"streamglot {name}")
    lines += ["```text", f"streamglot {name} {' '.join(command.collect_usage_pieces(context))}".rstrip(), "```", ""]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        lines += ["| option | meaning |", "|---|---|", *(_option(each, context) for each in options), ""]
    examples = getattr(command, "examples", ())
    if examples:
        lines += ["```text", *examples, "```", ""]
    return lines


def _help(command: click.Command) -> str:
    paragraphs = (command.help or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("<", "&lt;")


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None  # hidden ones have none
    names, meaning = record
    return f"| `{cell(names)}` | {cell(meaning).replace('<', '&lt;')} |"
