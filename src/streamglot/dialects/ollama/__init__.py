"""Ollama's API: /api/chat and /api/generate, one JSON object per line."""

from __future__ import annotations

from ..interface import Dialect, lazy


class OllamaDialect(Dialect):
    name = "ollama"
    conversation = ""  # an empty request loads the model
    title = "Ollama"
    request_path = "api/chat"
    model_list_path = "api/tags"
    plain_reasoning = True
    media_type = "application/x-ndjson"

    reader = lazy("read.OllamaReader")
    writer = lazy("write.OllamaWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")


OLLAMA = OllamaDialect()
