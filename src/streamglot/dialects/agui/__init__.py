"""AG-UI 1.0, the protocol between agents and user interfaces. Only clients use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Request
from ..interface import Dialect, FindAnswers
from ..writer import Writer


class AguiDialect(Dialect):
    name = "agui"
    title = "AG-UI 1.0"
    activity = True
    reasoning_summary = True

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import AguiWriter

        return AguiWriter

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)

    @property
    def approval_answers(self) -> FindAnswers | None:
        from .request import approval_answers

        return approval_answers


AGUI = AguiDialect()
