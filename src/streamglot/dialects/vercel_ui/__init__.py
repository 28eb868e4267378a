"""The UI message stream (version 1) of the Vercel AI SDK. Only clients use it."""

from __future__ import annotations

from ..interface import Dialect, lazy


class VercelUiDialect(Dialect):
    name = "vercel_ui"
    title = "Vercel AI SDK UI message stream"

    writer = lazy("write.VercelUiWriter")
    request_parser = lazy("request.parse")
    error_body = lazy("wire.error_body")
    approval_answers = lazy("request.approval_answers")


VERCEL_UI = VercelUiDialect()
