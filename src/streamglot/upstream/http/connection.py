"""One HTTP/1.1 connection to an upstream: it sends a request and reads a response, with no more features than a proxy needs.

A general client spends more CPU on a request than the rest of the gateway. Here the bytes of a read go through the parser
directly into the response that waits for them.

Theory of limits: the parser passes body bytes on at once, where backpressure bounds them. Everything else that it may accumulate
(status line, headers, trailers, half a line) or skip (chunk extensions) arrives without body bytes, so one counter of the bytes
since the last body byte bounds all of it. A second counter bounds the whole response on the wire. Times are bounded by the
deadlines of the exchange (first byte, idle, total) and by ``DRAIN_SECONDS`` after the end of the stream.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import httptools

from ...errors import UpstreamError, UpstreamProtocolError, UpstreamTruncated
from ...limits import MAX_RESPONSE_BYTES
from . import UpstreamResponse
from .writes import Writes

READ_BYTES: Final = 2**16
"""Bytes buffered for one stream."""
FULL_BYTES: Final = 2 * READ_BYTES
"""Bytes of an answer that wait for their reader. With more, the connection is not read: a slow client slows the upstream down."""
HEAD_BYTES: Final = 2**17
"""Bytes of a response without a body byte between them: status line and headers, chunk extensions, trailers. Policies and
cookies are long, but all headers together are shorter than this."""
WIRE_BYTES: Final = 4 * MAX_RESPONSE_BYTES
"""Bytes of one response on the wire: a body of the maximum size in chunks of two bytes."""
DRAIN_SECONDS: Final = 1.0
"""How long to wait for the end of a completed answer, in seconds, so that its connection can be reused."""


class UpstreamConnection(asyncio.Protocol):
    """A connection. ``idle`` is called with it when its response is complete and it can take another request, ``lost`` when it
    is closed."""

    def __init__(
        self, idle: Callable[[UpstreamConnection], None], lost: Callable[[UpstreamConnection], None], writes: Writes | None = None
    ) -> None:
        self.since = 0.0
        """When the connection became idle; the pool uses it."""
        self._idle = idle
        self._lost = lost
        self._writes = writes or Writes()
        self._transport: asyncio.Transport | None = None
        self._answer: PlainResponse | None = None
        self._headers: dict[str, str] = {}
        self._bytes = 0
        self._bytes_without_body = 0
        self._paused = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # faults that browsers and other clients tolerate
            lenient_headers=True,
            lenient_optional_lf_after_cr=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )

    # --- called by the pool

    async def ask(self, head: bytes, body: bytes) -> UpstreamResponse:
        """Sends the request and waits for the headers of the response."""
        assert self._transport is not None
        self._answer = answer = PlainResponse(self)
        self._headers = {}
        self._bytes = self._bytes_without_body = 0
        if len(body) < READ_BYTES:
            self._writes.add(self._send, head + body)
        else:
            self._transport.writelines((head, body))
        try:
            while not answer.status:
                await answer.more()
        except BaseException:
            answer.close()  # not the connection: if the response is complete, it may belong to another request already
            raise
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        return answer if encoding == "identity" else DecompressedResponse(answer, encoding)

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def has_received(self) -> bool:
        """Whether a byte arrived since the last request was sent."""
        return self._bytes > 0

    def abort(self) -> None:
        """Closes the connection at once."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    # --- called by the response, whose readers cause the backpressure

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # --- called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # unsolicited bytes could be taken for the response to the next request
            self.abort()
            return
        self._bytes += len(data)
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP: {error}")
            return
        if self._bytes_without_body > HEAD_BYTES:
            what = "headers of the answer" if not answer.status else "trailers or chunk extensions of the answer"
            self._fail(f"the {what} are longer than {HEAD_BYTES} bytes")
            return
        if self._bytes > WIRE_BYTES:
            self._fail(f"the answer is longer than {WIRE_BYTES} bytes on the wire")
            return
        answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.disconnect(exc)
        self._lost(self)

    def _fail(self, why: str) -> None:
        answer = self._answer
        self.abort()
        if answer is not None:
            answer.fail(UpstreamProtocolError(why, retryable=True) if not answer.status else UpstreamTruncated(why))

    # --- called by the parser

    def on_message_begin(self) -> None:
        if self._answer is None:  # a second response to one request
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is None or self._answer.status:  # trailers are ignored
            return
        known = name.lower().decode("latin-1")
        if known not in self._headers:
            self._headers[known] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        status = self._parser.get_status_code()
        if status < 100:
            self._fail(f"the answer is not HTTP: its status is {status}")
        elif self._answer is not None and status >= 200:
            self._answer.begin(status, headers)

    def on_body(self, piece: bytes) -> None:
        self._bytes_without_body = 0
        if self._answer is not None:
            self._answer.put(piece)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None or not answer.status:  # interim responses such as "100 Continue" precede the response
            return
        self._answer = None
        self.resume()
        assert self._transport is not None
        if self._parser.should_keep_alive() and self.alive() and not self._transport.get_write_buffer_size():
            self._idle(self)
        else:
            self._transport.close()
        answer.complete()


class PlainResponse:
    """The response of a connection. ``status`` is 0 until the headers have arrived."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._connection: UpstreamConnection | None = connection
        self._pieces: list[bytes] = []
        self._held = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # --- called by the reader

    async def more(self) -> None:
        """Waits for the next bytes."""
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def read(self) -> bytes:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._connection is None:
                return b""
            waiter = self._waiter = asyncio.get_running_loop().create_future()  # as ``more``; this runs for every chunk
            try:
                await waiter
            finally:
                self._waiter = None
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        was_full, self._held = self._held > FULL_BYTES, 0
        if was_full and self._connection is not None:
            self._connection.resume()
        return data

    async def drain(self) -> None:
        if self._connection is None:
            return
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while await self.read():
                    pass
        except (UpstreamError, TimeoutError):
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # --- called by the connection

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > FULL_BYTES and self._connection is not None:
            self._connection.pause()

    def complete(self) -> None:
        self._connection = None
        self.wake()

    def disconnect(self, error: Exception | None) -> None:
        """Handles the loss of the connection. It is the end of the body only if nothing else marks the end."""
        self._connection = None
        reason = f": {type(error).__name__}: {error}" if error else ""
        if not self.status:
            self._error = UpstreamTruncated(f"the connection was closed before an answer came{reason}")
        elif error or "content-length" in self.headers or "transfer-encoding" in self.headers:
            self._error = UpstreamTruncated(f"the connection broke{reason or ': it was closed inside the answer'}")
        self.wake()

    def fail(self, error: UpstreamError) -> None:
        self._connection = None
        self._error = error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class DecompressedResponse:
    """A response that arrived compressed without having been requested so."""

    def __init__(self, answer: PlainResponse, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            answer.close()
            raise UpstreamProtocolError(f"the answer has the content encoding {encoding!r}, which was not requested")
        self.status = answer.status
        self.headers = answer.headers
        self._answer = answer
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self.drain = answer.drain
        self.close = answer.close

    async def read(self) -> bytes:
        """The next bytes, limited in size however well they were compressed. Bytes after the compressed data are not read,
        because they would accumulate in the decompressor without a limit."""
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or await self._answer.read()
            if not packed:
                raise UpstreamTruncated("the compressed answer ends too early")
            try:
                data = self._inflate.decompress(packed, READ_BYTES)
            except zlib.error as error:
                raise UpstreamTruncated(f"the compressed answer is broken: {error}") from None
            if data:
                return data
        return b""
