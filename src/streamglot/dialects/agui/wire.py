"""The wire format: the names and forms of AG-UI events, and errors."""

from __future__ import annotations

from typing import Final

from ...events import Citation, Media, StreamError, Usage
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.server_tools import ApprovalPrompt
from ..common.tables import camel_case_usage

DIALECT: Final = "agui"
PROTOCOL_VERSION: Final = "1.0"

MAX_DELTA_CHARS: Final = 2**20
"""Maximum characters of a delta; a longer piece is sent as several. The client refuses events of more than 10 Mi characters, and
a control character takes six of them."""
MAX_EVENT_BYTES: Final = 9 * 2**20
"""Maximum bytes of an event that cannot be split. A longer one is not sent, for the same reason."""

_Shape = dict[str, type | tuple[type, ...]]

OWN_EVENTS: Final[dict[str, _Shape]] = {
    "ACTIVITY_SNAPSHOT": {"messageId": str, "activityType": str, "content": dict},
    "ACTIVITY_DELTA": {"messageId": str, "activityType": str, "patch": list},
    "STATE_SNAPSHOT": {"snapshot": (dict, list, str, int, float)},
    "STATE_DELTA": {"delta": list},
    "MESSAGES_SNAPSHOT": {"messages": list},
    "CUSTOM": {"name": str, "value": (dict, list, str, int, float)},
    "RAW": {"event": (dict, list, str, int, float)},
}
"""The whole events that an Extra of this dialect may contain, with their required fields. The client rejects the whole run for
one field that is missing or null."""

_OPTIONAL: Final[dict[str, _Shape]] = {
    "ACTIVITY_SNAPSHOT": {"replace": bool},
    "RAW": {"source": str},
}
_BASE: Final[_Shape] = {"timestamp": int, "metadata": dict}


def own_event(data: JsonObject) -> JsonObject | None:
    """The event in an Extra, with the protocol's fields only; None if it is not a complete event."""
    kind = data.get("type")
    required = OWN_EVENTS.get(kind) if isinstance(kind, str) else None
    if kind is None or required is None or not all(isinstance(data.get(name), shape) for name, shape in required.items()):
        return None
    optional = {**_OPTIONAL.get(kind, {}), **_BASE}
    return {
        "type": kind,
        **{name: data[name] for name in required},
        **{name: data[name] for name, shape in optional.items() if isinstance(data.get(name), shape)},
    }


_INTERRUPT: Final[_Shape] = {
    "message": str,
    "toolCallId": str,
    "responseSchema": dict,
    "expiresAt": str,
    "metadata": dict,
}


def own_interrupt(data: object) -> JsonObject | None:
    """One entry of ``interrupts`` in an Extra, with the protocol's fields only."""
    if not isinstance(data, dict) or not isinstance(data.get("id"), str) or not isinstance(data.get("reason"), str):
        return None
    known = {name: data[name] for name, shape in _INTERRUPT.items() if isinstance(data.get(name), shape)}
    return {"id": data["id"], "reason": data["reason"], **known}


def write_approval(approval: ApprovalPrompt, call_id: str | None) -> JsonObject:
    """The interrupt that asks about a call. ``call_id`` is None for a call that the client has not seen: the metadata has
    it."""
    fields = {
        "id": approval.id,
        "reason": "tool_call",
        "message": approval.message or None,
        "toolCallId": call_id,
        "responseSchema": approval.schema,
        "metadata": {"toolName": approval.name, "arguments": approval.arguments} if call_id is None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def write_usage(usage: Usage, model: str) -> JsonObject:
    return {**({"model": model} if model else {}), **camel_case_usage(usage)}


def write_citation(event: Citation, message_id: str) -> JsonObject:
    fields = {
        "messageId": message_id or None,
        "url": event.url or None,
        "title": event.title or None,
        "citedText": event.cited_text or None,
        "startIndex": event.start,
        "endIndex": event.end,
    }
    return {name: value for name, value in fields.items() if value is not None}


def write_media(event: Media, message_id: str) -> JsonObject:
    fields = {
        "messageId": message_id,
        "id": event.id,
        "mimeType": event.mime,
        "data": event.data,
        "url": event.url,
        "transcript": event.transcript,
    }
    return {name: value for name, value in fields.items() if value}


# --- errors


def error_code(error: StreamError) -> str:
    """The kind of fault as one word per status."""
    return upstream_errors.KIND_OF.get(error.status, "server" if error.status >= 500 else "invalid_request")


def error_body(error: StreamError) -> JsonObject:
    return {"error": {"message": error.message, "code": error_code(error), "reason": error.code}}
