"""Tools that the client expects its provider to host, answered by a tool of ours: as parts and metadata of the provider's own."""

from __future__ import annotations

from typing import Final

import msgspec

from ...events import Echo, Event, Extra, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from ...json_types import JsonObject
from ..hosted_tools import HostedCall, sources_of
from ..own_tools import own_id
from .signature import DIALECT

_TOOL_TYPES: Final = {"googleSearch": "GOOGLE_SEARCH_WEB", "urlContext": "URL_CONTEXT", "fileSearch": "FILE_SEARCH"}
_SHOWN: Final = "toolConfig.includeServerSideToolInvocations"
"""The field of a request that asks for calls of the provider's tools as parts."""


def events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    call_id = own_id("", call.call_id)
    if call.name == "codeExecution":
        outcome = "OUTCOME_FAILED" if call.is_error else "OUTCOME_OK"
        code = {"id": call_id, "language": "PYTHON", "code": call.code}
        result = {"id": call_id, "outcome": outcome, "output": call.text}
        return _parts(call, call_id, {"executableCode": code}, {"codeExecutionResult": result})
    tool_type = _TOOL_TYPES.get(call.name)
    if tool_type is None:
        return None
    shown: list[Event] = []
    if call.options.get(_SHOWN):
        tool_call = {"id": call_id, "toolType": tool_type, "args": dict(call.arguments)}
        answer: JsonObject = {
            "id": call_id,
            "toolType": tool_type,
            "response": {"error" if call.is_error else "output": call.text},
        }
        shown = _parts(call, call_id, {"toolCall": tool_call}, {"toolResponse": answer})
    return [*shown, Extra(DIALECT, {"candidate": _metadata([*call.earlier, call])})]


def _parts(call: HostedCall, call_id: str, call_part: JsonObject, result: JsonObject) -> list[Event]:
    return [
        ToolCallStart(call_id, call.name, "server", Echo(DIALECT, call_part)),
        ToolCallDelta(msgspec.json.encode(call.arguments).decode()),
        ToolCallEnd(),
        ToolResult(call_id, call.text, call.is_error, Echo(DIALECT, result)),
    ]


def _metadata(calls: list[HostedCall]) -> JsonObject:
    """The searches and pages of all calls so far: the last metadata of an answer counts."""
    metadata: JsonObject = {}
    searches = [call for call in calls if call.name in ("googleSearch", "fileSearch")]
    if searches:
        sources = [source for call in searches if not call.is_error for source in sources_of(call.text)]
        chunks = [{"web": {"uri": source.url, "title": source.title}} for source in sources]
        queries = [call.query for call in searches if call.name == "googleSearch"]
        metadata["groundingMetadata"] = {"webSearchQueries": queries, "groundingChunks": chunks}
    read = [call for call in calls if call.name == "urlContext"]
    if read:
        status = ("URL_RETRIEVAL_STATUS_SUCCESS", "URL_RETRIEVAL_STATUS_ERROR")
        entries = [{"retrievedUrl": call.query, "urlRetrievalStatus": status[call.is_error]} for call in read]
        metadata["urlContextMetadata"] = {"urlMetadata": entries}
    return metadata
