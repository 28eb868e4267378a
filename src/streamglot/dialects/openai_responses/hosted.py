"""Tools that the client expects its provider to host, answered by a tool of ours: as items of the provider's own kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from ...events import Echo, Event, Extra, Media, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from ...json_types import JsonObject
from ..hosted_tools import HostedCall, sources_of
from ..own_tools import own_id
from .wire import DIALECT

Fields = JsonObject


def _web_search(call: HostedCall) -> Fields:
    action: Fields = {"type": "search", "query": call.query, "queries": [call.query]}
    sources = [{"type": "url", "url": source.url} for source in sources_of(call.text)]
    return {"action": {**action, "sources": sources} if sources else action}


def _file_search(call: HostedCall) -> Fields:
    found = sources_of(call.text)
    results = [{"file_id": source.url, "filename": source.title, "text": source.text} for source in found]
    return {"queries": [call.query], "results": results or [{"file_id": "", "filename": "", "text": call.text}]}


def _code(call: HostedCall) -> Fields:
    return {"code": call.code, "container_id": "", "outputs": [{"type": "logs", "logs": call.text}]}


def _image(call: HostedCall) -> Fields:
    image = next((medium for medium in call.media if medium.data), None)
    if image is None:
        return {"result": None}
    return {"result": image.data, "output_format": image.mime.removeprefix("image/")}


_KINDS: Final[dict[str, tuple[str, str, tuple[str, ...], Callable[[HostedCall], Fields]]]] = {
    "web_search": ("web_search_call", "ws_", ("searching",), _web_search),
    "file_search": ("file_search_call", "fs_", ("searching",), _file_search),
    "code_interpreter": ("code_interpreter_call", "ci_", ("interpreting",), _code),
    "image_generation": ("image_generation_call", "ig_", ("generating",), _image),
}
"""By the type of the tool: the type of its items, how their ids begin, what its events say while it runs, and its fields."""


def events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    declared = str(call.declared.get("type", ""))
    kind = next((name for name in _KINDS if declared.startswith(name)), None)
    return None if kind is None else list(_events(call, *_KINDS[kind]))


def _events(
    call: HostedCall, kind: str, prefix: str, phases: tuple[str, ...], fields: Callable[[HostedCall], Fields]
) -> Iterator[Event]:
    item_id = own_id(prefix, call.call_id)
    item = {"type": kind, "id": item_id, **fields(call), "status": "failed" if call.is_error else "completed"}
    begun: Fields = {"type": kind, "id": item_id, "status": "in_progress"}
    if kind == "code_interpreter_call":
        begun |= {"code": "", "container_id": "", "outputs": None}
    elif kind == "file_search_call":
        begun |= {"queries": []}
    yield ToolCallStart(item_id, call.name, "server", Echo(DIALECT, begun))
    for phase in ("in_progress", *phases, *(() if call.is_error else ("completed",))):
        yield Extra(DIALECT, {"event": {"type": f"response.{kind}.{phase}"}})
    yield ToolCallDelta(msgspec.json.encode(call.arguments).decode())
    yield ToolCallEnd(Echo(DIALECT, item))
    if item.get("result"):
        yield Media(f"image/{item['output_format']}", item["result"], id=item_id)
    else:
        yield ToolResult(item_id, call.text, call.is_error, Echo(DIALECT, item))
