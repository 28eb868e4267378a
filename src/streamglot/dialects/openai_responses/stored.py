"""Stored responses: the request fields that they repeat, and their input items."""

from __future__ import annotations

import msgspec

from ...json_types import JsonObject
from ...messages import Message, NativePart, Request, Response, ResponseChoice
from .request import ItemBuilder, build
from .response import build as build_response
from .wire import DIALECT, make_item_id, string_of


def repeated_fields(request: Request, instructed: bool) -> JsonObject:
    """The fields of the client's body without its input. ``instructed``: its first message was given as instructions."""
    body = build(msgspec.structs.replace(request, messages=[])).body
    del body["model"], body["input"]
    return {**body, "instructions": request.messages[0].text} if instructed else body


def input_items(request: Request, response_id: str, instructed: bool) -> list[JsonObject]:
    """All messages before the answer, oldest first, each with a stable id."""
    messages = request.messages[1:] if instructed else request.messages
    builder = ItemBuilder(messages, request.tools)
    items: list[JsonObject] = []
    for message in messages:
        if message.role == "assistant":
            response = Response(f"{response_id}i{len(items)}", choices=[ResponseChoice(0, message.parts, "end")])
            items += build_response(response, tools=request.tools)["output"]
        else:
            known = [part for part in message.parts if not isinstance(part, NativePart) or part.dialect == DIALECT]
            items += [{"status": "completed", **item} for item in builder.build(Message(message.role, known))]
    ids: set[str] = set()
    for number, item in enumerate(items):
        item_id = string_of(item, "id")
        if not item_id or item_id in ids:
            item_id = make_item_id(item["type"], f"{response_id}i", number)
        ids.add(item_id)
        items[number] = {**item, "id": item_id}
    return items
