"""The UI message stream (version 1) of the Vercel AI SDK. Only clients use it."""

from __future__ import annotations

from typing import Any

from ...events import StreamError
from ...messages import Request
from ..interface import Dialect, FindAnswers
from ..writer import Writer


class VercelUiDialect(Dialect):
    name = "vercel_ui"
    title = "Vercel AI SDK UI message stream"

    def writer(self, **options: Any) -> Writer:
        from .writer import VercelUiWriter

        return VercelUiWriter(**options)

    def parse_request(self, body: dict[str, Any], **options: Any) -> Request:
        from .request import parse

        return parse(body, **options)

    def error_body(self, error: StreamError) -> dict[str, Any]:
        from .wire import error_body

        return error_body(error)

    @property
    def approval_answers(self) -> FindAnswers | None:
        from .request import approval_answers

        return approval_answers


VERCEL_UI = VercelUiDialect()
