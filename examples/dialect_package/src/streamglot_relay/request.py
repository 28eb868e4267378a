"""Requests: the body of a client, and the body for an upstream.

{"model": "m", "live": true, "limit": 100, "turns": [{"by": "user", "say": "Hello"}], "tools": [{"name": "weather", "schema": {}}]}
"""

from __future__ import annotations

from typing import Any

from streamglot import Built, Message, Request, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from streamglot.dialects import Fields, give, give_extra, take
from streamglot.messages import Part

from .wire import DIALECT

PARAMETERS = {"limit": "max_tokens", "heat": "temperature"}
"""Our names of the parameters that dialects share. ``give`` reports those that this dialect lacks."""
ROLES = {"user": "user", "model": "assistant", "rules": "system"}
SPEAKERS = {"user": "user", "assistant": "model", "system": "rules", "developer": "rules"}


def parse(body: dict[str, Any]) -> Request:
    fields = Fields(body)
    request = Request(fields.need("model", str), [_parse_turn(turn) for turn in fields.objects("turns")], dialect=DIALECT)
    request.stream = fields.take("live", bool, False)
    request.tools = [
        ToolSpec(tool.need("name", str), tool.take("about", str, ""), tool.take("schema", dict))
        for tool in fields.objects("tools")
    ]
    take(fields, PARAMETERS, request)
    request.extra = fields.rest
    return request


def _parse_turn(turn: Fields) -> Message:
    by, say = turn.need("by", str), turn.take("say", str, "")
    if by == "tool":
        return Message("tool", [ToolResultPart(turn.need("call", str), say)])
    if by not in ROLES:
        raise turn.wrong("by", "user, model, rules or tool", by)
    parts: list[Part] = [TextPart(say)] if say else []
    parts += [
        ToolCallPart(call.need("call", str), call.need("tool", str), call.take("args", str, "{}"))
        for call in turn.objects("calls")
    ]
    return Message(ROLES[by], parts)  # type: ignore[arg-type]  # one of ROLES


def build(request: Request) -> Built:
    built = Built({"model": request.model, "live": request.stream, "turns": []})
    for message in request.messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        built.body["turns"] += [{"by": "tool", "call": result.call_id, "say": result.text} for result in results]
        if message.text or calls:
            turn: dict[str, Any] = {"by": SPEAKERS.get(message.role, "user"), "say": message.text}
            if calls:
                turn["calls"] = [{"tool": call.name, "call": call.call_id, "args": call.arguments} for call in calls]
            built.body["turns"].append(turn)
    if request.tools:
        built.body["tools"] = [
            {"name": tool.name, "about": tool.description, "schema": tool.parameters or {"type": "object"}}
            for tool in request.tools
        ]
    give(request, PARAMETERS, built)
    give_extra(request, DIALECT, built)
    return built
