"""The items of a batch: what a client sends for each, and what it is given back.

{"id": 1, "type": "chat_completion", "payload": {"prompt": "Hello", "model": "llama3"}}
{"id": 2, "type": "tool_call", "payload": {"tool": "get_markdown", "params": {"scope": "full"}}}

{"request_id": 1, "result": "Hello! How can I help?", "error": null}
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.tool_call import ToolCall, find_tool
from ..engine.upstreams import UpstreamPool
from ..errors import FOREIGN_ERRORS, RequestError, StreamglotError, excerpt
from ..events import StreamError
from ..json.from_types import ArgumentsError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response
from ..tools.tool import ToolOutput
from ..upstream import Upstream

CHAT_COMPLETION: Final = "chat_completion"
TOOL_CALL: Final = "tool_call"
TYPES: Final = (CHAT_COMPLETION, TOOL_CALL)
CHAT_DIALECT: Final = Upstream().dialect
"""The dialect of chat payloads and their results, which is also the default dialect of upstreams."""
ID_CHARS: Final = 256
"""Characters of the longest id of a batch or an item. A UUID has 36; paths and URLs fit as well."""

ItemResponse = JsonObject
"""``request_id``, ``result`` and ``error``, as the client gets them."""


class BatchItem(Struct):
    """One request of a batch. ``payload`` is not checked yet: errors in it become the item's error. ``timestamp`` is when it was
    added, in seconds since 1970."""

    id: int | str
    type: str
    payload: JsonValue
    timestamp: float = 0.0

    def request(self) -> JsonObject:
        """The item as a sender and the list of pending requests have it."""
        return {"id": self.id, "type": self.type, "payload": self.payload, "timestamp": self.timestamp}


def parse_items(requests: object, maximum: int) -> list[BatchItem]:
    """The items of a batch.

    A batch with missing or repeated ids is refused, because its responses could not be matched.
    """
    if not isinstance(requests, list):
        raise RequestError(
            f"requests must be a list of objects with id, type and payload, not {excerpt(requests)}", detail=_param()
        )
    if len(requests) > maximum:
        raise RequestError(
            f"a batch may have at most {maximum} requests, not {len(requests)}; send several batches, or a file to /v1/batches",
            code="batch_too_large",
            status=413,
            detail=_param(),
        )
    items = [_parse_item(one, number) for number, one in enumerate(requests)]
    known: set[int | str] = set()
    for item in items:
        if item.id in known:
            raise RequestError(f"two requests have the id {excerpt(item.id)}; give each a unique id", detail=_param())
        known.add(item.id)
    return items


def _param() -> JsonObject:
    return {"param": "requests"}


def _parse_item(value: object, number: int) -> BatchItem:
    if not isinstance(value, dict):
        raise RequestError(
            f"requests[{number}] must be an object with id, type and payload, not {excerpt(value)}", detail=_param()
        )
    id = value.get("id")
    if isinstance(id, bool) or not isinstance(id, (int, str)) or (isinstance(id, str) and not 0 < len(id) <= ID_CHARS):
        raise RequestError(
            f"requests[{number}].id must be a number or a string of at most {ID_CHARS} characters, not {excerpt(id)}",
            detail=_param(),
        )
    kind = value.get("type")
    return BatchItem(id, kind if isinstance(kind, str) else "", value.get("payload"))


def payload_of(item: BatchItem) -> JsonObject:
    """The payload of an item. Raises if the type is unknown or the payload is not an object."""
    if item.type not in TYPES:
        raise RequestError(f"type must be one of {', '.join(TYPES)}, not {excerpt(item.type)}", detail={"param": "type"})
    if not isinstance(item.payload, dict):
        raise RequestError(f"payload must be an object, not {excerpt(item.payload)}", detail={"param": "payload"})
    return item.payload


# --- chat completions


def chat_payload(message: object, fields: Mapping[str, object]) -> JsonObject:
    """The payload for a string, a message or a list of messages. A message is one of the chat API, or a ``Message``."""
    if isinstance(message, str):
        return {"prompt": message, **fields}
    messages = message if isinstance(message, list) else [message]
    if not messages or not all(isinstance(one, (dict, Message)) for one in messages):
        raise RequestError(
            f"a chat request must be a string, a message (a dict of the chat API or a Message) or a list of messages, not {excerpt(message)}"
        )
    return {"messages": [spoken for one in messages for spoken in _spoken(one)], **fields}


def _spoken(message: object) -> list[JsonObject]:
    """A message as the chat API has it. Results of several tools are several messages there."""
    if not isinstance(message, Message):
        assert isinstance(message, dict)
        return [message]
    built: list[JsonObject] = dialect(CHAT_DIALECT).build_body(Request(messages=[message])).body["messages"]
    return built


def chat_body(payload: JsonObject) -> tuple[JsonObject, bool]:
    """The chat request of a payload, and whether its result is only the text.

    A payload is a whole chat request with ``messages``, or has a ``prompt`` and optionally ``system`` in their place.
    """
    body = {name: value for name, value in payload.items() if name not in ("stream", "stream_options")}
    if "messages" in payload:
        return body, False
    prompt, system = payload.get("prompt"), payload.get("system", "")
    if not isinstance(prompt, str) or not isinstance(system, str):
        wrong = "prompt" if not isinstance(prompt, str) else "system"
        raise RequestError(
            f"the payload of a {CHAT_COMPLETION} needs messages, or a prompt that is a string, not {excerpt(payload.get(wrong))}",
            detail={"param": wrong},
        )
    spoken = [{"role": "system", "content": system}] if system else []
    body = {name: value for name, value in body.items() if name not in ("prompt", "system")}
    return {**body, "messages": [*spoken, {"role": "user", "content": prompt}]}, not payload.get("tools")


def chat_result(response: Response, text_only: bool) -> JsonValue:
    """The result of a chat completion: its text, or the whole object."""
    if text_only:
        return response.choices[0].text if response.choices else ""
    return dialect(CHAT_DIALECT).build_response(response)


# --- tool calls

ExecuteTool: TypeAlias = Callable[[str, JsonObject], object]
"""Runs a tool by its name with its arguments, and returns its result or an awaitable of it. It may raise."""


def tool_call_of(payload: JsonObject) -> tuple[str, JsonObject]:
    """The name and the arguments in the payload of a tool call."""
    name, arguments = payload.get("tool"), payload.get("params")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise RequestError(f"the payload of a {TOOL_CALL} must have tool, a name, and params, an object, not {excerpt(payload)}")
    return name, arguments


async def execute_tool_call(execute: ExecuteTool, payload: JsonObject) -> object:
    """Runs a call with the function of a program, in a thread unless it is asynchronous. Returns what it returned, unchanged."""
    name, arguments = tool_call_of(payload)
    try:
        if inspect.iscoroutinefunction(execute):
            return await execute(name, arguments)
        result = await asyncio.to_thread(execute, name, arguments)
        return await result if inspect.isawaitable(result) else result
    except StreamglotError:
        raise
    except FOREIGN_ERRORS as error:
        raise _tool_failed(name, f"{type(error).__name__}: {error}") from None


MakeExchange: TypeAlias = Callable[[ToolCall], Awaitable[Exchange]]
"""Makes the exchange in which a call runs."""


async def run_tool_call(
    pool: UpstreamPool, payload: JsonObject, make: MakeExchange, allow: Callable[[list[str]], Sequence[str]] = list
) -> JsonValue:
    """Runs one tool and returns its result: a string, or the value if the tool returned a JSON object or list.

    ``allow`` returns the patterns that the caller may use, or raises.
    """
    name, arguments = tool_call_of(payload)
    if any(mark in name for mark in "*?["):
        raise RequestError(
            f"the tool of a {TOOL_CALL} must be one name, not the pattern {excerpt(name)}", detail={"param": "tool"}
        )
    tool = await find_tool(pool, name, allow([name]))
    try:
        call = ToolCall(pool, tool, arguments)
        output = await call.run(await make(call))
    except ArgumentsError as error:
        raise RequestError(
            f"the params do not fit the tool {tool.name!r}: {error}", code="invalid_arguments", detail={"param": "params"}
        ) from None
    except TimeoutError:
        seconds = pool.tools.limits.seconds
        raise StreamglotError(
            f"the tool {tool.name!r} did not finish within {seconds:g} s (tools.limits.seconds)",
            code="tool_timeout",
            status=504,
        ) from None
    except StreamglotError:
        raise
    except FOREIGN_ERRORS as error:
        raise _tool_failed(tool.name, f"{type(error).__name__}: {error}") from None
    if output.is_error:
        raise _tool_failed(tool.name, output.text)
    return tool_result(output)


def _tool_failed(name: str, words: str) -> StreamglotError:
    return StreamglotError(f"the tool {name!r} failed: {words}"[:2000], code="tool_error", status=500)


def tool_result(output: ToolOutput) -> JsonValue:
    """A tool's output as a JSON value."""
    text = output.whole if output.whole is not None else output.text
    value: object = text
    if text[:1] in ("{", "["):
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            value = text
    if output.media:
        return {"text": value, "media": msgspec.to_builtins(output.media)}
    return value


# --- responses


def succeeded(item: BatchItem, result: object) -> ItemResponse:
    return {"request_id": item.id, "result": result, "error": None}


def failed(item: BatchItem, error: StreamError) -> ItemResponse:
    """The response of an item that failed, with the error object of the chat API."""
    return {"request_id": item.id, "result": None, "error": dialect(CHAT_DIALECT).error_body(error)["error"]}
