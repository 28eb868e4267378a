"""Runs policies over all stored turns, in batches and in parallel processes, and reports what they would have done."""

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
from ..events import Event, StreamEnd, StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Request, Response
from ..stages import replay
from ..stages.stage import ExchangeContext
from .drive import no_engine, settled
from .load import load_policies
from .running.records import SUBJECT
from .running.stage import PolicyStage, policy_stage

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
