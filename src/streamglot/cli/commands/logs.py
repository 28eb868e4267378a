"""``streamglot logs`` and ``sessions``: the stored turns and conversations, listed, searched, shown, exported and removed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs

from ...errors import ConfigError, RequestError
from ...messages import Message
from ...store import Filter, SessionSummary, TurnDetail, TurnSummary, prune_turns, summary_line
from ...store.conversation import normal
from ...store.export import detail_line
from ...store.retention import size as contents_size
from .. import completion
from ..options import (
    CALLER,
    FILE,
    JSON_LINES,
    completed,
    directory_for_here,
    group,
    text,
)
from ..output import table
from ..output.printers import seen
from ..output.terminal import is_terminal
from ..output.transcript import Transcript
from ..output.units import money, seconds, shown_size, shown_time, size
from ..store import FILTER, STILL_RUNNING, TURN_ARGUMENT, Selection, StoreView, reading, short, summaries
from .export import logs_export

logs = group("List, search, show, export and remove stored turns.")
sessions = group("List and show stored conversations.")
LIMIT = click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most this many, the newest; 0 for all."
)


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
def logs_list(json: bool, **selected: Any) -> int:  # Any: Click passes the options by their names
    """List turns, the newest first."""
    return _list_turns(Selection(**selected), json)


@logs.command("search", examples=('streamglot logs search zebra "by the lake"', "streamglot logs search -- zebra -lake"))
@click.argument("words", nargs=-1, required=True, type=text)
@FILTER
@LIMIT
@JSON_LINES
def logs_search(words: tuple[str, ...], json: bool, **selected: Any) -> int:  # Any: Click passes the options by their names
    """List the turns whose question or answer has these words.

    All WORDS must occur. Put an exact phrase in quotes. After --, a word with a leading - must not occur.
    """
    # A single space is refused because it has no word.
    return _list_turns(Selection(**selected, words=" ".join(words) or " "), json)


def _list_turns(selection: Selection, as_json: bool) -> int:
    async def work(view: StoreView) -> list[TurnSummary]:
        return [turn async for turn in summaries(view, await selection.filter(view))]

    turns = reading(work)
    if as_json:
        for turn in turns:
            sys.stdout.buffer.write(seen(summary_line(turn)))
    elif not turns:
        plain = structs.replace(selection, limit=0) == Selection()
        print("no turn is stored yet" if plain else "no stored turn matches", file=sys.stderr)
    else:
        _print_turns(turns)
    return 0


def _print_turns(turns: list[TurnSummary]) -> None:
    names = ("started", "turn", "model", "ending", "tokens", "seconds", "title")
    table.show(names, [_turn_row(turn) for turn in turns], ("tokens", "seconds"))


def _turn_row(turn: TurnSummary) -> list[str]:
    usage = turn.usage
    counts = (usage.input_tokens, usage.output_tokens) if usage is not None else (None, None)
    return [
        shown_time(turn.started, "%m-%d %H:%M:%S"),
        short(turn.id),
        turn.model,
        turn.ending or STILL_RUNNING,
        "" if counts == (None, None) else "/".join("?" if count is None else str(count) for count in counts),
        "" if turn.duration is None else f"{turn.duration:.1f}",
        turn.title,
    ]


@logs.command(
    "show",
    examples=(
        "streamglot logs show                 # the last turn",
        "streamglot logs show 06605008c9 --as anthropic",
    ),
)
@TURN_ARGUMENT
@click.option("--json", is_flag=True, help="Print everything that is stored of the turn as one JSON object.")
@click.option("--response", is_flag=True, help="Print the complete response object, as without streaming.")
@click.option(
    "--as",
    "target",
    type=text,
    default="",
    help="The dialect of --response; by default the client's own.",
    shell_complete=completed(completion.dialects),
)
def logs_show(turn: str, json: bool, response: bool, target: str) -> int:
    """Show a whole turn: its messages, ending, cost and duration.

    TURN is its id, or the beginning of it; by default the last turn.
    """

    async def work(view: StoreView) -> bytes | Transcript:
        turn_id = await view.turn_id(turn)
        if response or target:
            whole = await view.queries.complete(turn_id, name=target)
            if whole is None:
                raise RequestError(f"the turn {turn_id} has no answer yet: it is still running")
            return msgspec.json.encode(whole) + b"\n"
        detail = await view.queries.turn(turn_id)
        assert detail is not None
        return detail_line(detail) if json else Transcript(detail)

    shown = reading(work)
    if isinstance(shown, bytes):
        sys.stdout.buffer.write(seen(shown))
    else:
        shown.print()
    return 0


logs.add_command(logs_export)


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
    if not older_than and not larger_than:
        raise ConfigError("prune needs a limit: give --older-than 30d, --larger-than 1GB or both")
    age = seconds(older_than) if older_than else None
    max_bytes = size(larger_than) if larger_than else None
    if not yes:
        _ask_to_prune(older_than, larger_than, archive)

    async def work(view: StoreView) -> str:
        try:
            done = await prune_turns(
                view.database, older_than=age, max_bytes=max_bytes, archive=archive, forget_spending=forget_spending
            )
        except OSError as error:
            raise ConfigError(f"{archive} cannot be written, so no more turns are removed: {error.strerror or error}") from None
        archived = f", {done.archived} of them archived in {archive}" if archive is not None else ""
        left = await view.lookup.count_turns()
        return (
            f"{done.turns} turns removed{archived}; {left} are left; "
            f"contents: {shown_size(done.bytes_before)} before, {shown_size(done.bytes_after)} now"
        )

    print(reading(work))
    return 0


def _ask_to_prune(older_than: str, larger_than: str, archive: Path | None) -> None:
    if not is_terminal(sys.stdin):
        raise ConfigError("turns are removed permanently, and there is no terminal to ask at: confirm with --yes")

    async def work(view: StoreView) -> tuple[int, int]:
        return await view.lookup.count_turns(), await contents_size(view.database)

    count, taken = reading(work)
    removed = [f"those older than {older_than}"] if older_than else []
    removed += [f"the oldest until the rest is at most {larger_than}"] if larger_than else []
    kept = f"archived in {archive} and then removed" if archive is not None else "removed permanently"
    if not click.confirm(
        f"{count} turns are stored, {shown_size(taken)}; {', then '.join(removed)}, will be {kept}. Go on?", err=True
    ):
        raise click.exceptions.Exit(1)


# --- conversations


@sessions.command("list", examples=("streamglot sessions list", "streamglot sessions list --here -n 5"))
@CALLER
@click.option("--here", is_flag=True, help="Only those of this directory.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many, the newest.")
@JSON_LINES
def sessions_list(caller: str | None, here: bool, limit: int, json: bool) -> int:
    """List conversations, the one with the newest turn first."""

    async def work(view: StoreView) -> list[SessionSummary]:
        if not here:
            return await view.queries.sessions(caller, limit)
        inside = [await view.queries.session(id, caller) for id in await view.lookup.sessions_in(directory_for_here(), limit)]
        return [session for session in inside if session is not None]

    found = reading(work)
    if json:
        for session in found:
            sys.stdout.buffer.write(seen(msgspec.json.encode(session) + b"\n"))
    elif not found:
        print("no session is stored yet", file=sys.stderr)
    else:
        names = ("last", "session", "turns", "tokens", "directory", "title")
        table.show(names, [_session_row(session) for session in found], ("turns", "tokens"))
    return 0


@sessions.command("show", examples=("streamglot sessions show 06605008c9",))
@click.argument("session", type=text, shell_complete=completed(completion.sessions))
@click.option("--json", is_flag=True, help="Print one JSON object with its turns.")
def sessions_show(session: str, json: bool) -> int:
    """Show the turns and messages of a conversation.

    SESSION is its id, or the beginning of it.
    """

    async def work(view: StoreView) -> tuple[SessionSummary | None, list[TurnSummary], list[TurnDetail]]:
        session_id = await view.session_id(session)
        turns = [turn async for turn in summaries(view, Filter(session_id=session_id, limit=sys.maxsize))][::-1]
        new_messages = NewMessages()
        details = (
            [] if json else [new_messages.only_new(detail) for turn in turns if (detail := await view.queries.turn(turn.id))]
        )
        return await view.queries.session(session_id), turns, details

    summary, turns, details = reading(work)
    if json:
        facts = msgspec.to_builtins(summary) if summary is not None else {}
        sys.stdout.buffer.write(seen(msgspec.json.encode({**facts, "turns": turns}) + b"\n"))
        return 0
    if summary is not None:
        directory = f" in {summary.directory}" if summary.directory else ""
        print(table.one_line(f"{summary.id}{directory}, since {shown_time(summary.started)}; cost: {money(summary.cost)}"))
    _print_turns(turns)
    for turn in details:
        Transcript(turn).print_messages()
    return 0


class NewMessages:
    """The messages of a session that were shown already. A request repeats the conversation before it, or begins another one.
    Clients edit what they repeat, so messages are compared by their words."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, bytes]] = Counter()

    def only_new(self, turn: TurnDetail) -> TurnDetail:
        """The turn with only the new messages of its request, and with all messages after the last answer."""
        if turn.request is None:
            return turn
        messages = turn.request.messages
        answered = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=-1)
        times: Counter[tuple[str, bytes]] = Counter()
        new: list[Message] = []
        for place, message in enumerate(messages):
            identity = _identity(message)
            times[identity] += 1
            if times[identity] > self._times[identity] or (place > answered and message.role in ("user", "tool")):
                new.append(message)
        for choice in turn.response.choices if turn.response is not None else ():
            times[_identity(Message("assistant", choice.parts))] += 1
        self._times |= times
        return structs.replace(turn, request=structs.replace(turn.request, messages=new))


def _identity(message: Message) -> tuple[str, bytes]:
    return message.role, normal(message.parts)


def _session_row(session: SessionSummary) -> list[str]:
    return [
        shown_time(session.updated, "%m-%d %H:%M:%S"),
        short(session.id),
        str(session.turns),
        f"{session.input_tokens}/{session.output_tokens}",
        session.directory,
        session.title,
    ]
