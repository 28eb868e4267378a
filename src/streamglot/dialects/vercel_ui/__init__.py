"""The UI message stream (version 1) of the Vercel AI SDK. Only clients use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Request
from ..interface import Dialect, FindAnswers
from ..writer import Writer


class VercelUiDialect(Dialect):
    name = "vercel_ui"
    title = "Vercel AI SDK UI message stream"

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import VercelUiWriter

        return VercelUiWriter

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


VERCEL_UI = VercelUiDialect()
