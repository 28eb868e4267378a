"""A client's connection: what the HTTP server lacks. Limits on headers and on the time they take, a clear refusal of what
is no HTTP, a word to the exchange in the moment in which the client hangs up, and a way to cut the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES: Final = 65_536
"""All headers of a request together: ten times what any client sends."""
HEADERS: Final = 200
"""Their number: four times what any client sends."""
HEADER_SECONDS: Final = 20.0
"""The time for them to come: a slow line needs one second."""
LINGER_SECONDS: Final = 1.0
"""After a refusal the rest of the input is thrown away for so long: a line that is cut at once takes the answer with it."""
DISCARD_BYTES: Final = 2**26
"""The rest of a body that was refused is read and thrown away up to here, so that the client comes to read the answer."""


class Connection(HttpToolsProtocol):
    header_seconds = HEADER_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._gone: Callable[[], None] | None = None
        self._size = 0
        self._in_headers = True
        self._discarded = 0
        self._refusal: tuple[int, str, str] | None = None
        self._due: asyncio.TimerHandle | None = self.loop.call_later(self.header_seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._headers_came()
        if self._gone is not None:
            self._gone()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._size += len(data)
        super().data_received(data)
        if self._in_headers and self._refusal is None:
            if self._size > HEADER_BYTES:
                self._refuse(*_TOO_LARGE)
            elif self._due is None and not self.transport.is_closing():
                self._due = self.loop.call_later(self.header_seconds, self._too_slow)

    # --- for the exchange

    def watch(self, gone: Callable[[], None] | None) -> None:
        """Whom to tell when the client hangs up. The line is read on for that, also where a large body stopped it."""
        self._gone = gone
        if gone is not None:
            self.flow.resume_reading()

    def cut(self) -> None:
        """Hangs up at once, whatever still waits to be sent."""
        self.transport.abort()

    # --- the parser's words

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self.scope["streamglot.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        size, self._size, self._in_headers = self._size, 0, False
        self._headers_came()
        headers = self.headers
        if len(headers) > HEADERS or (
            size > HEADER_BYTES and sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES
        ):
            self._refusal = _TOO_LARGE
            raise ValueError("headers")
        self.begin()

    def begin(self) -> None:
        """The headers are there and may be: to the application."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > DISCARD_BYTES:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._size = self._discarded = 0
        super().on_message_complete()

    # --- refusals

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        self._refuse(
            *(
                self._refusal
                or (400, "not_http", "this is no HTTP request that can be read; check the client's address and proxy")
            )
        )

    def _too_slow(self) -> None:
        self._due = None
        if self._size:
            self._refuse(408, "headers_too_slow", f"the headers did not come within {self.header_seconds:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """An answer without a request that could be answered. If one is being answered on this line, the line is cut."""
        self._refusal = (status, code, message)
        self._headers_came()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _headers_came(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


_TOO_LARGE: Final = (
    431,
    "headers_too_large",
    f"the headers are more than {HEADERS} or larger than {HEADER_BYTES} bytes; send fewer of them",
)


def connection_of(scope: Any) -> Connection | None:
    """The connection that a request came on, where the server is ours."""
    found: Connection | None = scope.get("streamglot.connection")
    return found
