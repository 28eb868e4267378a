"""Request parsing: bytes in, request heads and pieces of bodies out. No sockets and no clock here.

Theory of operation. llhttp (through httptools) reads the bytes and is strict: bare line feeds, folded headers, two lengths, a
length beside a transfer coding and broken chunks are errors. It keeps nothing, but httptools keeps the header that is being
read, so three counts limit the memory that a client can make this process use:

- the head: request line and header fields, in bytes and in number;
- the framing of a chunked body: sizes, extensions and trailers, less what ordinary chunks need. Trailers are read and dropped;
- empty lines between two requests count as a part of the next head.

``Upgrade`` is the one case that llhttp leaves to its user: it stops after the head and treats the rest as another protocol. RFC
9110 section 7.8 lets a server ignore the field, and it is not known yet whether the endpoint will accept it. The head is
therefore parsed a second time without the field, so that the body belongs to its request and the next request begins where it
should. An endpoint that accepts a WebSocket takes the connection over (``websocket``); a client sends no frame before that.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import httptools

HEAD_BYTES: Final = 65_536
"""Bytes of a request line and its header fields: ten times what known clients send."""
HEADERS: Final = 200
"""Header fields of a request, and trailer fields: four times what known clients send."""
FRAMING_BYTES: Final = 16_384
"""Bytes of chunk extensions and trailers of one body. No known client sends any; some proxies add a signature."""
CHUNK_BYTES: Final = 24
"""Bytes that the framing of one chunk may take without being counted: 16 digits of its size and two line ends, rounded up."""

VERSIONS: Final = ("1.1", "1.0")
_HOP_BY_HOP: Final = (b"upgrade", b"http2-settings")
"""Fields that only matter to a server that upgrades the protocol (RFC 7540 section 3.2)."""


class ProtocolError(Exception):
    """The client violated a rule of HTTP or a limit of the server. The connection cannot be used for another request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class RequestHead(NamedTuple):
    """A request line and its header fields."""

    method: str
    target: bytes
    version: str
    fields: dict[str, str]
    """The last value of each field, by its lower-case name."""
    raw_headers: list[tuple[bytes, bytes]]
    """The fields as received, in order and with repetitions."""
    keep_alive: bool
    upgrade: bytes
    """The protocol that the client offered to upgrade to; empty if none."""


class RequestReceiver(Protocol):
    """The methods that a parser calls, in this order, for each request."""

    def request_started(self, head: RequestHead) -> None: ...
    def body_received(self, data: bytes) -> None: ...
    def request_ended(self) -> None: ...


class RequestParser:
    """Feeds llhttp and checks the limits. ``feed`` raises a ProtocolError at most once; the parser cannot be used after that."""

    __slots__ = (
        "_body_bytes",
        "_chunked",
        "_chunks",
        "_excess",
        "_failure",
        "_feeding",
        "_headers",
        "_in_head",
        "_offered",
        "_parser",
        "_receiver",
        "_target",
        "_trailers",
        "_unread",
        "_upgrading",
    )

    def __init__(self, receiver: RequestReceiver) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._in_head = True
        self._unread = 0
        """Bytes since the end of the last request, while the next head is not complete."""
        self._upgrading = False
        self._offered = b""
        self._chunked = False
        self._failure: Exception | None = None
        """The exception of a callback. httptools only gives it as the context of its own error, which differs inside a
        handler."""
        self._feeding = self._chunks = self._body_bytes = self._excess = self._trailers = 0

    @property
    def idle(self) -> bool:
        """Whether no byte of the next request has come."""
        return self._in_head and not self._unread

    def feed(self, data: bytes) -> None:
        self._feeding = size = len(data)
        if self._in_head:
            self._unread += size
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            raise (self._failure or error) from None
        except httptools.HttpParserError as error:
            raise ProtocolError(
                400, "not_http", f"this is not a valid HTTP/1.1 request ({error}); check the client's address and proxy"
            ) from None
        if rest is not None:
            self._ignore_upgrade(rest)
        elif self._in_head:
            if self._unread > HEAD_BYTES:
                raise _head_too_large()
        elif self._chunked:
            self._count_framing(size)

    def close(self) -> None:
        """Ends the parser.

        Parser, llhttp and receiver refer to each other; this breaks the cycle without a garbage collection.
        """
        del self._parser, self._receiver

    def _count_framing(self, size: int) -> None:
        """Adds the bytes of this read that were not content. Reads of pure content do not reduce the sum."""
        self._excess = max(0, self._excess + size - self._body_bytes - CHUNK_BYTES * self._chunks)
        self._body_bytes = self._chunks = 0
        if self._excess > FRAMING_BYTES:
            raise _framing_too_large()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parses the head again, without the upgrade that it offered."""
        self._upgrading = False
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._target, version)]
        offered = []
        for name, value in self._headers:
            if name.lower() == b"upgrade":
                offered.append(value.strip().lower())
            elif name.lower() == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                lines.append(b"connection: %b\r\n" % b", ".join(token for token in tokens if token.lower() not in _HOP_BY_HOP))
            elif name.lower() not in _HOP_BY_HOP:
                lines.append(b"%b: %b\r\n" % (name, value))
        self._offered = b", ".join(offered)
        self._parser = httptools.HttpRequestParser(self)
        self._unread = 0
        self.feed(b"".join([*lines, b"\r\n"]))
        if rest:
            self.feed(rest)

    # --- called by llhttp

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._in_head = True
        self._unread = self._unread or 1  # the exact number is not known, but some bytes of this read belong to it
        self._chunked = False
        self._trailers = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name, value))
        else:
            self._trailers += 1
            if self._trailers > HEADERS:
                self._failure = _framing_too_large()
                raise self._failure

    def on_headers_complete(self) -> None:
        try:
            self._complete_head()
        except Exception as error:
            self._failure = error
            raise

    def _complete_head(self) -> None:
        parser, headers = self._parser, self._headers
        if len(headers) > HEADERS or (self._unread > HEAD_BYTES and self._head_bytes() > HEAD_BYTES):
            raise _head_too_large()
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise ProtocolError(405, "no_proxy", "CONNECT is not served: this is not a proxy; send the request itself")
            self._upgrading = True
            return
        self._unread = 0
        self._in_head = False
        version = parser.get_http_version()
        fields = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self._check(version, fields)
        offered, self._offered = self._offered, b""
        self._receiver.request_started(
            RequestHead(
                parser.get_method().decode("ascii"),
                self._target,
                version,
                fields,
                headers,
                version == "1.1" and parser.should_keep_alive(),
                offered,
            )
        )

    def _head_bytes(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _check(self, version: str, fields: dict[str, str]) -> None:
        """Checks the rules of RFC 9112 that llhttp does not check."""
        if version not in VERSIONS:
            raise ProtocolError(505, "bad_version", f"HTTP/{version} is not supported; send HTTP/1.1")
        hosts, codings = int("host" in fields), int("transfer-encoding" in fields)
        if len(fields) < len(self._headers):
            names = [name.lower() for name, _ in self._headers]
            hosts, codings = names.count(b"host"), names.count(b"transfer-encoding")
        if hosts != 1 and (hosts or version == "1.1"):
            raise ProtocolError(400, "bad_host", f"a request must have one Host header, not {hosts}")
        if codings:
            if version != "1.1":
                raise ProtocolError(400, "bad_framing", "HTTP/1.0 has no Transfer-Encoding; send a Content-Length")
            if codings > 1 or fields["transfer-encoding"].strip().lower() != "chunked":
                raise ProtocolError(501, "bad_framing", "the only supported transfer coding is chunked")
            self._chunked = True
            self._body_bytes = self._chunks = 0
            self._excess = -self._feeding  # this read contains the head

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        try:
            self._receiver.body_received(data)
        except Exception as error:
            self._failure = error
            raise

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._in_head = True
        self._unread = 0
        try:
            self._receiver.request_ended()
        except Exception as error:
            self._failure = error
            raise


def _head_too_large() -> ProtocolError:
    message = f"the headers are more than {HEADERS} or larger than {HEAD_BYTES} bytes; send fewer of them"
    return ProtocolError(431, "headers_too_large", message)


def _framing_too_large() -> ProtocolError:
    message = f"the chunk extensions and trailers are more than {FRAMING_BYTES} bytes or {HEADERS} fields; send fewer of them"
    return ProtocolError(413, "framing_too_large", message)
