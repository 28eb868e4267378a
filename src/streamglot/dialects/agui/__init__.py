"""AG-UI 1.0, the protocol between agents and user interfaces. Only clients use it."""

from __future__ import annotations

from ..interface import Dialect, lazy


class AguiDialect(Dialect):
    name = "agui"
    title = "AG-UI 1.0"
    activity = True
    reasoning_summary = True

    writer = lazy("write.AguiWriter")
    request_parser = lazy("request.parse")
    error_body = lazy("wire.error_body")
    approval_answers = lazy("request.approval_answers")


AGUI = AguiDialect()
