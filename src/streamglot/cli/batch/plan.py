"""From a row to a request, and from its answer to a line of the output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from ...batch.requests import CHAT_DIALECT, chat_body
from ...client.batch import BatchResult
from ...dialects import dialect
from ...errors import ConfigError, RequestError, StreamglotError, excerpt
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
"""Columns of a row without a template that belong to its request. All others are only joined to the answer."""
INFO: Final = "batch"
"""The column of the output with what was used, and what failed."""
_LINE_ID: Final = re.compile(r"batch_req_(\d{1,12})")


class Plan(Protocol):
    """What a run does with its rows."""

    def request(self, row: Row) -> Request:
        """The request of a row. Raises what is wrong with the row."""

    def identity(self, row: Row) -> bytes:
        """What tells this row from another one at the same place, if the input was changed between two runs."""

    def line(self, row: Row, result: BatchResult) -> dict[str, Any]:
        """The line of the output."""

    def read(self, line: dict[str, Any]) -> tuple[int, bytes, bool] | None:
        """What a line of the output says: see ``OutputFile``."""


class TablePlan:
    """Rows of a table, with a template for the prompt or with columns that make a request. The answer is joined to the row."""

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
                f"the rows have no column `prompt`: say with --prompt what to ask of a row, for example "
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

    def line(self, row: Row, result: BatchResult) -> dict[str, Any]:
        usage, error = result.response.usage, result.error
        info: dict[str, Any] = {"row": row.number, "error": None}
        if error is not None:
            info["error"] = {"code": error.code, "message": error.message, "status": error.status}
        if result.upstream:
            info |= {"model": result.model, "upstream": result.upstream, "cost": result.cost, "seconds": round(result.seconds, 3)}
            info |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "attempts": result.attempts}
        return {**row.values, self._column: None if error is not None else result.text, INFO: info}

    def read(self, line: dict[str, Any]) -> tuple[int, bytes, bool] | None:
        info = line.pop(INFO, None)
        number = info.get("row") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(number, int) or number < 1 or line.pop(self._column, self) is self:
            return None
        return number, msgspec.json.encode(line), info.get("error") is None


def _taken(name: str) -> str:
    return f"the rows have a column {name!r} already, which the output needs; rename it, or name another one with --column"


class BatchLinesPlan:
    """Lines as the batch API takes them: ``custom_id``, ``url`` and ``body``. The output has the lines that the API gives."""

    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, row: Row) -> Request:
        values = row.values
        if not isinstance(values.get("custom_id"), str) or not isinstance(values.get("body"), dict):
            raise RequestError(f"a line has a custom_id, which is a text, and a body, which is an object, not {excerpt(values)}")
        url = values.get("url")
        if not isinstance(url, str) or url not in DIALECTS:
            raise RequestError(
                f"a line can be run here if its url is one of {', '.join(DIALECTS)}, and not {excerpt(url)}; "
                "a gateway takes more: `streamglot batch submit`"
            )
        body = {"model": self._model, **values["body"]} if self._model else values["body"]
        return dialect(DIALECTS[url]).parse_request({**body, "stream": False} if "stream" in body else body)

    def identity(self, row: Row) -> bytes:
        return _id_bytes(row.values.get("custom_id"))

    def line(self, row: Row, result: BatchResult) -> dict[str, Any]:
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

    def read(self, line: dict[str, Any]) -> tuple[int, bytes, bool] | None:
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
    """The plan for a file, by its first row: lines of the batch API are known by their ``custom_id`` and ``body``."""
    if template is None and rows.columns is None and first is not None and {"custom_id", "body"} <= set(first.values):
        return BatchLinesPlan(question.model)
    return TablePlan(question, template, column, rows.columns)


def planned(plan: Plan, row: Row) -> Request | StreamglotError:
    """The request of a row, or what is wrong with it."""
    if row.error:
        return RequestError(row.error, code="invalid_row")
    try:
        return plan.request(row)
    except StreamglotError as error:
        return error
