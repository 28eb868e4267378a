"""streamglot: every LLM stream, one language.

reader(name)       bytes of a dialect in, events out
writer(name)       events in, bytes of a dialect out
translate(chunks)  from one dialect to another, live
collect(events)    the complete answer
Collect()          the same while the events arrive, with snapshots of the answer so far
messages_of(one)   an answer as history for the next request
apply_policies()   policies on the events of a stream
Client()           sends requests to upstreams: ``async with`` or ``with``
run_in_thread()    the same for an event loop that must not wait
@tool              makes a tool of a typed function, for ``Client(tools=[…])``

``Client`` and ``run_in_thread`` need the extra ``client`` and are imported by name; ``from streamglot import *`` imports only
what needs no package but msgspec. docs/library.md describes everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING

from .dialects import DIALECTS, Dialect, dialect
from .dialects.openai_chat.accumulate import accumulate_delta
from .dialects.reader import Reader
from .dialects.writer import Writer
from .errors import (
    ConfigError,
    GrammarError,
    LimitExceeded,
    PolicyRefused,
    RequestError,
    StreamglotError,
    ToolCallParseError,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamTruncated,
)
from .events import (
    Choice,
    Citation,
    Echo,
    Event,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from .grammar import check
from .inband import inband, parse_text
from .limits import Limits
from .messages import Message, Request, Response, ToolSpec
from .stages import Collect, PerChoice, Snapshot, collect, messages_of, replay

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import JsonStream as JsonStream
    from .client import Running as Running
    from .client import Stream as Stream
    from .client import run_in_thread as run_in_thread
    from .policies import Policy as Policy
    from .policies import apply_policies as apply_policies
    from .tools import ToolError as ToolError
    from .tools import ToolOutput as ToolOutput
    from .tools import tool as tool
    from .upstream import Upstream

__version__ = "0.1.0"


def reader(name: str, **options: object) -> Reader:
    """The box that reads this dialect: ``feed(bytes)`` and ``close()`` return events."""
    return dialect(name).reader(**options)


def writer(name: str, *, request: Request | None = None, **options: object) -> Writer:
    """The box that writes this dialect: ``feed(events)`` and ``close()`` return bytes. It writes what the vendor sends to a
    client that asked for nothing special. ``request`` is the client's: usage, model and old ``functions`` follow from it.
    ``options`` go before it."""
    known = dialect(name)
    return known.writer(**options if request is None else {**known.writer_options(request), **options})


def translate(
    chunks: Iterable[bytes],
    source: str,
    target: str,
    *,
    policies: Iterable[Policy] = (),
    request: Request | None = None,
    **options: object,
) -> Iterator[bytes]:
    """The bytes of one dialect in another, one piece out for each piece in. ``policies`` judge the events in between.
    ``request`` and ``options`` go to the writer."""
    read, write = reader(source), writer(target, request=request, **options)
    if policies:
        from .policies import run_policies

        reads = (events for chunk in chain(chunks, [None]) if (events := read.close() if chunk is None else read.feed(chunk)))
        for events in run_policies(reads, policies):
            yield write.feed(events)
        written = write.close()
    else:
        for chunk in chunks:
            written = write.feed(read.feed(chunk))
            if written:
                yield written
        written = write.feed(read.close()) + write.close()
    if written:
        yield written


_LATER = {
    "Client": "client",
    "JsonStream": "client",
    "Policy": "policies",
    "Running": "client",
    "Stream": "client",
    "ToolError": "tools",
    "ToolOutput": "tools",
    "Upstream": "upstream",
    "apply_policies": "policies",
    "run_in_thread": "client",
    "tool": "tools",
}
"""Names whose modules are imported on first use, because they need more than the core."""
_CLIENT_NEEDS = ("aiohttp", "httptools")


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in _CLIENT_NEEDS:
            raise
        message = f"streamglot.{name} needs {error.name}, which is not installed: pip install 'streamglot[client]'"
        raise ImportError(message, name=error.name) from None


__all__ = [
    "DIALECTS",
    "Choice",
    "Citation",
    "Collect",
    "ConfigError",
    "Dialect",
    "Echo",
    "Event",
    "Extra",
    "GrammarError",
    "JsonStream",
    "KeepAlive",
    "LimitExceeded",
    "Limits",
    "Media",
    "Message",
    "PerChoice",
    "Policy",
    "PolicyRefused",
    "Reader",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningStart",
    "Request",
    "RequestError",
    "Response",
    "Snapshot",
    "StepEnd",
    "StreamEnd",
    "StreamError",
    "StreamStart",
    "StreamglotError",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallParseError",
    "ToolCallStart",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Unsupported",
    "Upstream",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamRefused",
    "UpstreamTimeout",
    "UpstreamTruncated",
    "Usage",
    "Writer",
    "accumulate_delta",
    "apply_policies",
    "check",
    "collect",
    "dialect",
    "inband",
    "messages_of",
    "parse_text",
    "reader",
    "replay",
    "tool",
    "translate",
    "writer",
]
