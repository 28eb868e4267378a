"""The exceptions of streamglot, as one tree.

    StreamglotError
    ├── ConfigError                the configuration
    ├── RequestError         400   the client's request
    │   └── Unsupported            ... the chosen upstream cannot do what it asks for
    ├── LimitExceeded        413   a named limit
    ├── PolicyRefused        403
    ├── GrammarError         500   a defect of streamglot: events out of order
    └── UpstreamError        502
        ├── UpstreamRefused        the upstream answered with an error status or an error object
        ├── UpstreamProtocolError  it broke the rules of its dialect
        │   └── ToolCallParseError ... the model's tool call cannot be parsed
        ├── UpstreamTruncated      the stream ended before its own end
        └── UpstreamTimeout  504

A message names the broken rule, an excerpt of the offending piece, and the next step. It never contains a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from .events import ErrorOrigin, StreamError
from .json_types import JsonObject

EXCERPT_CHARS = 200
"""Characters of an excerpt: it must show the fault and fit on a log line."""

BadCall = Literal["incomplete", "text", "error"]
"""What to do with a tool call that cannot be parsed: mark it as incomplete and end the stream with ``tool_call_parse_error``
(the default), treat it as text, or treat any markup that is not a call as an error."""


def excerpt(piece: object) -> str:
    """The offending piece for a message: its ``repr``, cut if it is long."""
    if isinstance(piece, (bytes, str)) and len(piece) > EXCERPT_CHARS:
        return f"{piece[:EXCERPT_CHARS]!r} … ({len(piece)} in all)"
    shown = repr(piece)
    return shown if len(shown) <= EXCERPT_CHARS else f"{shown[:EXCERPT_CHARS]} …"


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """The question that follows an unknown name in a message; nothing if no known name is like it."""
    from difflib import get_close_matches  # only for an error

    known = [*names]
    wanted = str(name).lower().replace("-", "_").replace(" ", "_")
    found = get_close_matches(wanted, known, 1, 0.6) or [each for each in known if wanted and wanted in each][:1]
    return f" (did you mean {found[0]!r}?)" if found else ""


FOREIGN_ERRORS: Final = (Exception, SystemExit)
"""What foreign code may raise: tools, policies, stages and modules that a configuration names. ``SystemExit`` in a task would end the
process."""


def foreign_exception(error: Exception | SystemExit) -> Exception:
    """The error as an exception that may be passed on: an attempt to end the process becomes a failure."""
    return error if isinstance(error, Exception) else RuntimeError(f"it tried to end the process with the status {error.code}")


class StreamglotError(Exception):
    """The base class of all exceptions of streamglot.

    ``has_context``: the message names the upstream, the next step and the request, and contains no secrets. It is a flag because
    the message itself may be an upstream's text.
    """

    status = 500
    code = "internal_error"
    origin: ErrorOrigin = "gateway"
    retryable = False
    has_context = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool | None = None,
        detail: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = type(self).code if code is None else code
        self.status = type(self).status if status is None else status
        self.retryable = type(self).retryable if retryable is None else retryable
        self.detail = detail

    def as_event(self) -> StreamError:
        """The same fault as the last event of a stream."""
        return StreamError(self.code, self.message, self.origin, self.retryable, self.status, self.detail)


class ConfigError(StreamglotError):
    code = "config_error"


class RequestError(StreamglotError):
    status = 400
    code = "invalid_request"
    origin: ErrorOrigin = "client"


class Unsupported(RequestError):
    code = "unsupported"


class LimitExceeded(StreamglotError):
    status = 413
    code = "limit_exceeded"


class PolicyRefused(StreamglotError):
    status = 403
    code = "policy_refused"
    origin: ErrorOrigin = "policy"


class GrammarError(StreamglotError):
    code = "grammar_error"


class UpstreamError(StreamglotError):
    status = 502
    code = "upstream_error"
    origin: ErrorOrigin = "upstream"
    retryable = True


class UpstreamRefused(UpstreamError):
    code = "upstream_refused"

    def __init__(self, message: str, *, retry_after: float | None = None, **more: Any) -> None:  # Any: those of the base class
        super().__init__(message, **more)
        self.retry_after = retry_after


class UpstreamProtocolError(UpstreamError):
    code = "upstream_protocol_error"
    retryable = False


class ToolCallParseError(UpstreamProtocolError):
    """A repeated request may help, so a client may retry."""

    code = "tool_call_parse_error"
    retryable = True


class UpstreamTruncated(UpstreamError):
    code = "upstream_truncated"


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "upstream_timeout"


_CLASSES: Final[tuple[type[StreamglotError], ...]] = (
    ConfigError,
    RequestError,
    Unsupported,
    LimitExceeded,
    PolicyRefused,
    GrammarError,
    UpstreamError,
    UpstreamRefused,
    UpstreamProtocolError,
    ToolCallParseError,
    UpstreamTruncated,
    UpstreamTimeout,
)
_OF_CODE: Final[dict[str, type[StreamglotError]]] = {
    "upstream_empty": UpstreamTruncated,
    **{kind.code: kind for kind in _CLASSES},
}
_OF_ORIGIN: Final[dict[ErrorOrigin, type[StreamglotError]]] = {
    "upstream": UpstreamRefused,
    "client": RequestError,
    "policy": PolicyRefused,
    "gateway": StreamglotError,
}
"""For errors with a code of their own, such as that of a provider."""


def error_of(event: StreamError) -> StreamglotError:
    """The exception that an error at the end of a stream stands for."""
    kind = LimitExceeded if event.code.startswith("limit_") else _OF_CODE.get(event.code) or _OF_ORIGIN[event.origin]
    error = kind(event.message, code=event.code, status=event.status, retryable=event.retryable, detail=event.detail)
    error.origin = event.origin
    return error
