"""AG-UI 1.0, the protocol between agents and user interfaces. Only clients use it."""

from __future__ import annotations

from typing import Any

from ...events import StreamError
from ...messages import Request
from ..interface import Dialect, FindAnswers
from ..writer import Writer


class AguiDialect(Dialect):
    name = "agui"
    title = "AG-UI 1.0"
    activity = True

    def writer(self, **options: Any) -> Writer:
        from .writer import AguiWriter

        return AguiWriter(**options)

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


AGUI = AguiDialect()
