"""The wire of a small language model server: a JSON object a line, in both directions.

{"id": "a1", "say": "Hel"}
{"say": "lo"}
{"tool": "weather", "call": "c1", "args": "{\\"city\\": "}
{"args": "\\"Oslo\\"}"}
{"stop": "tools", "tokens": [12, 9]}
"""

from __future__ import annotations

from streamglot.dialects import Dialect, lazy


class RelayDialect(Dialect):
    name = "relay"
    title = "Relay"
    media_type = "application/x-ndjson"
    conversation = "turns"
    request_path = "turns"
    client_path = "turns"

    reader = lazy("read.RelayReader")
    writer = lazy("write.RelayWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build_response")
    error_body = lazy("wire.error_body")


RELAY = RelayDialect()
