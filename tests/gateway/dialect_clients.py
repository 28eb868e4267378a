"""Clients of every dialect: what they send, and what they understand of the answer, read by our own readers or as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from gateway.running import Answer, Running
from streamglot import collect
from streamglot.dialects import dialect
from streamglot.framing import Sse
from streamglot.messages import ReasoningPart, RefusalPart, Response, TextPart, ToolCallPart

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "tz": {"type": "string"}}}
TOOLS = ("weather", "time", "ping")
CLIENT_DIALECTS = (
    "openai_chat",
    "openai_responses",
    "anthropic",
    "gemini",
    "ollama",
    "agui",
    "vercel_ui",
    "openai_completions",
)
STREAMS_ONLY = ("agui", "vercel_ui")


First = TypeVar("First")
Second = TypeVar("Second")


def in_turn(first: Iterable[First], second: Iterable[Second]) -> list[tuple[First, Second]]:
    """Pairs in which each value of both stands at least once. A reader knows no client, and a writer no upstream: what holds for each
    of them holds for all pairs."""
    ones, others = list(first), list(second)
    return [(ones[n % len(ones)], others[n % len(others)]) for n in range(max(len(ones), len(others)))]


class Understood(Struct):
    status: int
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int | None, int | None, int | None] | None = None
    error: str | None = None
    code: str = ""
    broken_calls: int = 0


def path_of(name: str, model: str, stream: bool = True) -> str:
    paths = {
        "openai_chat": "/v1/chat/completions",
        "openai_responses": "/v1/responses",
        "anthropic": "/v1/messages",
        "gemini": f"/v1beta/models/{model}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}",
        "ollama": "/api/chat",
        "agui": "/agui",
        "vercel_ui": "/ui",
        "openai_completions": "/v1/completions",
    }
    return paths[name]


def body_of(name: str, model: str, stream: bool = True, tools: tuple[str, ...] = ()) -> dict[str, Any]:
    functions: list[dict[str, Any]] = [{"name": tool, "description": tool, "parameters": SCHEMA} for tool in tools]
    user = {"role": "user", "content": "q"}
    body: dict[str, Any]
    match name:
        case "openai_chat":
            body = {"messages": [user], "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
            more: dict[str, Any] = {"tools": [{"type": "function", "function": one} for one in functions]}
        case "openai_responses":
            body, more = {"input": "q", "stream": stream}, {"tools": [{"type": "function", **one} for one in functions]}
        case "anthropic":
            body = {"max_tokens": 99, "messages": [user], "stream": stream}
            more = {"tools": [{"name": one["name"], "input_schema": SCHEMA} for one in functions]}
        case "gemini":
            body = {"contents": [{"role": "user", "parts": [{"text": "q"}]}]}
            return {**body, **({"tools": [{"functionDeclarations": functions}]} if functions else {})}
        case "ollama":
            body, more = (
                {"messages": [user], "stream": stream},
                {"tools": [{"type": "function", "function": one} for one in functions]},
            )
        case "agui":
            body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", **user}], "context": [], "state": {}}
            return {**body, "tools": functions, "forwardedProps": {"model": model}}
        case "vercel_ui":
            message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "q"}]}
            return {"id": "c", "messages": [message], "trigger": "submit-message", "model": model}
        case _:
            body = {"prompt": "q", "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
            return {"model": model, **body}
    return {"model": model, **body, **(more if functions else {})}


def asked(
    gateway: Running, name: str, model: str, stream: bool = True, tools: tuple[str, ...] = (), **headers: str
) -> Understood:
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return understood(name, gateway.ask(path_of(name, model, stream), body_of(name, model, stream, tools), names), stream)


def understood(name: str, answer: Answer, stream: bool = True) -> Understood:
    if answer.status != 200:
        return _refused(name, answer)
    if name == "agui":
        return _agui(answer)
    if name == "vercel_ui":
        return _vercel_ui(answer)
    wire = dialect(name)
    if stream:
        assert answer.headers["content-type"].startswith(wire.media_type)
        reader = wire.reader()
        response = collect([*reader.feed(answer.body), *reader.close()])
    else:
        response = wire.parse_response(answer.json())
    return of_response(response, answer.status)


def of_response(response: Response, status: int) -> Understood:
    found = Understood(status)
    choice = response.choices[0] if response.choices else None
    for part in choice.parts if choice else []:
        match part:
            case TextPart() | RefusalPart():
                found.text += part.text
            case ReasoningPart():
                found.reasoning += part.text
            case ToolCallPart():
                _keep_calls(found, {part.call_id: [part.name, part.arguments]}, {part.call_id} if part.complete else set())
    found.finish = choice.stop_reason if choice else None
    counts = response.usage
    if counts.input_tokens is not None or counts.output_tokens is not None:
        found.usage = (counts.input_tokens, counts.output_tokens, counts.cached_tokens)
    if response.error is not None:
        found.error, found.code = response.error.message, response.error.code
    return found


def _refused(name: str, answer: Answer) -> Understood:
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    error = body["error"]
    if name == "ollama":
        return Understood(answer.status, error=error)
    if name == "anthropic":
        assert body["type"] == "error"
    if name == "gemini":
        assert error["code"] == answer.status
    return Understood(answer.status, error=error["message"], code=str(error.get("code") or error.get("type")))


def _events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    framing = Sse()
    frames = [*framing.feed(answer.body), *framing.close()]
    return [msgspec.json.decode(frame.data) for frame in frames if frame.kind == "data" and frame.data[:1] == b"{"]


def _agui(answer: Answer) -> Understood:
    found = Understood(answer.status)
    calls: dict[str, list[str]] = {}
    ended: set[str] = set()
    events = _events(answer)
    assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"), events[-1]
    for event in events:
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT":
                found.text += event["delta"]
            case "REASONING_MESSAGE_CONTENT":
                found.reasoning += event["delta"]
            case "TOOL_CALL_START":
                calls[event["toolCallId"]] = [event["toolCallName"], ""]
            case "TOOL_CALL_ARGS":
                calls[event["toolCallId"]][1] += event["delta"]
            case "TOOL_CALL_END":
                ended.add(event["toolCallId"])
            case "RUN_ERROR":
                found.error, found.code = event["message"], event.get("code", "")
    _keep_calls(found, calls, ended)
    return found


def _vercel_ui(answer: Answer) -> Understood:
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    found = Understood(answer.status)
    started: dict[str, str] = {}
    for event in _events(answer):
        match event["type"]:
            case "text-delta":
                found.text += event["delta"]
            case "reasoning-delta":
                found.reasoning += event["delta"]
            case "tool-input-start":
                started[event["toolCallId"]] = event["toolName"]
            case "tool-input-available":
                started.pop(event["toolCallId"], None)
                found.calls.append((event["toolName"], event["input"]))
            case "error":
                found.error = event["errorText"]
    found.broken_calls = len(started)
    return found


def _keep_calls(found: Understood, calls: dict[str, list[str]], ended: set[str]) -> None:
    for call_id, (name, arguments) in calls.items():
        try:
            value = msgspec.json.decode(arguments or "{}")
        except msgspec.DecodeError:
            found.broken_calls += 1
            continue
        if call_id in ended:
            found.calls.append((name, value))
