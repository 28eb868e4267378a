"""The commands that ask a model: query, chat and reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import completion_values
from ..help import Command, together
from ..values import FILE, completed, text

if TYPE_CHECKING:
    from ..answer import DisplayOptions
    from ..question import Question

MODEL = click.option(
    "-m",
    "--model",
    type=text,
    default="",
    help="The model, or upstream/model.",
    shell_complete=completed(completion_values.models),
)
SYSTEM = click.option("-s", "--system", type=text, default="", help="The system message.")
TOOLS_FILE = click.option(
    "--tools-file", type=FILE, help="A JSON list of tools that the model may call. Calls are shown, not run."
)
MAX_TOKENS = click.option("--max-tokens", type=click.IntRange(min=1), help="The maximum length of the answer, in tokens.")
SCHEMA = click.option("--schema", type=text, default="", help="A JSON schema for the answer: a file, or the schema itself.")
QUESTION = together(
    MODEL,
    SYSTEM,
    click.option("-a", "--attach", multiple=True, help="A file or an address to attach. May be repeated."),
    TOOLS_FILE,
    click.option(
        "-T", "--tools", multiple=True, type=text, help="Tools that are run for the model: a name or glob. May be repeated."
    ),
    click.option(
        "--mcp", multiple=True, type=text, help="Tools of an MCP server: its name, address or command. May be repeated."
    ),
    click.option(
        "--approve",
        multiple=True,
        type=text,
        help="Run tools `always`, `ask` first (unless they only read), or `never`. GLOB=MODE for some tools.",
    ),
    MAX_TOKENS,
    click.option("-t", "--temperature", type=float, help="The sampling temperature."),
    click.option("--effort", type=text, default="", help="How much the model thinks: none, low, medium, high …"),
)
RAW = click.option("--raw", is_flag=True, help="Print the text unchanged. A terminal still gets no control characters.")
JSON_OPTIONS = together(
    click.option("--json", is_flag=True, help="Print the whole answer as one JSON object, when it is complete."),
    click.option("--events", is_flag=True, help="Print the events as they arrive, one JSON object a line."),
)
OUTPUT = together(
    click.option(
        "--markdown",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Render markdown. `auto` does so at a terminal only.",
    ),
    click.option("--hide-reasoning", is_flag=True, help="Do not show the model's reasoning."),
    RAW,
    click.option("-u", "--usage", is_flag=True, help="Print tokens and cost on standard error."),
    click.option("--no-log", is_flag=True, help="Do not store this conversation."),
)
WORDS = click.argument("words", nargs=-1, type=text)
HERE = click.option("--here", is_flag=True, help="Use the last conversation of this directory.")


@click.command(
    cls=Command,
    examples=(
        'streamglot query "Why is the sky blue?"',
        'cat notes.md | streamglot query -m claude-sonnet-4-5 "Summarise this" -u',
        'streamglot query -m gemini-2.5-flash -a photo.png "What is this?"',
        'streamglot query --json "Hello" | jq .usage',
    ),
)
@WORDS
@QUESTION
@SCHEMA
@OUTPUT
@JSON_OPTIONS
def query(words: tuple[str, ...], **given: object) -> int:  # Click passes the options by their names
    """Ask one question and print the answer as it arrives.

    Standard input is added to the words of the command line. Ctrl-C stops the answer; the partial answer is stored.
    """
    from .query import run

    return run(list(words), _question(given), _display_options(given), not given["no_log"])


@click.command(
    cls=Command,
    examples=(
        "streamglot chat -m local",
        "streamglot chat --continue             # resume the last conversation",
        "streamglot chat --continue 06605008c9  # one of `streamglot sessions list`",
    ),
)
@click.option(
    "-c",
    "--continue",
    "resume",
    type=text,
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[SESSION]",
    help="Resume the last conversation, or the one with this id or the beginning of it.",
    shell_complete=completed(completion_values.sessions),
)
@HERE
@QUESTION
@OUTPUT
def chat(resume: str | None, here: bool, **given: object) -> int:  # Click passes the options by their names
    """Hold a conversation.

    Alt-Enter starts a new line, the arrow keys recall earlier lines, Tab completes commands, and /help lists them.
    """
    if resume and here:
        raise click.UsageError("--continue SESSION and --here select different conversations: use only one of them")
    from .chat import run

    return run(_question(given), _display_options(given), not given["no_log"], "" if here else resume, here)


@click.command(
    cls=Command,
    examples=(
        'streamglot reply "And at night?"',
        'streamglot reply --here -m claude-sonnet-4-5 "Say it shorter"',
        'streamglot reply --session 06605008c9 "Go on"',
    ),
)
@WORDS
@click.option(
    "--session",
    type=text,
    default="",
    help="The session to continue, or the beginning of its id.",
    shell_complete=completed(completion_values.sessions),
)
@HERE
@QUESTION
@SCHEMA
@OUTPUT
@JSON_OPTIONS
def reply(words: tuple[str, ...], session: str, here: bool, **given: object) -> int:  # Click passes the options by their names
    """Continue the last conversation with one more question.

    It uses the same model and system message unless the options name others.
    """
    from .reply import run

    return run(list(words), _question(given), _display_options(given), session, here, not given["no_log"])


def _question(given: dict[str, Any]) -> Question:  # Any: Click passes options by their names
    from ..question import Question
    from ..tool_options import ToolOptions

    return Question(
        model=given["model"],
        system=given["system"],
        schema=given.get("schema", ""),
        attachments=list(given["attach"]),
        tools_file=given["tools_file"],
        tools=ToolOptions(patterns=list(given["tools"]), mcp=list(given["mcp"]), approve=list(given["approve"])),
        max_tokens=given["max_tokens"],
        temperature=given["temperature"],
        effort=given["effort"],
    )


def _display_options(given: dict[str, Any]) -> DisplayOptions:  # Any: as for ``_question``
    from ..answer import FORMS, DisplayOptions

    forms = [form for form in FORMS if given.get(form)]
    if len(forms) > 1:
        raise click.UsageError(f"--{forms[0]} and --{forms[1]} cannot be used together")

    return DisplayOptions(
        markdown=given["markdown"],
        reasoning=not given["hide_reasoning"],
        form=forms[0] if forms else "text",
        usage=given["usage"],
    )


COMMANDS = (query, chat, reply)
