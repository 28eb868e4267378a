"""OpenAI's older text Completions API: a prompt in, a text out. Base models and old clients use it."""

from __future__ import annotations

from ..interface import Dialect, lazy


class CompletionsDialect(Dialect):
    name = "openai_completions"
    conversation = ""  # a prompt may be empty
    title = "OpenAI text completions"
    request_path = "completions"
    model_list_path = "models"

    reader = lazy("read.CompletionsReader")
    writer = lazy("write.CompletionsWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")


OPENAI_COMPLETIONS = CompletionsDialect()
