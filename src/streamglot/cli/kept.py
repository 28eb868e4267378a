"""The commands on what was kept: logs, sessions, keys."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..callers import MOST
from . import offers
from .guard import guarded

app = typer.Typer()
logs = typer.Typer(help="The turns that were kept: list, search, show, export, remove them.", no_args_is_help=True)
sessions = typer.Typer(help="The conversations that were kept.", no_args_is_help=True)
keys = typer.Typer(help="Keys for the callers of the gateway, kept in the store by their hash.", no_args_is_help=True)
app.add_typer(logs, name="logs")
app.add_typer(sessions, name="sessions")
app.add_typer(keys, name="keys")


class Form(StrEnum):
    jsonl = "jsonl"
    markdown = "markdown"


Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
SessionOption = Annotated[
    str, typer.Option("--session", help="Of this session.", autocompletion=offers.sessions, show_default=False)
]
ModelOption = Annotated[str, typer.Option("--model", "-m", help="Of this model, as it was named.", show_default=False)]
Upstream = Annotated[str, typer.Option(help="Answered by this upstream.", show_default=False)]
Ending = Annotated[
    str, typer.Option(help="Ended so: end, length, error, client_gone …", autocompletion=offers.endings, show_default=False)
]
CallerOption = Annotated[str | None, typer.Option("--caller", help="Of this caller: the name of a key, for instance.")]
Since = Annotated[str, typer.Option(help="Not before: a time ago (2d, 12h) or a date.", show_default=False)]
Until = Annotated[str, typer.Option(help="Before: a time ago or a date.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many, the newest; 0 is all.")]
Turn = Annotated[
    str,
    typer.Argument(
        help="Its id, or the beginning of it; the last turn if left out.", autocompletion=offers.turns, show_default=False
    ),
]


@logs.command("list")
def logs_list(
    session: SessionOption = "",
    model: ModelOption = "",
    upstream: Upstream = "",
    ending: Ending = "",
    caller: CallerOption = None,
    since: Since = "",
    until: Until = "",
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """Lists turns, the newest first."""
    with guarded():
        from .logs import Chosen, listed

        chosen = Chosen(
            session=session, model=model, upstream=upstream, ending=ending, caller=caller, since=since, until=until, limit=limit
        )
        raise typer.Exit(listed(chosen, json))


@logs.command("search")
def logs_search(
    words: Annotated[list[str], typer.Argument(help='Words that all must be there, "an exact phrase", -not (behind --).')],
    session: SessionOption = "",
    model: ModelOption = "",
    upstream: Upstream = "",
    ending: Ending = "",
    caller: CallerOption = None,
    since: Since = "",
    until: Until = "",
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """Lists the turns in which these words were asked or answered."""
    with guarded():
        from .logs import Chosen, listed

        chosen = Chosen(
            session=session, model=model, upstream=upstream, ending=ending, caller=caller, since=since, until=until, limit=limit
        )
        chosen.words = " ".join(words) or " "  # which is refused: it is no word
        raise typer.Exit(listed(chosen, json))


@logs.command("show")
def logs_show(
    turn: Turn = "",
    json: Annotated[bool, typer.Option("--json", help="All that is kept of it, as one JSON object.")] = False,
    response: Annotated[bool, typer.Option("--response", help="The complete response object, as without streaming.")] = False,
    target: Annotated[
        str,
        typer.Option("--as", help="The dialect of --response; the client's own if left out.", autocompletion=offers.dialects),
    ] = "",
) -> None:
    """Shows a turn whole: what was said, how it ended, what it cost, how long it took."""
    with guarded():
        from .logs import show

        raise typer.Exit(show(turn, json, response or bool(target), target))


@logs.command("export")
def logs_export(
    turn: Annotated[
        str,
        typer.Argument(help="One turn; all that the options name if left out.", autocompletion=offers.turns, show_default=False),
    ] = "",
    directory: Annotated[Path | None, typer.Argument(help="For --as-test: the folder of recordings.", show_default=False)] = None,
    as_test: Annotated[
        bool, typer.Option("--as-test", help="A recording of the turn's stream, and the events that a reader must give for it.")
    ] = False,
    form: Annotated[Form, typer.Option("--format", "-f", help="JSON lines, or pages to read.")] = Form.jsonl,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; standard output if left out.")] = None,
    session: SessionOption = "",
    model: ModelOption = "",
    upstream: Upstream = "",
    ending: Ending = "",
    caller: CallerOption = None,
    since: Since = "",
    until: Until = "",
    limit: Limit = 0,
) -> None:
    """Writes turns for elsewhere, or turns one into a test."""
    if as_test and not turn:
        raise typer.BadParameter("--as-test needs a turn")
    if directory is not None and not as_test:
        raise typer.BadParameter("a folder is for --as-test; a file is named with --output")
    with guarded():
        if as_test:
            from . import as_test as recording

            raise typer.Exit(recording.run(turn, directory or Path()))
        from .export import run
        from .logs import Chosen

        chosen = Chosen(
            session=session, model=model, upstream=upstream, ending=ending, caller=caller, since=since, until=until, limit=limit
        )
        raise typer.Exit(run(turn, chosen, form.value, output))


@logs.command("prune")
def logs_prune(
    older_than: Annotated[str, typer.Option(help="Turns that started longer ago: 30d, 12h …", show_default=False)] = "",
    larger_than: Annotated[str, typer.Option(help="The oldest, until the rest is this small: 1GB …", show_default=False)] = "",
    archive: Annotated[Path | None, typer.Option(help="A file of JSON lines that gets them first.", show_default=False)] = None,
    forget_spending: Annotated[
        bool, typer.Option("--forget-spending", help="Even turns that count for the budget of a key: it can spend that again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Removes turns for good. Nothing else ever does."""
    with guarded():
        from .prune import run

        raise typer.Exit(run(older_than, larger_than, archive, forget_spending, yes))


@sessions.command("list")
def sessions_list(
    caller: CallerOption = None,
    here: Annotated[bool, typer.Option("--here", help="Those of this directory.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many, the newest.")] = 50,
    json: Json = False,
) -> None:
    """Lists conversations, the one with the newest turn first."""
    with guarded():
        from .sessions import listed

        raise typer.Exit(listed(caller, here, limit, json))


@sessions.command("show")
def sessions_show(
    session: Annotated[str, typer.Argument(help="Its id, or the beginning of it.", autocompletion=offers.sessions)],
    json: Annotated[bool, typer.Option("--json", help="As one JSON object, with its turns.")] = False,
) -> None:
    """Shows a conversation: its turns, and what was said."""
    with guarded():
        from .sessions import show

        raise typer.Exit(show(session, json))


@keys.command("add")
def keys_add(
    name: Annotated[str, typer.Argument(help="Whose it is. A name is never given twice.")],
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A pattern of models that it may use; may be repeated.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, max=MOST)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, max=MOST)] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, max=MOST, help="Streams at once.")] = None,
    budget_cost: Annotated[float | None, typer.Option(min=0, help="What it may cost, in dollars.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=0, max=MOST, help="Tokens that it may use.")] = None,
    budget_per: Annotated[str, typer.Option(help="The time that a budget is for: 30d, 24h …; ever, if left out.")] = "",
) -> None:
    """Makes a key and shows it, once."""
    with guarded():
        from .keys import add

        limits = {
            "models": models,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "concurrent": concurrent,
            "budget_cost": budget_cost,
            "budget_tokens": budget_tokens,
        }
        raise typer.Exit(add(name, limits, budget_per))


@keys.command("list")
def keys_list(
    revoked: Annotated[bool, typer.Option("--revoked", help="Those that were revoked too.")] = False, json: Json = False
) -> None:
    """Lists keys with their limits and what was used of them. The keys themselves are not known."""
    with guarded():
        from .keys import listed

        raise typer.Exit(listed(revoked, json))


@keys.command("revoke")
def keys_revoke(name: Annotated[str, typer.Argument(help="The name of a key.", autocompletion=offers.keys)]) -> None:
    """From now on the key opens nothing. What was done with it stays."""
    with guarded():
        from .keys import revoke

        raise typer.Exit(revoke(name))
