"""The command line as a whole. The module of a command is imported when the command is used, so that all of them start quickly."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from . import completion
from .options import SETTINGS, Group

COMMANDS: Final = {
    "query": ("ask", "Ask one question and print the answer as it arrives."),
    "chat": ("chat", "Hold a conversation."),
    "reply": ("ask", "Continue the last conversation with one more question."),
    "serve": ("serve", "Run the gateway: any client, any upstream."),
    "launch": ("launch", "Run a coding agent on any model."),
    "models": ("models", "List the available models and the upstreams that serve them."),
    "formats": ("models", "List the notations in which models write calls and reasoning into their text."),
    "doctor": ("doctor", "Check keys, upstreams, the store, the local model and versions, and suggest fixes."),
    "setup": ("setup", "Print or write the settings with which a client uses the gateway."),
    "translate": ("streams", "Read a stream in one dialect and write it in another, live."),
    "replay": ("streams", "Play a recorded stream with its timing, in any dialect."),
    "record": ("probe", "Ask a question and save the bytes that the upstream sends, with their times."),
    "probe": ("probe", "Find out how an upstream really streams."),
    "mcp": ("tools", "Offer the enabled tools and `query` for any model as an MCP server."),
    "batch": ("batch", "Ask a model about every row of a file, here or through a gateway."),
    "logs": ("logs", "List, search, show, export and remove stored turns."),
    "sessions": ("logs", "List and show stored conversations."),
    "keys": ("keys", "Add, list and revoke the keys of the gateway's callers."),
    "config": ("config", "Show the configuration with the origin of each value, check or edit its file, print its schema."),
    "local": ("models", "Fetch, list and remove the weights of the model on this machine."),
    "policies": ("policies", "List policies, check a configuration, and try it on a stream or on all stored turns."),
    "approvals": ("approvals", "List the calls that wait for approval in a running gateway, and decide them."),
    "tools": ("tools", "List the tools that models may call, show one, run one, or serve them."),
}
"""The commands, the most used first: the module in ``commands`` where each stands under its own name, and its summary, which is the
first sentence of its help."""


class _Program(Group):
    """Lists the commands without their modules, and imports the module of the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # Click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # Click's signature
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f".commands.{COMMANDS[cmd_name][0]}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, summary) for name, (_, summary) in COMMANDS.items()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        offered = [click.Command(name, help=summary) for name, summary in self.summaries() if name.startswith(incomplete)]
        commands = [CompletionItem(command.name, help=command.get_short_help_str()) for command in offered]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from .. import __version__
        from ..installation import version_lines

        print("\n".join(version_lines(__version__)))
        context.exit()


@click.group(cls=_Program, name=completion.PROGRAM, no_args_is_help=True, context_settings=SETTINGS)
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


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. Errors are raised."""
    status = completion.requested(app, arguments)
    if status is None:
        with app.make_context(completion.PROGRAM, list(arguments)) as context:
            status = app.invoke(context)
    return status or 0
