"""The runs of tools as activity: a snapshot when a tool starts, and patches for its arguments and for its end."""

from __future__ import annotations

from typing import Final

from ...json_types import JsonObject

KIND: Final = "TOOL_RUN"


def activity_events(extensions: JsonObject) -> list[JsonObject]:
    """The events for these entries of ``tool_call_chunks``."""
    events: list[JsonObject] = []
    for chunk in extensions.get("tool_call_chunks", ()):
        call_id = chunk["tool_call_id"]
        address = {"messageId": f"activity-{call_id}", "activityType": KIND}
        if chunk["type"] == "start":
            content = {"toolCallId": call_id, "toolName": chunk["tool_name"], "status": "running"}
            events.append({"type": "ACTIVITY_SNAPSHOT", **address, "content": content})
        elif chunk["type"] == "args":
            patch = [{"op": "add", "path": "/arguments", "value": chunk["delta"]}]
            events.append({"type": "ACTIVITY_DELTA", **address, "patch": patch})
        elif chunk["type"] == "result":
            status = "failed" if chunk.get("is_error") else "done"
            patch = [{"op": "replace", "path": "/status", "value": status}]
            events.append({"type": "ACTIVITY_DELTA", **address, "patch": patch})
    return events
