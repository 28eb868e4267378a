"""streamglot: every LLM stream, one language.

read(chunks, source)              the bytes of an upstream as events
write(events, target)             events as the bytes of a client
translate(chunks, source, target) from one dialect to another, live
prepare(request, target)          a request for an upstream: url, headers, body
collect(events)                   the complete answer
messages_of(answer)               an answer as history for the next request
Client()                          sends requests to upstreams: ``async with`` or ``with``
run_in_thread()                   the same for an event loop that must not wait
@tool                             makes a tool of a typed function, for ``Client(tools=[…])``

``read``, ``write`` and ``translate`` take plain and asynchronous iterables. The same as boxes, for programs with loops of their own:
``reader``, ``writer``, ``translator``, ``inband``, ``PerChoice``, ``Collect``. What one box gives, the next one takes.

``Client`` and ``run_in_thread`` need the extra ``client``; everything else needs no package but msgspec. docs/library.md is the guide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .dialects import DIALECTS, Dialect, dialect
from .dialects.common.reader import Reader
from .dialects.common.writer import Writer
from .dialects.interface import UpstreamEndpoint
from .dialects.openai_chat.accumulate import accumulate_delta
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
from .inband import Format, InBand, inband, parse_text
from .limits import Limits
from .messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    OutputFormat,
    Reasoning,
    ReasoningPart,
    RefusalPart,
    Request,
    Response,
    ResponseChoice,
    Step,
    TextPart,
    TokenCounts,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from .stages import ChoiceSnapshot, Collect, PerChoice, Snapshot, collect, messages_of, replay

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import JsonStream as JsonStream
    from .client import PlainClient as PlainClient
    from .client import PlainStream as PlainStream
    from .client import Running as Running
    from .client import Stream as Stream
    from .client import run_in_thread as run_in_thread
    from .iterators import AsyncByteStream as AsyncByteStream
    from .iterators import AsyncEventStream as AsyncEventStream
    from .iterators import ByteStream as ByteStream
    from .iterators import EventStream as EventStream
    from .policies import Policy as Policy
    from .policies import apply_policies as apply_policies
    from .prepared import Prepared as Prepared
    from .prepared import prepare as prepare
    from .streams import Translator as Translator
    from .streams import read as read
    from .streams import reader as reader
    from .streams import translate as translate
    from .streams import translator as translator
    from .streams import write as write
    from .streams import writer as writer
    from .tools import ToolError as ToolError
    from .tools import ToolOutput as ToolOutput
    from .tools import tool
    from .upstream import Upstream as Upstream

__version__ = "0.1.0"


_LATER = {
    "Client": "client",
    "JsonStream": "client",
    "PlainClient": "client",
    "PlainStream": "client",
    **dict.fromkeys(("AsyncByteStream", "AsyncEventStream", "ByteStream", "EventStream"), "iterators"),
    "Translator": "streams",
    **dict.fromkeys(("read", "reader", "translate", "translator", "write", "writer"), "streams"),
    **dict.fromkeys(("Prepared", "prepare"), "prepared"),
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


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
        return found
    except ModuleNotFoundError as error:
        if error.name not in _CLIENT_NEEDS:
            raise
        message = f"streamglot.{name} needs {error.name}, which is not installed: pip install 'streamglot[client]'"
        raise ImportError(message, name=error.name) from None


__all__ = [
    "DIALECTS",
    "AsyncByteStream",
    "AsyncEventStream",
    "Built",
    "ByteStream",
    "Choice",
    "ChoiceSnapshot",
    "Citation",
    "Client",
    "Collect",
    "ConfigError",
    "Dialect",
    "Echo",
    "Event",
    "EventStream",
    "Extra",
    "Format",
    "GrammarError",
    "InBand",
    "JsonStream",
    "KeepAlive",
    "LimitExceeded",
    "Limits",
    "Media",
    "MediaPart",
    "Message",
    "NativePart",
    "OutputFormat",
    "PerChoice",
    "PlainClient",
    "PlainStream",
    "Policy",
    "PolicyRefused",
    "Prepared",
    "Reader",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningPart",
    "ReasoningStart",
    "RefusalPart",
    "Request",
    "RequestError",
    "Response",
    "ResponseChoice",
    "Running",
    "Snapshot",
    "Step",
    "StepEnd",
    "Stream",
    "StreamEnd",
    "StreamError",
    "StreamStart",
    "StreamglotError",
    "TextDelta",
    "TextEnd",
    "TextPart",
    "TextStart",
    "TokenCounts",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallParseError",
    "ToolCallPart",
    "ToolCallStart",
    "ToolChoice",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "ToolResultPart",
    "ToolSpec",
    "Translator",
    "Unsupported",
    "Upstream",
    "UpstreamEndpoint",
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
    "prepare",
    "read",
    "reader",
    "replay",
    "run_in_thread",
    "tool",
    "translate",
    "translator",
    "write",
    "writer",
]
