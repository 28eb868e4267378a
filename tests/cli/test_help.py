"""Help texts: complete, at most 80 columns wide, with examples that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from cli.shell import Shell
from streamglot.cli.app import COMMANDS as TABLE
from streamglot.cli.app import app
from streamglot.cli.options import Command, summary


def members(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in members(command):
            yield from walk(inner, (*path, name))


EVERY = [pytest.param(path, command, id=" ".join(path) or "streamglot") for path, command in walk(app)]
COMMANDS = [one for one in EVERY if not isinstance(one.values[1], click.Group)]

OTHER_C = {("chat",), ("batch", "run")}
"""Commands whose ``-c`` means something else."""


def shown(path: tuple[str, ...], command: click.Command) -> str:
    return command.get_help(click.Context(command, info_name=" ".join(("streamglot", *path)), max_content_width=80))


def test_the_table_of_commands_has_the_summary_of_each_help() -> None:
    assert {name: about for name, (_, about) in TABLE.items()} == {name: summary(command) for name, command in members(app)}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_every_command_takes_a_configuration(path: tuple[str, ...], command: click.Command) -> None:
    assert [parameter.opts for parameter in command.params].count(["-c", "--config"]) == (path not in OTHER_C)
    assert "--config" in shown(path, command)


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_help_shows_every_text_complete(path: tuple[str, ...], command: click.Command) -> None:
    text = shown(path, command)
    assert max(map(len, text.splitlines())) <= 80
    assert command.help
    assert words(command.help) in words(text)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            squeezed = re.sub(r"\s+", "", text)
            assert re.sub(r"\s+", "", parameter.help) in squeezed, parameter.name
    if isinstance(command, click.Group):
        for name, inner in members(command):
            assert f"{name} {summary(inner)}" in words(text)


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_a_summary_is_a_sentence(path: tuple[str, ...], command: click.Command) -> None:
    assert re.fullmatch(r"[A-Z][^.]*\.", summary(command)), path


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_every_command_has_examples_that_it_understands(path: tuple[str, ...], command: click.Command) -> None:
    assert isinstance(command, Command)
    assert command.examples
    text = shown(path, command)
    for example in command.examples:
        assert f"\n  {example}\n" in f"{text}\n"
        line = example.rpartition("| streamglot")[2] if example.startswith("cat ") else example.partition("streamglot")[2]
        given = shlex.split(line.partition(" | ")[0].partition(" < ")[0], comments=True)
        assert given[: len(path)] == [*path]
        command.make_context(" ".join(path), given[len(path) :])  # it only parses


def test_arguments_are_explained() -> None:
    for path, command in walk(app):
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name != "words":
                assert str(parameter.name).upper() in (command.help or ""), path


def test_help_does_not_depend_on_the_width_of_the_terminal(shell: Shell) -> None:
    for columns in ("40", "80", "300"):
        done = shell.run("--help", environment={"COLUMNS": columns})
        assert done.returncode == 0
        assert b"..." not in done.stdout.replace(b"[ARGS]...", b"")
        assert max(map(len, done.stdout.decode().splitlines())) <= 80
