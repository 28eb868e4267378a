"""``streamglot batch run``: a model asked about every row of a file, without a server. A second run resumes the first.

A plan converts a row to a request, and the result to a line of the output.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from ...batch.items import CHAT_DIALECT, chat_body
from ...batch.runner import RetryPolicy
from ...client.batch import BatchResult
from ...dialects import dialect
from ...engine.turn_recorder import TurnRecorder
from ...errors import ConfigError, RequestError, StreamglotError, excerpt
from ...json_types import JsonObject, JsonValue
from ...messages import Request, Response
from ..answer import turn_recorder
from ..exit_status import FAILED, stoppable
from ..options import shown
from ..output.terminal import print_error
from ..question import Question
from .progress import Counts, ProgressBar
from .rows import OutputFile, Row, Rows, open_rows


class Template:
    """``{name}`` stands for the cell of that column, ``{{`` and ``}}`` for braces."""

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, str | None]] = []
        try:
            for literal, name, form, conversion in Formatter().parse(text):
                if form or conversion or name == "":
                    raise ConfigError(f"the prompt {text!r} has braces without a column name; write {{{{ and }}}} for braces")
                self._pieces.append((literal, name))
        except ValueError as error:
            raise ConfigError(f"the prompt {text!r} is not a valid template ({error}); write {{{{ and }}}} for braces") from None

    @property
    def names(self) -> list[str]:
        return [name for _, name in self._pieces if name is not None]

    def check(self, columns: Iterable[str]) -> None:
        """Refuses a template with columns that the file does not have."""
        known = list(columns)
        missing = [name for name in self.names if name not in known]
        if missing:
            raise ConfigError(f"the file has no column {missing[0]!r}; it has: {', '.join(known)}")

    def render(self, values: Mapping[str, JsonValue]) -> str:
        for name in self.names:
            if name not in values:
                raise RequestError(f"the row has no value for the column {name!r}")
        return "".join(literal + ("" if name is None else _cell_text(values[name])) for literal, name in self._pieces)


def _cell_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


DIALECTS: Final = {
    "/v1/chat/completions": "openai_chat",
    "/v1/completions": "openai_completions",
    "/v1/responses": "openai_responses",
    "/v1/messages": "anthropic",
}
"""The dialect of each address that a line of a batch file may name."""
CHAT_FIELDS: Final = (
    *("messages", "prompt", "system", "model", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed"),
    *("tools", "tool_choice", "response_format", "reasoning_effort"),
)
"""Columns that make the request where there is no template. All other columns are only copied to the output."""
INFO: Final = "batch"
"""The column of the output with usage and error."""
_LINE_ID: Final = re.compile(r"batch_req_(\d{1,12})")


class Plan(Protocol):
    """How a run turns rows into requests and results into lines."""

    def request(self, row: Row) -> Request:
        """The request of a row. Raises an error if the row is not valid."""

    def identity(self, row: Row) -> bytes:
        """Bytes that identify the content of a row, to detect an input that changed between two runs."""

    def line(self, row: Row, result: BatchResult) -> JsonObject:
        """The line of the output."""

    def read(self, line: JsonObject) -> tuple[int, bytes, bool] | None:
        """Parses a line of the output: see ``OutputFile``."""


class TablePlan:
    """Rows of a table. A template or the columns of a row make the request; the answer is added to the row."""

    def __init__(self, question: Question, template: Template | None, column: str, columns: Iterable[str] | None) -> None:
        self._question = question
        self._template = template
        self._column = column
        if columns is not None:
            self._check(list(columns))

    def _check(self, columns: list[str]) -> None:
        if self._template is not None:
            self._template.check(columns)
        elif not {"prompt", "messages"} & set(columns):
            raise ConfigError(
                f"the rows have no column `prompt`: give a template with --prompt, for example "
                f'--prompt "Summarise: {{{columns[0]}}}"'
            )
        for name in (self._column, INFO):
            if name in columns:
                raise ConfigError(_taken(name))

    def request(self, row: Row) -> Request:
        for name in (self._column, INFO):
            if name in row.values:
                raise RequestError(_taken(name))
        if self._template is not None:
            return self._question.request([self._question.message(self._template.render(row.values))])
        body, _ = chat_body({name: row.values[name] for name in CHAT_FIELDS if row.values.get(name) not in (None, "")})
        request = dialect(CHAT_DIALECT).parse_request({"model": self._question.model, **body})
        defaults = self._question.request([])
        if not any(message.role in ("system", "developer") for message in request.messages):
            request.messages = [*defaults.messages, *request.messages]
        for name in ("max_tokens", "temperature", "reasoning", "output"):
            if getattr(request, name) is None:
                setattr(request, name, getattr(defaults, name))
        return request

    def identity(self, row: Row) -> bytes:
        return msgspec.json.encode(row.values)

    def line(self, row: Row, result: BatchResult) -> JsonObject:
        usage, error = result.response.usage, result.error
        info: JsonObject = {"row": row.number, "error": None}
        if error is not None:
            info["error"] = {"code": error.code, "message": error.message, "status": error.status}
        if result.upstream:
            info |= {"model": result.model, "upstream": result.upstream, "cost": result.cost, "seconds": round(result.seconds, 3)}
            info |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "attempts": result.attempts}
        return {**row.values, self._column: None if error is not None else result.text, INFO: info}

    def read(self, line: JsonObject) -> tuple[int, bytes, bool] | None:
        info = line.pop(INFO, None)
        number = info.get("row") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(number, int) or number < 1 or line.pop(self._column, self) is self:
            return None
        return number, msgspec.json.encode(line), info.get("error") is None


def _taken(name: str) -> str:
    return (
        f"the output needs the column {name!r}, and the rows already have it; rename it, or choose another column with --column"
    )


class BatchLinesPlan:
    """Lines of the batch API: ``custom_id``, ``url`` and ``body``. The output has result lines of that API."""

    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, row: Row) -> Request:
        values = row.values
        if not isinstance(values.get("custom_id"), str) or not isinstance(values.get("body"), dict):
            raise RequestError(f"a line needs a custom_id (a string) and a body (an object), not {excerpt(values)}")
        url = values.get("url")
        if not isinstance(url, str) or url not in DIALECTS:
            raise RequestError(
                f"the url of a line must be one of {', '.join(DIALECTS)}, not {excerpt(url)}; "
                "a gateway accepts more: `streamglot batch submit`"
            )
        body = {"model": self._model, **values["body"]} if self._model else values["body"]
        return dialect(DIALECTS[url]).parse_request({**body, "stream": False} if "stream" in body else body)

    def identity(self, row: Row) -> bytes:
        return _id_bytes(row.values.get("custom_id"))

    def line(self, row: Row, result: BatchResult) -> JsonObject:
        id, error = f"batch_req_{row.number}", result.error
        line = {"id": id, "custom_id": row.values.get("custom_id"), "response": None, "error": None}
        name = DIALECTS.get(str(row.values.get("url")), CHAT_DIALECT)
        if error is not None and not result.attempts:
            return {**line, "error": {"code": error.code, "message": error.message}}
        if error is not None:
            body, status = dialect(name).error_body(error), error.status
        else:
            body, status = dialect(name).build_response(_complete(result.response, id, result.model)), 200
        return {**line, "response": {"status_code": status, "request_id": id, "body": body}}

    def read(self, line: JsonObject) -> tuple[int, bytes, bool] | None:
        found = _LINE_ID.fullmatch(str(line.get("id")))
        if found is None or not int(found[1]):
            return None
        response = line.get("response")
        succeeded = isinstance(response, dict) and response.get("status_code") == 200
        return int(found[1]), _id_bytes(line.get("custom_id")), succeeded


def _id_bytes(custom_id: object) -> bytes:
    return str(custom_id).encode("utf-8", "surrogatepass")


def _complete(response: Response, id: str, model: str) -> Response:
    return msgspec.structs.replace(
        response, id=response.id or id, model=response.model or model, created=response.created or int(time.time())
    )


def plan_for(rows: Rows, first: Row | None, question: Question, template: Template | None, column: str) -> Plan:
    """Chooses the plan for a file by its first row: lines of the batch API have a ``custom_id`` and a ``body``."""
    if template is None and rows.columns is None and first is not None and {"custom_id", "body"} <= set(first.values):
        return BatchLinesPlan(question.model)
    return TablePlan(question, template, column, rows.columns)


def planned(plan: Plan, row: Row) -> Request | StreamglotError:
    """The request of a row, or the error if the row is not valid."""
    if row.error:
        return RequestError(row.error, code="invalid_row")
    try:
        return plan.request(row)
    except StreamglotError as error:
        return error


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
        """The requests. It runs on the client's thread and reads the file no faster than rows are answered."""
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
