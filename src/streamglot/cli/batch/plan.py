"""Converts a row to a request, and the result to a line of the output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from ...batch.requests import CHAT_DIALECT, chat_body
from ...client.batch import BatchResult
from ...dialects import dialect
from ...errors import ConfigError, RequestError, StreamglotError, excerpt
from ...json_types import JsonObject
from ...messages import Request, Response
from ..question import Question
from .rows import Row, Rows
from .template import Template

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
        """Returns the request of a row. Raises an error if the row is not valid."""

    def identity(self, row: Row) -> bytes:
        """Returns bytes that identify the content of a row, to detect an input that changed between two runs."""

    def line(self, row: Row, result: BatchResult) -> JsonObject:
        """Returns the line of the output."""

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
    """Returns the request of a row, or the error if the row is not valid."""
    if row.error:
        return RequestError(row.error, code="invalid_row")
    try:
        return plan.request(row)
    except StreamglotError as error:
        return error
