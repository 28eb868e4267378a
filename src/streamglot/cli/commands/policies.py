"""``streamglot policies``: lists policies, checks a configuration, and tries it on streams and stored turns."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import writer
from ...config import load
from ...errors import ConfigError, RequestError
from ...events import Event
from ...inspect.detection import open_reader
from ...json_types import JsonObject
from ...plugins import offered
from ...policies import hold_back, load_policies, prepare
from ...policies.builtin import BUILT_IN
from ...policies.load import ENTRY_POINTS, description, find_policy
from ...policies.trial import BATCH_TURNS, RecordedTurn, Replay, side_by_side, summary, try_policies
from ...stages import replay
from ..options import FILE, group, text
from ..output import table
from ..store import Selection, reading, summaries
from .streams import pieces

if TYPE_CHECKING:
    from ...messages import Request
    from ..store import StoreView

policies = group("List policies, check a configuration, and try it on a stream or on all stored turns.")
POLICY_FILE = click.option("-p", "--policy", "file", type=FILE, help="A file with [[policies]]; by default the configuration.")


@policies.command("list", examples=("streamglot policies list",))
def policies_list() -> int:
    """List the policies that can be used."""
    others = offered(ENTRY_POINTS, "policy", BUILT_IN)
    table.show(("policy", "what it does"), [(name, find_policy(name).title) for name in (*BUILT_IN, *others)])
    return 0


@policies.command("show", examples=("streamglot policies show redact",))
@click.argument("name", type=text)
def policies_show(name: str) -> int:
    """Show a policy and its options. NAME is a policy's name, or module:Class."""
    print("\n".join(description(name)))
    return 0


@policies.command("check", examples=("streamglot policies check", "streamglot policies check policies.toml"))
@click.argument("file", type=FILE, required=False)
def policies_check(file: Path | None) -> int:
    """Check a configuration, and show how much of an answer it holds. Without FILE, the configuration in use is checked."""
    loaded = load_policies(tables_of(file))
    names = ", ".join(policy.name for policy in loaded) or "none"
    print(f"{len(loaded)} {'policy' if len(loaded) == 1 else 'policies'}: {names}")
    held = hold_back(member.needs for member in prepare(loaded) if not member.shadow)
    for kind, unit in held.items():
        print(f"  {kind}: {'flows' if unit == 'delta' else f'held by the {unit}'}")
    if not held:
        print("  nothing of an answer is held")
    return 0


@policies.command(
    "try",
    examples=("streamglot policies try recording.sse", "streamglot policies try turn_06605008 --as anthropic"),
)
@click.argument("recording", type=text)
@POLICY_FILE
@click.option("--from", "source", type=text, default="", help="The dialect of the recording; by default it is recognised.")
@click.option("--as", "target", type=text, default="", help="Write the stream after the policies in this dialect instead.")
def policies_try(recording: str, file: Path | None, source: str, target: str) -> int:
    """Show a stream before and after the policies, with held parts and delays. RECORDING is a file or a turn's id."""
    loaded = load_policies(tables_of(file))
    reads, request = _reads(recording, source)
    trial = try_policies(reads, loaded, request=request)
    if target:
        box = writer(target, include_usage=True)
        sys.stdout.buffer.write(box.feed(trial.after) + box.close())
        return 0
    for line in (*side_by_side(trial, shutil.get_terminal_size((120, 40)).columns), "", *summary(trial)):
        print(line)
    return 0


@policies.command("replay", examples=("streamglot policies replay --since 7d --policy new.toml",))
@POLICY_FILE
@click.option("--since", type=text, default="", help="Only from this time on: a time ago (7d, 12h) or a date.")
@click.option("--processes", type=click.IntRange(0), default=0, help="The number of processes; 0 means one for each core.")
def policies_replay(file: Path | None, since: str, processes: int) -> int:
    """Run policies over all stored turns, and report what they would have done. Judges that must wait for others fail."""

    async def work(view: StoreView) -> None:
        some: list[RecordedTurn] = []
        async for turn in summaries(view, await Selection(since=since).filter(view)):
            some.append(await _recorded(view, turn.id))
            if len(some) == BATCH_TURNS:
                running.add(some)
                some = []
        if some:
            running.add(some)

    with Replay(tables_of(file), processes=processes or None) as running:
        reading(work)
    for line in running.report.lines():
        print(line)
    return 0


def tables_of(file: Path | None) -> list[JsonObject]:
    """The ``[[policies]]`` of a file, or of the configuration."""
    if file is None:
        file = load().path
    if file is None:
        raise ConfigError("no configuration file was found: name a file with [[policies]]")
    try:
        tables = tomllib.loads(file.read_text()).get("policies", [])
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: policies must be a list of tables: [[policies]]")
    return tables


def _reads(recording: str, source: str) -> tuple[list[tuple[float, list[Event]]], Request | None]:
    """The reads of a recording, or of the stored answer of a turn with its request."""
    file = Path(recording)
    if file.is_file():
        box = open_reader(source)
        reads = [(at, box.feed(piece)) for at, piece in pieces(file)]
        return [*reads, (reads[-1][0] if reads else 0.0, box.close())], None

    async def work(view: StoreView) -> RecordedTurn:
        return await _recorded(view, await view.turn_id(recording))

    turn = reading(work)
    if turn.response is None:
        raise RequestError(f"the content of the turn {turn.id} was not stored; set `content = true` under [store] to store it")
    return [(0.0, [event]) for event in replay(turn.response)], turn.request


async def _recorded(view: StoreView, turn_id: str) -> RecordedTurn:
    turn = await view.queries.turn(turn_id)
    assert turn is not None
    return RecordedTurn(turn.id, turn.request, turn.response, model=turn.model, key=turn.caller, endpoint=turn.dialects["client"])
