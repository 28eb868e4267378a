"""The commands on the store: logs, sessions, keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...callers import MAX_LIMIT
from .. import completion_values
from ..help import group, together
from ..values import FILE, completed, text

if TYPE_CHECKING:
    from .logs import Chosen

logs = group("List, search, show, export and remove stored turns.")
sessions = group("List and show stored conversations.")
keys = group("Add, list and revoke the keys of the gateway's callers. The store has only their hashes.")

JSON_LINES = click.option("--json", is_flag=True, help="Print one JSON object a line.")
CALLER = click.option("--caller", type=text, help="Only those of this caller, such as the name of a key.")
FILTER = together(
    click.option(
        "--session",
        type=text,
        default="",
        help="Only turns of this session.",
        shell_complete=completed(completion_values.sessions),
    ),
    click.option("-m", "--model", type=text, default="", help="Only turns of this model, as the client named it."),
    click.option("--upstream", type=text, default="", help="Only turns that this upstream answered."),
    click.option(
        "--ending",
        type=text,
        default="",
        help="Only turns with this ending: end, length, error, client_gone …",
        shell_complete=completed(completion_values.endings),
    ),
    CALLER,
    click.option("--since", type=text, default="", help="Only from this time on: a time ago (2d, 12h) or a date."),
    click.option("--until", type=text, default="", help="Only before this time: a time ago or a date."),
)
LIMIT = click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most this many, the newest; 0 for all."
)
TURN = click.argument("turn", type=text, default="", shell_complete=completed(completion_values.turns))
RATE = click.IntRange(1, MAX_LIMIT)


@logs.command(
    "list",
    examples=(
        "streamglot logs list --since 2d --ending error",
        "streamglot logs list -m local -n 0 --json",
    ),
)
@FILTER
@LIMIT
@JSON_LINES
def logs_list(json: bool, **given: object) -> int:  # Click passes the options by their names
    """List turns, the newest first."""
    from .logs import listed

    return listed(_chosen(given), json)


@logs.command("search", examples=('streamglot logs search zebra "by the lake"', "streamglot logs search -- zebra -lake"))
@click.argument("words", nargs=-1, required=True, type=text)
@FILTER
@LIMIT
@JSON_LINES
def logs_search(words: tuple[str, ...], json: bool, **given: object) -> int:  # Click passes the options by their names
    """List the turns whose question or answer has these words.

    All WORDS must occur. Put an exact phrase in quotes. After --, a word with a leading - must not occur.
    """
    from .logs import listed

    chosen = _chosen(given)
    chosen.words = " ".join(words) or " "  # a single space is refused because it has no word
    return listed(chosen, json)


@logs.command(
    "show",
    examples=(
        "streamglot logs show                 # the last turn",
        "streamglot logs show 06605008c9 --as anthropic",
    ),
)
@TURN
@click.option("--json", is_flag=True, help="Print everything that is stored of the turn as one JSON object.")
@click.option("--response", is_flag=True, help="Print the complete response object, as without streaming.")
@click.option(
    "--as",
    "target",
    type=text,
    default="",
    help="The dialect of --response; by default the client's own.",
    shell_complete=completed(completion_values.dialects),
)
def logs_show(turn: str, json: bool, response: bool, target: str) -> int:
    """Show a whole turn: its messages, ending, cost and duration.

    TURN is its id, or the beginning of it; by default the last turn.
    """
    from .logs import show

    return show(turn, json, response or bool(target), target)


@logs.command(
    "export",
    examples=(
        "streamglot logs export -o turns.jsonl --since 30d",
        "streamglot logs export -f markdown -o talks.md",
        "streamglot logs export 06605008c9 --as-test tests/corpus",
    ),
)
@TURN
@click.argument("directory", type=FILE, required=False)
@click.option("--as-test", is_flag=True, help="Write the turn's stream and its expected events into DIRECTORY.")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["jsonl", "markdown"]),
    default="jsonl",
    show_default=True,
    help="JSON lines or Markdown.",
)
@click.option("-o", "--output", type=FILE, help="The output file; by default standard output.")
@FILTER
@click.option("-n", "--limit", type=click.IntRange(min=0), default=0, help="At most this many, the newest; by default all.")
def logs_export(
    turn: str, directory: Path | None, as_test: bool, form: str, output: Path | None, **given: object
) -> int:  # Click passes the options by their names
    """Write turns to a file, or make a test of one.

    TURN selects one turn; without it, all turns that match the options are written. DIRECTORY is the folder of recordings for
    --as-test.
    """
    if as_test and not turn:
        raise click.UsageError("--as-test needs a turn: name one before DIRECTORY")
    if directory is not None and not as_test:
        raise click.UsageError("DIRECTORY can be used only with --as-test; name the output file with --output")
    if as_test:
        from . import export_fixture as recording

        return recording.run(turn, directory or Path())
    from .export import run

    return run(turn, _chosen(given), "markdown" if form == "markdown" else "jsonl", output)


@logs.command("prune", examples=("streamglot logs prune --older-than 90d --larger-than 1GB --archive old.jsonl",))
@click.option("--older-than", type=text, default="", help="Remove turns that started longer ago: 30d, 12h …")
@click.option("--larger-than", type=text, default="", help="Remove the oldest turns until the rest is this small: 1GB …")
@click.option("--archive", type=FILE, help="A file of JSON lines that the turns are appended to before they are removed.")
@click.option(
    "--forget-spending", is_flag=True, help="Also remove turns that count for a key's budget. The key can spend it again."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def logs_prune(older_than: str, larger_than: str, archive: Path | None, forget_spending: bool, yes: bool) -> int:
    """Remove turns permanently. No other command removes turns."""
    from .prune import run

    return run(older_than, larger_than, archive, forget_spending, yes)


def _chosen(given: dict[str, Any]) -> Chosen:  # Any: Click passes options by their names
    from .logs import Chosen

    return Chosen(**given)


@sessions.command("list", examples=("streamglot sessions list", "streamglot sessions list --here -n 5"))
@CALLER
@click.option("--here", is_flag=True, help="Only those of this directory.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many, the newest.")
@JSON_LINES
def sessions_list(caller: str | None, here: bool, limit: int, json: bool) -> int:
    """List conversations, the one with the newest turn first."""
    from .sessions import listed

    return listed(caller, here, limit, json)


@sessions.command("show", examples=("streamglot sessions show 06605008c9",))
@click.argument("session", type=text, shell_complete=completed(completion_values.sessions))
@click.option("--json", is_flag=True, help="Print one JSON object with its turns.")
def sessions_show(session: str, json: bool) -> int:
    """Show the turns and messages of a conversation.

    SESSION is its id, or the beginning of it.
    """
    from .sessions import show

    return show(session, json)


@keys.command(
    "add",
    examples=(
        "streamglot keys add alice",
        "streamglot keys add bot -m 'gpt-*' --budget-cost 10 --budget-per 30d",
    ),
)
@click.argument("name", type=text)
@click.option(
    "-m", "--model", "models", type=text, multiple=True, help="A pattern of models that the key may use. May be repeated."
)
@click.option(
    "-T", "--tool", "tools", type=text, multiple=True, help="A pattern of gateway tools that the key may use. May be repeated."
)
@click.option("--no-tools", is_flag=True, help="The key may use no gateway tools.")
@click.option("--requests-per-minute", type=RATE, help="The requests that the key may start in a minute.")
@click.option("--tokens-per-minute", type=RATE, help="The tokens that the key may use in a minute.")
@click.option("--concurrent", type=RATE, help="The streams that the key may have open at once.")
@click.option("--budget-cost", type=click.FloatRange(min=0), help="The budget of the key, in US dollars.")
@click.option("--budget-tokens", type=click.IntRange(0, MAX_LIMIT), help="The budget of the key, in tokens.")
@click.option("--budget-per", type=text, default="", help="The period of a budget: 30d, 24h …; by default unlimited.")
def keys_add(
    name: str, models: tuple[str, ...], tools: tuple[str, ...], no_tools: bool, budget_per: str, **limits: object
) -> int:  # Click passes the options by name
    """Create a key and print it. It is shown only once.

    NAME identifies its owner. A name cannot be used again, even after its key was revoked.
    """
    from .keys import add

    if tools and no_tools:
        raise click.UsageError("--tool and --no-tools cannot be used together")
    allowed = [] if no_tools else list(tools) or None
    return add(name, {"models": list(models) or None, "tools": allowed, **limits}, budget_per)


@keys.command("list", examples=("streamglot keys list --revoked",))
@click.option("--revoked", is_flag=True, help="Also list revoked keys.")
@JSON_LINES
def keys_list(revoked: bool, json: bool) -> int:
    """List keys with their limits and usage. The keys themselves are not stored."""
    from .keys import listed

    return listed(revoked, json)


@keys.command("revoke", examples=("streamglot keys revoke alice",))
@click.argument("name", type=text, shell_complete=completed(completion_values.keys))
def keys_revoke(name: str) -> int:
    """Revoke the key with this NAME. The gateway refuses it from now on. Its turns stay in the store."""
    from .keys import revoke

    return revoke(name)


@keys.command("remove", examples=("streamglot keys remove alice",))
@click.argument("name", type=text, shell_complete=completed(completion_values.keys))
def keys_remove(name: str) -> int:
    """Revoke the key with this NAME: another word for `keys revoke`."""
    from .keys import revoke

    return revoke(name)


GROUPS = {"logs": logs, "sessions": sessions, "keys": keys}
