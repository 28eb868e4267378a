"""``streamglot policies``: what policies there are, whether a configuration is right, and what it would do to a stream or to all turns."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, RequestError
from .guard import guarded

if TYPE_CHECKING:
    from ..messages import Request
    from ..policies.replay import RecordedTurn
    from .library import Library

app = typer.Typer()
policies = typer.Typer(
    help="Policies: list them, check a configuration, try it on a stream or on all stored turns.", no_args_is_help=True
)
app.add_typer(policies, name="policies")

PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", "-p", help="A file with [[policies]]; the configuration if left out.", show_default=False),
]


@policies.command("list")
def policies_list() -> None:
    """Lists the policies that can be used."""
    with guarded():
        from importlib.metadata import entry_points

        from ..policies.builtin import BUILT_IN
        from ..policies.load import ENTRY_POINTS, find_policy
        from . import table

        offered = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)} - BUILT_IN.keys())
        table.show(("policy", "what it does"), [(name, find_policy(name).title) for name in (*BUILT_IN, *offered)])


@policies.command("show")
def policies_show(name: Annotated[str, typer.Argument(help="A policy: its name, or module:Class.")]) -> None:
    """Shows a policy and its options."""
    with guarded():
        from ..policies.describe import description

        print("\n".join(description(name)))


@policies.command("check")
def policies_check(
    file: Annotated[
        Path | None, typer.Argument(help="A file with [[policies]]; the configuration if left out.", show_default=False)
    ] = None,
) -> None:
    """Checks a configuration, and says how much of an answer it holds."""
    with guarded():
        from ..policies import hold_back, load_policies, prepare

        loaded = load_policies(tables_of(file))
        print(
            f"{len(loaded)} {'policy' if len(loaded) == 1 else 'policies'}: {', '.join(policy.name for policy in loaded) or 'none'}"
        )
        held = hold_back(member.needs for member in prepare(loaded) if not member.shadow)
        for kind, unit in held.items():
            print(f"  {kind}: {'flows' if unit == 'delta' else f'held by the {unit}'}")
        if not held:
            print("  nothing of an answer is held")


@policies.command("try")
def policies_try(
    recording: Annotated[str, typer.Argument(help="A recording, or the id of a stored turn.")],
    file: PolicyFile = None,
    source: Annotated[str, typer.Option("--from", help="The dialect of the recording; guessed if left out.")] = "",
    target: Annotated[str, typer.Option("--as", help="Write the stream after the policies in this dialect instead.")] = "",
) -> None:
    """Shows a stream before and after the policies, side by side, with what was held and for how long."""
    with guarded():
        from ..policies import load_policies
        from ..policies.trial import side_by_side, summary, try_policies

        loaded = load_policies(tables_of(file))
        reads, request = _reads(recording, source)
        trial = try_policies(reads, loaded, request=request)
        if target:
            from .. import writer

            box = writer(target)
            sys.stdout.buffer.write(box.feed(trial.after) + box.close())
            return
        for line in (*side_by_side(trial, shutil.get_terminal_size((120, 40)).columns), "", *summary(trial)):
            print(line)


@policies.command("replay")
def policies_replay(
    file: PolicyFile = None,
    since: Annotated[str, typer.Option(help="Not before: a time ago (7d, 12h) or a date.", show_default=False)] = "",
    processes: Annotated[int, typer.Option(min=0, help="Processes; 0 is one for each core.")] = 0,
) -> None:
    """Runs policies over everything that is stored, and reports what they would have done. Judges that must ask others count as failed."""
    with guarded():
        from ..policies.replay import BATCH_TURNS, Replay
        from .library import reading
        from .logs import Chosen, summaries

        async def work(library: Library) -> None:
            some: list[RecordedTurn] = []
            async for turn in summaries(library, await Chosen(since=since).filter(library)):
                some.append(await _recorded(library, turn.id))
                if len(some) == BATCH_TURNS:
                    running.add(some)
                    some = []
            if some:
                running.add(some)

        with Replay(tables_of(file), processes=processes or None) as running:
            reading(work)
        for line in running.report.lines():
            print(line)


def tables_of(file: Path | None) -> list[dict[str, Any]]:
    """The ``[[policies]]`` of a file, or of the configuration."""
    if file is None:
        from ..gateway.config import load

        file = load().path
    if file is None:
        raise ConfigError("there is no configuration: name a file with [[policies]]")
    try:
        tables = tomllib.loads(file.read_text()).get("policies", [])
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: policies must be a list of tables: [[policies]]")
    return tables


def _reads(recording: str, source: str) -> tuple[list[tuple[float, Any]], Request | None]:
    """The reads of a recording, or of the stored answer of a turn, with the request of the turn."""
    file = Path(recording)
    if file.is_file():
        from .. import reader
        from ..events import decode
        from .replay import guess, pieces

        data = file.read_bytes()
        source = source or guess(data)
        if source == "events":
            return [(at, [decode(line) for line in piece.splitlines() if line.strip()]) for at, piece in pieces(file, data)], None
        box = reader(source)
        reads = [(at, box.feed(piece)) for at, piece in pieces(file, data)]
        return [*reads, (reads[-1][0] if reads else 0.0, box.close())], None
    from ..stages import replay
    from .library import reading

    async def work(library: Library) -> RecordedTurn:
        return await _recorded(library, await library.turn_id(recording))

    turn = reading(work)
    if turn.response is None:
        raise RequestError(f"the content of the turn {turn.id} was not stored")
    return [(0.0, [event]) for event in replay(turn.response)], turn.request


async def _recorded(library: Library, turn_id: str) -> RecordedTurn:
    from ..policies.replay import RecordedTurn

    turn = await library.queries.turn(turn_id)
    assert turn is not None
    return RecordedTurn(turn.id, turn.request, turn.response, model=turn.model, key=turn.caller, endpoint=turn.dialects["client"])
