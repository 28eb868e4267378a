"""Streams of any size, made here: what the benchmarks read."""

from __future__ import annotations

import json

HEAD = (
    '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[{"index":0,"delta":'
)


def chat_text(chunks: int) -> list[bytes]:
    """One frame for each chunk of text."""
    first = f'data: {HEAD}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
    body = f'data: {HEAD}{{"content":" word"}},"finish_reason":null}}]}}\n\n'.encode()
    return [first.encode(), *[body] * chunks, *chat_end("stop")]


def chat_end(reason: str) -> list[bytes]:
    return [
        f'data: {HEAD}{{}},"finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}}}\n\n'.encode(),
        b"data: [DONE]\n\n",
    ]


def structured(size: int) -> str:
    """JSON text of about this many characters, with an array of objects as structured output has it."""
    rows = [{"id": number, "name": f"row {number}", "tags": ["a", "b"]} for number in range(max(1, size // 52))]
    return json.dumps({"rows": rows})


def pieces(text: str, size: int) -> list[str]:
    return [text[position : position + size] for position in range(0, len(text), size)]


def chat_call(chunks: int, piece: int = 8) -> list[bytes]:
    """One tool call whose arguments come in this many chunks."""
    return chat_arguments(pieces(structured(chunks * piece), piece)[:chunks])


def chat_arguments(arguments: list[str]) -> list[bytes]:
    call = '{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"save","arguments":""}}]}'
    frames = [f'data: {HEAD}{call},"finish_reason":null}}]}}\n\n'.encode()]
    for piece in arguments:
        delta = json.dumps({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        frames.append(f'data: {HEAD}{delta},"finish_reason":null}}]}}\n\n'.encode())
    return frames + chat_end("tool_calls")


def chat_parallel(calls: int, fragments: int = 5, interleaved: bool = False) -> list[bytes]:
    """Many calls of a few fragments each, one after another or in turns."""
    parts = pieces('{"city": "Lisbon", "days": 3}', 6)[:fragments]
    order = [(call, part) for call in range(calls) for part in range(fragments)]
    if interleaved:
        order.sort(key=lambda pair: pair[1])
    frames = []
    for call, part in order:
        fragment: dict[str, object] = {"index": call, "function": {"arguments": parts[part]}}
        if part == 0:
            fragment = {"index": call, "id": f"call_{call}", "function": {"name": "weather", "arguments": parts[0]}}
        frames.append(f'data: {HEAD}{json.dumps({"tool_calls": [fragment]})},"finish_reason":null}}]}}\n\n'.encode())
    return frames + chat_end("tool_calls")


def anthropic_call(chunks: int, piece: int = 8) -> list[bytes]:
    """A stream with one tool_use block whose input comes in this many deltas."""

    def frame(kind: str, **fields: object) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    message: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "bench",
        "content": [],
        "stop_reason": None,
    }
    usage = {"input_tokens": 9, "output_tokens": 1}
    frames = [frame("message_start", message={**message, "stop_sequence": None, "usage": usage})]
    block = {"type": "tool_use", "id": "toolu_1", "name": "save", "input": {}}
    frames.append(frame("content_block_start", index=0, content_block=block))
    for part in pieces(structured(chunks * piece), piece)[:chunks]:
        delta = {"type": "input_json_delta", "partial_json": part}
        frames.append(frame("content_block_delta", index=0, delta=delta))
    frames.append(frame("content_block_stop", index=0))
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    return [*frames, frame("message_delta", delta=stop, usage={"output_tokens": 9}), frame("message_stop")]
