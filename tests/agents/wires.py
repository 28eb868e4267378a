"""A turn of a scripted model on each wire, as a provider itself would send it: streamed in pieces, or whole.

Nothing here uses the writers of the project: an agent that talks to this upstream directly is the control.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from agents.turns import Call, Turn
from streamglot.framing.aws_eventstream import frame

CREATED = 1_790_000_000
INPUT_TOKENS, OUTPUT_TOKENS = 1200, 40
PIECES = 3
"""Into how many pieces each text and each call is cut."""

MEDIA_TYPES = {
    "ollama": "application/x-ndjson",
    "bedrock_converse": "application/vnd.amazon.eventstream",
}


def streamed(dialect: str, turn: Turn, model: str) -> list[bytes]:
    """The pieces of a stream, one for each event."""
    return list(_STREAMS[dialect](turn, model))


def whole(dialect: str, turn: Turn, model: str) -> bytes:
    return json.dumps(_WHOLES[dialect](turn, model)).encode()


def refused(dialect: str, status: int, message: str) -> bytes:
    """An error answer before a stream."""
    match dialect:
        case "anthropic":
            kind = {429: "rate_limit_error", 400: "invalid_request_error"}.get(status, "api_error")
            body: Any = {"type": "error", "error": {"type": kind, "message": message}}
        case "gemini":
            name = {429: "RESOURCE_EXHAUSTED", 400: "INVALID_ARGUMENT"}.get(status, "INTERNAL")
            body = {"error": {"code": status, "message": message, "status": name}}
        case "ollama":
            body = {"error": message}
        case "bedrock_converse":
            body = {"message": message}
        case _:
            kind = {429: "rate_limit_error", 400: "invalid_request_error"}.get(status, "server_error")
            body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return json.dumps(body).encode()


def cut(text: str) -> list[str]:
    size = max(1, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def arguments(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def sse(body: dict[str, Any], event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(body)}\n\n".encode()


# --- chat completions


def _chat(turn: Turn, model: str) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse(
            {"id": f"chat-{turn.id}", "object": "chat.completion.chunk", "created": CREATED, "model": model, "choices": [choice]}
        )

    yield chunk({"role": "assistant", "content": ""})
    for piece in cut(turn.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in cut(turn.text):
        yield chunk({"content": piece})
    for index, call in enumerate(turn.calls):
        first, *rest = ["", *cut(arguments(call))]
        yield chunk(
            {
                "tool_calls": [
                    {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": first}}
                ]
            }
        )
        for piece in rest:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if turn.calls else "stop")
    yield sse(
        {
            "id": f"chat-{turn.id}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": model,
            "choices": [],
            "usage": _chat_usage(),
        }
    )
    yield b"data: [DONE]\n\n"


def _chat_usage() -> dict[str, int]:
    return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS}


def _chat_whole(turn: Turn, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
            for call in turn.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.calls else "stop"}
    about = {"id": f"chat-{turn.id}", "object": "chat.completion", "created": CREATED, "model": model}
    return {**about, "choices": [choice], "usage": _chat_usage()}


# --- responses


def _items(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.reasoning:
        summary = [{"type": "summary_text", "text": turn.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{turn.id}", "summary": summary, "encrypted_content": turn.signature})
    if turn.text:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": f"msg_{turn.id}", "role": "assistant", "status": "completed", "content": [part]})
    for call in turn.calls:
        named = {"call_id": call.id, "name": call.name, **({"namespace": call.namespace} if call.namespace else {})}
        if isinstance(call.arguments, str):
            items.append(
                {"type": "custom_tool_call", "id": f"ctc_{call.id}", **named, "input": call.arguments, "status": "completed"}
            )
        else:
            items.append(
                {"type": "function_call", "id": f"fc_{call.id}", **named, "arguments": arguments(call), "status": "completed"}
            )
    return items


def _response(turn: Turn, model: str, status: str) -> dict[str, Any]:
    done = status == "completed"
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    about = {"id": f"resp_{turn.id}", "object": "response", "created_at": CREATED, "status": status, "model": model}
    asked = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**about, **asked, "output": _items(turn) if done else [], "usage": usage if done else None}


def _responses(turn: Turn, model: str) -> Iterator[bytes]:
    number = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return sse({"type": kind, **fields, "sequence_number": number - 1}, kind)

    yield event("response.created", response=_response(turn, model, "in_progress"))
    yield event("response.in_progress", response=_response(turn, model, "in_progress"))
    for index, item in enumerate(_items(turn)):
        place = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "reasoning":
                yield event(
                    "response.output_item.added", output_index=index, item={**item, "summary": [], "encrypted_content": ""}
                )
                text, inner = item["summary"][0]["text"], {**place, "summary_index": 0}
                yield event("response.reasoning_summary_part.added", **inner, part={"type": "summary_text", "text": ""})
                for piece in cut(text):
                    yield event("response.reasoning_summary_text.delta", **inner, delta=piece)
                yield event("response.reasoning_summary_text.done", **inner, text=text)
                yield event("response.reasoning_summary_part.done", **inner, part=item["summary"][0])
            case "message":
                yield event(
                    "response.output_item.added", output_index=index, item={**item, "content": [], "status": "in_progress"}
                )
                part, inner = item["content"][0], {**place, "content_index": 0}
                yield event("response.content_part.added", **inner, part={**part, "text": ""})
                for piece in cut(part["text"]):
                    yield event("response.output_text.delta", **inner, delta=piece, logprobs=[])
                yield event("response.output_text.done", **inner, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **inner, part=part)
            case kind:
                field = "arguments" if kind == "function_call" else "input"
                name = "function_call_arguments" if kind == "function_call" else "custom_tool_call_input"
                yield event("response.output_item.added", output_index=index, item={**item, field: "", "status": "in_progress"})
                for piece in cut(item[field]):
                    yield event(f"response.{name}.delta", **place, delta=piece)
                yield event(f"response.{name}.done", **place, **{field: item[field]})
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=_response(turn, model, "completed"))


def _response_whole(turn: Turn, model: str) -> dict[str, Any]:
    return _response(turn, model, "completed")


# --- messages


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if turn.reasoning:
        blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": turn.signature})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    return [*blocks, *({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls)]


def _message(turn: Turn, model: str, content: list[dict[str, Any]], stop: str | None) -> dict[str, Any]:
    about = {"id": f"msg_{turn.id}", "type": "message", "role": "assistant", "model": model, "content": content}
    return {
        **about,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
    }


def _messages(turn: Turn, model: str) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

    yield event("message_start", message=_message(turn, model, [], None))
    for index, block in enumerate(_blocks(turn)):
        kind = block["type"]
        empties: dict[str, dict[str, Any]] = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}}
        empty = empties.get(kind, {"input": {}})
        yield event("content_block_start", index=index, content_block={**block, **empty})
        content = json.dumps(block["input"]) if kind == "tool_use" else block[kind]
        name = {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}[kind]
        field = {"thinking": "thinking", "text": "text", "tool_use": "partial_json"}[kind]
        for piece in cut(content):
            yield event("content_block_delta", index=index, delta={"type": name, field: piece})
        if kind == "thinking":
            yield event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": block["signature"]})
        yield event("content_block_stop", index=index)
    stop = "tool_use" if turn.calls else "end_turn"
    yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": OUTPUT_TOKENS})
    yield event("message_stop")


def _message_whole(turn: Turn, model: str) -> dict[str, Any]:
    return _message(turn, model, _blocks(turn), "tool_use" if turn.calls else "end_turn")


# --- generateContent


def _parts(turn: Turn, cut_up: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for piece in cut(turn.reasoning) if cut_up else [turn.reasoning]:
        if piece:
            parts.append({"text": piece, "thought": True})
    for piece in cut(turn.text) if cut_up else [turn.text]:
        if piece:
            parts.append({"text": piece})
    signature = base64.b64encode(turn.signature.encode()).decode()
    for number, call in enumerate(turn.calls):
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        parts.append({**part, "thoughtSignature": signature} if signature and not number else part)
    return parts


def _candidate(turn: Turn, model: str, parts: list[dict[str, Any]], last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if last:
        candidate["finishReason"] = "STOP"
    usage = {
        "promptTokenCount": INPUT_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": f"r-{turn.id}"}


def _contents(turn: Turn, model: str) -> Iterator[bytes]:
    for part in _parts(turn, cut_up=True):
        yield sse(_candidate(turn, model, [part], last=False))
    yield sse(_candidate(turn, model, [{"text": ""}], last=True))


def _content_whole(turn: Turn, model: str) -> dict[str, Any]:
    return _candidate(turn, model, _parts(turn, cut_up=False), last=True)


# --- /api/chat


def _line(model: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"model": model, "created_at": "2026-09-21T00:00:00Z"}  # the same each time, as some servers have it
    return {**about, "message": {"role": "assistant", "content": "", **message}, "done": False, **more}


_COUNTS = {"done": True, "done_reason": "stop", "prompt_eval_count": INPUT_TOKENS, "eval_count": OUTPUT_TOKENS}


def _local_calls(turn: Turn) -> list[dict[str, Any]]:
    """Without ids, as older servers have them."""
    return [{"function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls]


def _lines(turn: Turn, model: str) -> Iterator[bytes]:
    messages: list[dict[str, Any]] = [{"thinking": piece} for piece in cut(turn.reasoning)]
    messages += [{"content": piece} for piece in cut(turn.text)]
    messages += [{"tool_calls": [call]} for call in _local_calls(turn)]
    for message in messages:
        yield json.dumps(_line(model, message)).encode() + b"\n"
    yield json.dumps(_line(model, {}, **_COUNTS)).encode() + b"\n"


def _line_whole(turn: Turn, model: str) -> dict[str, Any]:
    calls = {"tool_calls": _local_calls(turn)} if turn.calls else {}
    return _line(model, {"content": turn.text, "thinking": turn.reasoning, **calls}, **_COUNTS)


# --- converse


def _frames(turn: Turn, _model: str) -> Iterator[bytes]:
    def event(name: str, **payload: Any) -> bytes:
        headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
        return frame(json.dumps(payload).encode(), headers)

    yield event("messageStart", role="assistant")
    index = -1
    if turn.reasoning:
        index += 1
        for piece in cut(turn.reasoning):
            yield event("contentBlockDelta", contentBlockIndex=index, delta={"reasoningContent": {"text": piece}})
        yield event("contentBlockDelta", contentBlockIndex=index, delta={"reasoningContent": {"signature": turn.signature}})
        yield event("contentBlockStop", contentBlockIndex=index)
    if turn.text:
        index += 1
        for piece in cut(turn.text):
            yield event("contentBlockDelta", contentBlockIndex=index, delta={"text": piece})
        yield event("contentBlockStop", contentBlockIndex=index)
    for call in turn.calls:
        index += 1
        yield event("contentBlockStart", contentBlockIndex=index, start={"toolUse": {"toolUseId": call.id, "name": call.name}})
        for piece in cut(arguments(call)):
            yield event("contentBlockDelta", contentBlockIndex=index, delta={"toolUse": {"input": piece}})
        yield event("contentBlockStop", contentBlockIndex=index)
    yield event("messageStop", stopReason="tool_use" if turn.calls else "end_turn")
    yield event("metadata", usage=_frame_usage(), metrics={"latencyMs": 1})


def _frame_usage() -> dict[str, int]:
    return {"inputTokens": INPUT_TOKENS, "outputTokens": OUTPUT_TOKENS, "totalTokens": INPUT_TOKENS + OUTPUT_TOKENS}


def _frame_whole(turn: Turn, _model: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if turn.reasoning:
        content.append({"reasoningContent": {"reasoningText": {"text": turn.reasoning, "signature": turn.signature}}})
    if turn.text:
        content.append({"text": turn.text})
    content += [{"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}} for call in turn.calls]
    output = {"message": {"role": "assistant", "content": content}}
    return {
        "output": output,
        "stopReason": "tool_use" if turn.calls else "end_turn",
        "usage": _frame_usage(),
        "metrics": {"latencyMs": 1},
    }


_STREAMS = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _messages,
    "gemini": _contents,
    "ollama": _lines,
    "bedrock_converse": _frames,
}
_WHOLES = {
    "openai_chat": _chat_whole,
    "openai_responses": _response_whole,
    "anthropic": _message_whole,
    "gemini": _content_whole,
    "ollama": _line_whole,
    "bedrock_converse": _frame_whole,
}
DIALECTS = tuple(_STREAMS)
