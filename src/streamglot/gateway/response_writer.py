"""Writes the answer to the client, as a stream or as one body, and copies it to the store.

When the client has disconnected, or fetches its answer later, the rest goes only to the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from ..dialects import dialect
from ..dialects.common.writer import Writer
from ..events import KeepAlive, StreamError
from ..json_types import JsonObject
from ..stages.stage import ExchangeContext
from .admission import Admitted
from .auth.access import limits_told
from .http.call import HALF_CLOSED_SECONDS, Call, ClientDisconnected, DetachedCall
from .http.call import retry_after as retry_after_value
from .resumable import DIALECT, RESPONSE_ID, StreamRecorder
from .services import GatewayServices

if TYPE_CHECKING:
    from .recording import ServedTurnRecorder

LAST_WRITE_SECONDS: Final = 2.0
"""Seconds that the end of a stream may take to reach a client that has stopped reading."""


class ResponseWriter:
    """Writes one answer.

    ``busy`` counts the writes that wait for the client. ``left`` says that no client is connected any more. ``stop`` ends the
    exchange.
    """

    writer: Writer = None  # type: ignore[assignment]  # ``begin`` sets it, before anything is written
    recorder: ServedTurnRecorder | None = None
    context: ExchangeContext | None = None
    busy = 0
    left = False
    _stream: StreamRecorder | None = None

    def __init__(self, services: GatewayServices, admitted: Admitted, call: Call, stop: Callable[[], None]) -> None:
        self.call = call
        self._services = services
        self._admitted = admitted
        self._endpoint = admitted.endpoint
        self._record = admitted.record
        self.last_write = self._last_keep_alive = self._record.began
        self._stop = stop

    @property
    def streaming(self) -> bool:
        """Whether the stream has begun. An error is then its last event; before that, it is an HTTP status."""
        return self.call.started or self.left

    def begin(self) -> None:
        """Prepares to answer with a stream."""
        admitted, known = self._admitted, dialect(self._endpoint.dialect)
        request = admitted.request
        options = {**known.writer_options(request), **admitted.output, **self._endpoint.writer(request, admitted.body)}
        self.writer = known.writer(id=admitted.response_id, created=int(time.time()), abort=self._aborts, **options)
        if self.recorder is not None and self.recorder.options.keep:
            self._open(self._stream_headers())  # the client may reconnect before the first event

    # --- a stream

    @property
    def _aborts(self) -> bool:
        return self._services.server.broken_stream == "abort"

    async def write(self, data: bytes, last: bool = False, broken: bool = False) -> None:
        """Writes a piece. ``broken``: the last one, and an error ends it."""
        call = self.call
        self.busy += 1
        try:
            if not call.started:
                headers = self._stream_headers()
                self._open(headers)
                await call.start(200, {**headers, **self._headers()})
            stream = self._stream
            if stream is not None and data:
                if stream.plain:
                    stream.pieces.append(data)  # this runs for every chunk, so it does as little as possible
                else:
                    data = stream.wrote(data)
            if self.recorder is not None and self.recorder.wrote is not None and data:
                self.recorder.wrote(data)
            if broken and self._aborts:
                if stream is not None:
                    stream.cut = True
                await call.break_off(data)
            elif last:
                await call.end(data)
            elif data:
                await call.write(data)
        finally:
            self.busy -= 1
            self.last_write = self._services.clock()

    def _open(self, headers: dict[str, str]) -> None:
        if self.recorder is not None:
            stored = {DIALECT: self._endpoint.dialect, RESPONSE_ID: self.writer.id}
            self._stream = self.recorder.open(self._stop, {**headers, **stored})

    def tick(self) -> None:
        """Lets the stream recorder flush. Called by the gateway's clock."""
        if self._stream is not None and self._stream.plain:
            self._stream.look()

    async def end(self, data: bytes, broken: bool = False) -> None:
        """Writes the end of the stream, and cuts the connection if the client does not read it in time."""
        try:
            with self._services.within(LAST_WRITE_SECONDS):
                await self.write(data + self.writer.close(), last=True, broken=broken)
        except (TimeoutError, asyncio.CancelledError):
            self.call.cut()

    def leave(self) -> None:
        """Detaches the client, which has disconnected or fetches its answer later. The stream continues for a client that
        resumes it."""
        self.left = True
        self.call = DetachedCall(self.call)

    async def answer_later(self) -> None:
        """Answers a background request with the id by which the client fetches the response."""
        await self.reply(200, msgspec.json.encode(self.writer.queued()))
        self.leave()

    def release(self) -> None:
        """Drops the reference to the exchange.

        Otherwise the two would hold each other until the garbage collector runs, and collecting them costs a tenth of the
        processor time of a request.
        """
        self._stop = _stopped

    def end_unsent(self) -> None:
        """Ends the recorded stream with an error after the client and the upstream disconnected, for a client that resumes it."""
        if self.call.started:
            error = StreamError("client_gone", "the client disconnected; send the request again", "client", True, 499)
            self._record_end(error)

    def _record_end(self, error: StreamError) -> None:
        """Ends the recorded stream with an error that only a client that resumes it reads."""
        if self._stream is not None:
            self._stream.wrote(self.writer.feed([error]) + self.writer.close())
            self._stream.cut = self._aborts

    def silent(self, now: float, seconds: float) -> bool:
        """Whether nothing was written for this long, so that a keep-alive is due. It also shows whether a client that sends no
        more is still there."""
        if self.call.half_closed and self.call.started:
            seconds = min(seconds, HALF_CLOSED_SECONDS)
        quiet = not self.busy and not self.left and self.writer is not None
        return quiet and now - max(self.last_write, self._last_keep_alive) >= seconds

    async def keep_alive(self) -> None:
        """Writes a keep-alive. Encoding and writing happen in one step, so that no event comes between them."""
        if self.call.ended or self.busy:
            return
        data = self.writer.feed([KeepAlive()])
        if data:
            previous_write = self.last_write
            with suppress(ClientDisconnected):  # the exchange notices it itself
                await self.write(data)
            self._last_keep_alive, self.last_write = self.last_write, max(previous_write, self._record.last_event)

    # --- one whole answer

    async def reply(self, status: int, body: bytes, **headers: str) -> None:
        if self.recorder is not None and self.recorder.wrote is not None:
            self.recorder.wrote(body)
        self.busy += 1
        try:
            await self.call.reply(status, body, "application/json", {**self._headers(), **headers})
        finally:
            self.busy -= 1

    async def fail(self, error: StreamError, retry_after: float | None, partial: JsonObject | None = None) -> None:
        """Reports an error: as an HTTP status before the first byte, as the dialect's error event after it. ``partial``: the
        answer before it, to which a body with the status is added."""
        if self.call.ended:
            return
        if self.streaming and self.writer is not None:
            await self.end(self.writer.feed([error]), broken=True)
            return
        self._record_end(error)
        try:
            with self._services.within(LAST_WRITE_SECONDS):
                await self._refuse(error, retry_after, partial)
        except (TimeoutError, asyncio.CancelledError):
            self.call.cut()

    async def _refuse(self, error: StreamError, retry_after: float | None, partial: JsonObject | None = None) -> None:
        headers: dict[str, str] = {}
        if retry_after is not None:
            headers["retry-after"] = retry_after_value(retry_after)
        if self._record.attempts > 1 or not error.retryable:
            headers["x-should-retry"] = "false"  # the gateway retried already, or a retry cannot succeed
        if error.status == 408:
            headers["connection"] = "close"
        status = error.status if 400 <= error.status < 600 else 500
        body = {**(partial or {}), **dialect(self._endpoint.dialect).error_body(error)}
        await self.reply(status, msgspec.json.encode(body), **headers)

    # --- headers

    def _stream_headers(self) -> dict[str, str]:
        kind = {"content-type": self._endpoint.media_type, "cache-control": "no-cache", "x-accel-buffering": "no"}
        return {**kind, **self.writer.headers, **self._endpoint.headers}

    def _headers(self) -> dict[str, str]:
        record = self._record
        headers = limits_told(self._admitted.caller, self._endpoint.dialect, record.limits, self._services.clock())
        headers["x-request-id"] = record.request_id
        if record.upstream:
            headers["x-streamglot-upstream"] = record.upstream
        if self._admitted.model:
            headers["x-streamglot-model"] = self._admitted.model
        if record.dropped:
            headers["x-streamglot-dropped"] = ", ".join(record.dropped)
        if self.context is not None and self.context.annotations.get("policies"):
            from ..policies.running.facts import header_value  # already loaded by the policies

            headers["x-streamglot-policy"] = header_value(self.context)
        if record.cache:
            headers["x-streamglot-cache"] = record.cache
        if self.recorder is not None:
            headers.update(self.recorder.headers)
        return headers


def _stopped() -> None:
    """Does nothing: the exchange is over."""
