"""``streamglot batch run``: asks a model about every row of a file, without a server. A second run resumes the first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from ...batch.runner import RetryPolicy
from ...client.batch import BatchResult
from ...engine.recorder import TurnRecorder
from ...errors import ConfigError, StreamglotError
from ...messages import Request
from ..exit_status import FAILED, stoppable
from ..files import shown
from ..output.terminal import print_error
from ..own_turns import turn_recorder
from ..question import Question
from .output import OutputFile
from .plan import Plan, plan_for, planned
from .progress import Counts, ProgressBar
from .rows import Row, Rows, open_rows
from .template import Template


class RunOptions(Struct, kw_only=True):
    """The options of a run. If ``output`` is None, the output is a file beside the input."""

    path: Path
    question: Question
    prompt: str = ""
    output: Path | None = None
    column: str = "answer"
    concurrent: int = 8
    retries: int = 3
    ordered: bool = False
    quiet: bool = False
    log: bool = False


@stoppable()
def run(options: RunOptions) -> int:
    rows = open_rows(options.path)
    template = Template(options.prompt) if options.prompt else None
    beginning = iter(rows)
    first = next(beginning, None)
    plan = plan_for(rows, first, options.question, template, options.column)
    target = options.output or options.path.with_name(f"{options.path.stem}.out.jsonl")
    if target.resolve() == options.path.resolve():
        raise ConfigError("the output would overwrite the input: name another file with -o")
    output = OutputFile(target, plan.read)
    rest = itertools.chain([] if first is None else [first], beginning)
    try:
        counts = _Run(options, rows, plan, output).go(rest)
    finally:
        output.close()
    print(f"{counts.done + counts.before} of {counts.done + counts.before + counts.failed} rows are done: {shown(target)}")
    if counts.failed:
        print_error(f"{counts.failed} rows failed; the output has their errors; run the same command again to retry them")
    return FAILED if counts.failed else 0


class _Run:
    def __init__(self, options: RunOptions, rows: Rows, plan: Plan, output: OutputFile) -> None:
        self._options = options
        self._rows = rows
        self._plan = plan
        self._output = output
        self._counts = Counts()
        self._bar = ProgressBar(quiet=options.quiet)
        self._running: dict[int, Row] = {}

    def go(self, rows: Iterator[Row]) -> Counts:
        """Runs the rows that are not done yet."""
        options, counts = self._options, self._counts
        client = options.question.tools.client()
        with turn_recorder(client.pool.loaded, enabled=options.log) as recorder, client:

            def record(request: Request) -> TurnRecorder:
                recorder.new_conversation()
                return recorder.recorder(request, client.pool.routes.named(request.model))

            hook: Callable[[Request], TurnRecorder] | None = record if options.log else None
            results = client.batch(
                self._requests(rows),
                concurrent=options.concurrent,
                ordered=options.ordered,
                retry=RetryPolicy(retries=options.retries),
                recorder=hook,
            )
            try:
                for result in results:
                    self._take(result)
            except KeyboardInterrupt:
                self._bar.end(counts)
                print_error("stopped; run the same command again to continue")
                raise
        counts.fraction = 1.0
        self._bar.end(counts)
        return counts

    def _requests(self, rows: Iterator[Row]) -> Iterator[Request | StreamglotError]:
        """Yields the requests. It runs on the client's thread and reads the file no faster than rows are answered."""
        done, index = self._output.done, 0
        for row in rows:
            if done.has(row.number):
                if not done.same(row.number, self._plan.identity(row)):
                    raise ConfigError(
                        f"row {row.number} differs from the one in {shown(self._output.path)}: the input has changed since; "
                        "name another file with -o"
                    )
                self._counts.before += 1
                continue
            self._running[index] = row
            index += 1
            yield planned(self._plan, row)

    def _take(self, result: BatchResult) -> None:
        counts, usage = self._counts, result.response.usage
        row = self._running.pop(result.index)
        if result.error is not None and result.error.code == ConfigError.code:
            raise ConfigError(result.error.message)  # the fault is not in the row: every row would fail the same way
        self._output.write(self._plan.line(row, result))
        if result.error is None:
            counts.done += 1
        else:
            counts.failed += 1
        counts.retried += max(0, result.attempts - 1)
        counts.input_tokens += usage.input_tokens or 0
        counts.output_tokens += usage.output_tokens or 0
        cost = result.cost
        if cost is not None:
            counts.cost = (counts.cost or 0.0) + cost
        counts.fraction = min(self._rows.fraction(), 0.999)
        self._bar.update(counts)
