"""Cohere's chat API, version 2."""

from __future__ import annotations

from ..interface import Dialect, lazy


class CohereDialect(Dialect):
    name = "cohere"
    title = "Cohere v2 chat"
    request_path = "v2/chat"
    model_list_path = "v1/models?page_size=1000"

    reader = lazy("read.CohereReader")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")


COHERE = CohereDialect()
