"""Tries policies on recorded answers.

``try_policies`` shows one stream before and after, side by side, with what was held and for how long. ``Replay`` runs policies
over all stored turns, in batches and in parallel processes, and reports what they would have done.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Final

import msgspec
from msgspec import Struct, field

from ..errors import PolicyRefused
from ..events import (
    Choice,
    Event,
    ReasoningDelta,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResult,
)
from ..json_types import JsonObject, JsonValue
from ..messages import Request, Response
from ..stages import replay
from ..stages.stage import ExchangeContext
from .apply import Resolve, no_engine, settled
from .load import load_policies
from .policy import Policy
from .running.facts import SUBJECT
from .running.stage import PolicyStage, policy_stage


class TrialStep(Struct):
    """One read: when it came, its events, the events that left, and the text that is held behind them."""

    at: float
    fed: list[Event]
    left: list[Event]
    held: str


class Hold(Struct):
    """Text that waited: since when, how long, and the most of it at once."""

    since: float
    seconds: float
    text: str


class Trial(Struct):
    """``holds``: each time that text waited. ``verdicts``: what the policies decided."""

    steps: list[TrialStep]
    holds: list[Hold]
    verdicts: list[JsonObject] = field(default_factory=list)

    @property
    def before(self) -> list[Event]:
        return [event for step in self.steps for event in step.fed]

    @property
    def after(self) -> list[Event]:
        return [event for step in self.steps for event in step.left]


def try_policies(
    reads: Iterable[tuple[float, list[Event]]],
    policies: Sequence[Policy],
    *,
    request: Request | None = None,
    context: ExchangeContext | None = None,
    resolve: Resolve = no_engine,
) -> Trial:
    """Runs policies over a recording: its reads with the seconds at which they came."""
    context = context or ExchangeContext(model=request.model if request is not None else "")
    now = 0.0
    stage = policy_stage(policies, clock=lambda: now)(context)
    if request is not None and isinstance(stage, PolicyStage):
        stage.check_request(request, resolve)
    steps: list[TrialStep] = []
    ended = False
    for now, events in reads:  # the stage reads this variable as its clock
        if not isinstance(stage, PolicyStage):
            steps.append(TrialStep(now, events, events, ""))
            continue
        left = settled(stage, stage.feed(events), resolve) if events and not ended else []
        ended = ended or (bool(left) and isinstance(left[-1], (StreamEnd, StreamError)))
        held = "" if ended else "".join(text for texts in stage.held.values() for text in texts)
        steps.append(TrialStep(now, events, left, held))
    return Trial(steps, list(_holds(steps)), context.annotations.get(SUBJECT, []))


def _holds(steps: list[TrialStep]) -> Iterator[Hold]:
    since, longest = 0.0, ""
    for step in steps:
        if step.held and not longest:
            since = step.at
        if step.held:
            longest = max(longest, step.held, key=len)
        elif longest:
            yield Hold(since, step.at - since, longest)
            longest = ""


def side_by_side(trial: Trial, width: int = 100) -> Iterator[str]:
    """The trial as lines of two columns: the received and the released text of each read, with a mark after the held text."""
    column = max(20, (width - 12) // 2)
    yield f"{'seconds':>8}  {'before':<{column}}  after"
    for step in trial.steps:
        if not step.fed and not step.left:
            continue
        before, after = [list(_shown(events)) for events in (step.fed, step.left)]
        if step.held:
            after.append(f"… {len(step.held)} held: {step.held!r}")
        for row in range(max(len(before), len(after), 1)):
            left = before[row] if row < len(before) else ""
            right = after[row] if row < len(after) else ""
            time = f"{step.at:8.2f}" if row == 0 else " " * 8
            yield f"{time}  {_fitted(left, column):<{column}}  {_fitted(right, column)}".rstrip()


def summary(trial: Trial) -> Iterator[str]:
    """Summarises what was held and what was decided."""
    if trial.holds:
        longest = max(trial.holds, key=lambda hold: hold.seconds)
        max_chars = max(len(hold.text) for hold in trial.holds)
        yield f"held {len(trial.holds)} times, at most {max_chars} characters, at most {longest.seconds:.2f} s"
    else:
        yield "nothing was held"
    for fact in trial.verdicts:
        what = " ".join(str(fact[name]) for name in ("kind", "tool", "pattern") if fact.get(name))
        times = f" ({fact['count']} times)" if fact.get("count", 1) > 1 else ""
        reason = f": {fact['reason']}" if fact.get("reason") else ""
        would = "would " if fact.get("dry_run") else ""
        yield f"{fact['policy']}: {would}{fact['verdict']} {what}{times}{reason}"
    if not trial.verdicts:
        yield "no policy gave a verdict"


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _shown(events: list[Event]) -> Iterator[str]:
    """One line for each run of deltas and for each other event."""
    pieces: list[str] = []
    mark = ""
    for event in events:
        prefix = ""
        if isinstance(event, Choice):
            prefix, event = f"[{event.index}] ", event.event
        match event:
            case TextDelta(text=text):
                new = f"{prefix}text"
            case ReasoningDelta(text=text):
                new = f"{prefix}reasoning"
            case ToolCallDelta(args=text):
                new = f"{prefix}arguments"
            case _:
                new, text = "", ""
        if pieces and new != mark:
            yield f"{mark} {''.join(pieces)!r}"
            pieces.clear()
        mark = new
        if new:
            pieces.append(text)
            continue
        match event:
            case StreamStart():
                yield "start"
            case ToolCallStart(name=name):
                yield f"{prefix}call of {name}"
            case ToolResult(content=content):
                yield f"{prefix}result {content!r}"
            case StreamEnd(reason=reason):
                yield f"{prefix}end: {reason}"
            case StreamError(message=message):
                yield f"error: {message}"
    if pieces:
        yield f"{mark} {''.join(pieces)!r}"


BATCH_TURNS: Final = 100
"""Turns that go to a process at once: enough that sending them costs little, and few enough that all processes have work to the
end."""
BATCHES_AHEAD: Final = 2
"""Batches that wait for each process. They are in memory, so there are few."""
EXAMPLES: Final = 5
"""Examples of each kind of verdict in a report."""
EXAMPLE_CHARS: Final = 200


class RecordedTurn(Struct, omit_defaults=True):
    """A turn as it was stored. ``events`` are those of its stream, where they were kept; else they are made from the response."""

    id: str
    request: Request | None = None
    response: Response | None = None
    events: list[Event] = field(default_factory=list)
    model: str = ""
    key: str = ""
    endpoint: str = ""


class PolicyEffect(Struct, omit_defaults=True):
    """The effect that one policy would have had on one turn."""

    turn: str
    fact: JsonObject


class ReplayBatchResult(Struct):
    turns: int = 0
    events: int = 0
    touched: int = 0
    findings: list[PolicyEffect] = field(default_factory=list)


class ReplayReport(Struct):
    """``touched`` turns have at least one verdict. ``counts`` are verdicts by policy, verdict and kind, ``examples`` some of
    each."""

    turns: int = 0
    events: int = 0
    touched: int = 0
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    examples: dict[tuple[str, str, str], list[PolicyEffect]] = field(default_factory=dict)

    def add(self, result: ReplayBatchResult) -> None:
        self.turns += result.turns
        self.events += result.events
        self.touched += result.touched
        for finding in result.findings:
            fact = finding.fact
            key = fact["policy"], fact["verdict"], fact.get("pattern") or fact["kind"]
            self.counts[key] = self.counts.get(key, 0) + fact.get("count", 1)
            examples = self.examples.setdefault(key, [])
            if len(examples) < EXAMPLES:
                examples.append(finding)

    def lines(self) -> Iterator[str]:
        """The report for people."""
        yield f"{self.turns} turns, {self.events} events: {self.touched} turns would have been touched"
        for (policy, verdict, what), count in sorted(self.counts.items(), key=lambda item: -item[1]):
            yield f"{count:8}  {policy}: {verdict} {what}"
            for finding in self.examples[policy, verdict, what]:
                shown = finding.fact.get("original") or finding.fact.get("reason", "")
                yield f"{'':10}{finding.turn}  {shown[:EXAMPLE_CHARS]!r}"


class Replay:
    """Policies of a configuration over turns that are added in batches. ``processes`` is the number of cores if left
    out; 1 runs in this process. Leaving the ``with`` block waits for the last batches; then ``report`` is complete."""

    def __init__(self, tables: Sequence[Mapping[str, JsonValue]], *, processes: int | None = None) -> None:
        load_policies(tables)  # a configuration that cannot be used is refused before anything is read
        self.report = ReplayReport()
        self._workers = processes or os.cpu_count() or 1
        self._runner = _Runner(tables) if self._workers == 1 else None
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[Future[bytes]] = deque()
        if self._runner is None:
            self._pool = ProcessPoolExecutor(
                self._workers, get_context("spawn"), initializer=_start, initargs=(msgspec.json.encode(tables),)
            )

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            try:
                while self._waiting:
                    self.report.add(_result(self._waiting.popleft()))
            finally:
                self._pool.shutdown(cancel_futures=True)

    def add(self, turns: list[RecordedTurn]) -> None:
        """Judges these turns, or has them judged. Waits while too many batches are in progress."""
        if self._runner is not None:
            self.report.add(self._runner.run(turns))
            return
        assert self._pool is not None
        self._waiting.append(self._pool.submit(_work, msgspec.msgpack.encode(turns)))
        if len(self._waiting) >= self._workers * BATCHES_AHEAD:
            self.report.add(_result(self._waiting.popleft()))


def replay_policies(
    turns: Iterable[RecordedTurn],
    tables: Sequence[Mapping[str, JsonValue]],
    *,
    processes: int | None = None,
    batch: int = BATCH_TURNS,
) -> ReplayReport:
    """Runs the policies of a configuration over stored turns, as ``Replay`` does."""
    source = iter(turns)
    with Replay(tables, processes=processes) as running:
        while some := list(islice(source, batch)):
            running.add(some)
    return running.report


class _Runner:
    """The policies of a configuration in one process."""

    def __init__(self, tables: Sequence[Mapping[str, JsonValue]]) -> None:
        self._build = policy_stage(load_policies(tables), clock=lambda: 0.0)

    def run(self, turns: list[RecordedTurn]) -> ReplayBatchResult:
        result = ReplayBatchResult()
        for turn in turns:
            context = ExchangeContext(turn.id, turn.endpoint, turn.key, turn.model)
            events = turn.events or (replay(turn.response) if turn.response is not None else [])
            result.turns += 1
            result.events += len(events)
            self._run_turn(turn, events, context)
            facts = context.annotations.get(SUBJECT, [])
            result.touched += bool(facts)
            result.findings += [PolicyEffect(turn.id, fact) for fact in facts]
        return result

    def _run_turn(self, turn: RecordedTurn, events: list[Event], context: ExchangeContext) -> None:
        stage = self._build(context)
        if not isinstance(stage, PolicyStage):
            return
        if turn.request is not None:
            try:
                stage.check_request(turn.request, no_engine)
            except PolicyRefused:
                return  # the upstream would not have been asked
        if events:
            left = settled(stage, stage.feed(events), no_engine)
            assert not left or isinstance(left[-1], (StreamEnd, StreamError))


_runner: _Runner | None = None
_decoder = msgspec.msgpack.Decoder(list[RecordedTurn])
_results = msgspec.msgpack.Decoder(ReplayBatchResult)


def _start(tables: bytes) -> None:
    global _runner
    _runner = _Runner(msgspec.json.decode(tables))


def _work(batch: bytes) -> bytes:
    assert _runner is not None
    return msgspec.msgpack.encode(_runner.run(_decoder.decode(batch)))


def _result(future: Future[bytes]) -> ReplayBatchResult:
    return _results.decode(future.result())
