"""Behaviour of upstreams: each scenario is a script and the answer that a client must read from it."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
from msgspec import Struct, field

from gateway.upstream import Cut, Hang, Pause, Reset, Script, byte_by_byte, head, sse, streamed, unfinished, whole

PARIS = {"city": "Paris"}
UTC = {"tz": "UTC"}


class Scenario(Struct):
    """``error`` is a part of the message that the client must see; with ``status`` it comes before the first byte.
    ``finish`` and ``usage`` are checked in the dialects that have a word for them."""

    script: Script
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str = "end"
    usage: tuple[int | None, int | None, int | None] | None = None
    error: str = ""
    status: int = 0
    via: str = "work"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def text_chunk(text: str) -> dict[str, Any]:
    return chunk({"content": text})


def called(index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call: dict[str, Any] = {"type": "function", "function": function}
    if index is not None:
        call["index"] = index
    if id is not None:
        call["id"] = id
    return call


def calls(*some: dict[str, Any], finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(some), **delta}, finish)


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    return {
        **chunk(),
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details},
    }


DONE = "[DONE]"
END = chunk({}, "stop")
PLAIN = sse(chunk({"role": "assistant", "content": ""}), text_chunk("Hello"), text_chunk(" world"), END, usage(5, 2), DONE)
WEATHER = called(0, "call_a", "weather", '{"city":"Paris"}')
TEXT_AND_CALL = sse(text_chunk("Let me look."), calls(called(0, "call_a", "weather", "")), calls(called(0, arguments='{"ci')))
TEXT_AND_CALL += sse(calls(called(0, arguments='ty":"Paris"}')), chunk({}, "tool_calls"), DONE)
LONG = "x" * 100_000


def answer(**message: Any) -> dict[str, Any]:
    """An answer that is no stream."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
    }
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": counts}


def named(kind: str, body: dict[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + sse({"type": kind, **body})


def anthropic(*events: tuple[str, dict[str, Any]]) -> bytes:
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    start = {"message": {**message, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}}}
    return b"".join(named(kind, body) for kind, body in (("message_start", start), *events))


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("content_block_start", {"index": index, "content_block": start}),
        *[("content_block_delta", {"index": index, "delta": delta}) for delta in deltas],
        ("content_block_stop", {"index": index}),
    ]


def stopped(reason: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 7}}),
        ("message_stop", {}),
    ]


THINKING = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Hm."},
    {"type": "signature_delta", "signature": "c2ln"},
)
TEXT = block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me look."})
TOOL_USE = block(
    2,
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"city":'},
    {"type": "input_json_delta", "partial_json": '"Paris"}'},
)


def gemini(*parts: dict[str, Any], finish: str | None = None, counts: bool = False) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}} if counts else {}
    return {"candidates": [candidate], "modelVersion": "m", "responseId": "g1", **usage}


def lines(*some: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode({"model": "m", "created_at": "2026-01-01T00:00:00Z", **one}) + b"\n" for one in some)


def message(done: bool = False, **fields: Any) -> dict[str, Any]:
    counts = {"done_reason": "stop", "prompt_eval_count": 5, "eval_count": 2} if done else {}
    return {"message": {"role": "assistant", "content": "", **fields}, "done": done, **counts}


def responses(*events: tuple[str, dict[str, Any]]) -> bytes:
    started = {
        "response": {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    }
    every = (("response.created", started), *events)
    return b"".join(named(kind, {"sequence_number": number, **body}) for number, (kind, body) in enumerate(every))


def item(index: int, body: dict[str, Any], *events: tuple[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    between = [(kind, {"output_index": index, "item_id": body["id"], **more}) for kind, more in events]
    return [
        ("response.output_item.added", {"output_index": index, "item": body}),
        *between,
        ("response.output_item.done", {"output_index": index, "item": body}),
    ]


MESSAGE = item(
    0,
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
    },
    ("response.content_part.added", {"content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}),
    ("response.output_text.delta", {"content_index": 0, "delta": "Hello"}),
    ("response.output_text.done", {"content_index": 0, "text": "Hello"}),
)
FUNCTION_CALL = item(
    1,
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_a",
        "name": "weather",
        "arguments": '{"city":"Paris"}',
        "status": "completed",
    },
    ("response.function_call_arguments.delta", {"delta": '{"city":"Paris"}'}),
    ("response.function_call_arguments.done", {"arguments": '{"city":"Paris"}'}),
)
COUNTS = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
RESPONSE = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [], "usage": COUNTS}
COMPLETED = ("response.completed", {"response": RESPONSE})

CALL = [("weather", PARIS)]
BOTH = [("weather", PARIS), ("time", UTC)]


def with_calls(*chunks: dict[str, Any], found: list[tuple[str, Any]] = CALL) -> Scenario:
    """A chat stream whose chunks are these calls."""
    return Scenario(streamed(sse(*chunks, chunk({}, "tool_calls"), DONE)), calls=found, finish="tool_calls")


REFUSED = {"error": {"message": "the model is on fire", "type": "server_error", "code": None}}

SCENARIOS: dict[str, Scenario] = {
    # --- plain answers in unusual forms
    "plain": Scenario(streamed(PLAIN), "Hello world", usage=(5, 2, None)),
    "text_then_call": Scenario(streamed(TEXT_AND_CALL), "Let me look.", calls=CALL, finish="tool_calls"),
    "crlf": Scenario(streamed(PLAIN.replace(b"\n", b"\r\n")), "Hello world"),
    "cr_only": Scenario(streamed(PLAIN.replace(b"\n", b"\r")), "Hello world"),
    "bytes": Scenario(streamed(*byte_by_byte(PLAIN)), "Hello world"),
    "bytes_of_characters": Scenario(streamed(*byte_by_byte(sse(text_chunk("日本語"), text_chunk("🎈"), END, DONE))), "日本語🎈"),
    "no_space": Scenario(streamed(PLAIN.replace(b"data: ", b"data:")), "Hello world"),
    "comments": Scenario(
        streamed(b": OPENROUTER PROCESSING\n\n", PLAIN.replace(b"\n\n", b"\n\n: still here\n\n")), "Hello world"
    ),
    "ids_and_retries": Scenario(streamed(b"retry: 100\n\nid: 7\n\n", PLAIN), "Hello world"),
    "bom": Scenario(streamed(b"\xef\xbb\xbf" + PLAIN), "Hello world"),
    "lines_of_data": Scenario(streamed(PLAIN.replace(b',"choices"', b',\ndata: "choices"')), "Hello world"),
    "line_separators": Scenario(streamed(sse(text_chunk("a\u2028b\u0085c"), END, DONE)), "a\u2028b\u0085c"),
    "slowly": Scenario(streamed(*[one for part in PLAIN.split(b"\n\n") for one in (part + b"\n\n", Pause(0.03))]), "Hello world"),
    "compressed": Scenario(
        [head(content_encoding="gzip", connection="close"), gzip.compress(PLAIN), Cut()], "Hello world", usage=(5, 2, None)
    ),
    "one_long_line": Scenario(streamed(sse(text_chunk(LONG), END, DONE)), LONG),
    # --- endings
    "text_in_the_finish": Scenario(streamed(sse(text_chunk("Hello"), chunk({"content": " world"}, "stop"), DONE)), "Hello world"),
    "all_in_one": Scenario(
        streamed(sse(calls(WEATHER, finish="tool_calls", role="assistant", content="Let me look."), DONE)),
        "Let me look.",
        calls=CALL,
        finish="tool_calls",
    ),
    "no_done": Scenario(streamed(sse(text_chunk("Hello"), END)), "Hello"),
    "quoted_done": Scenario(streamed(sse(text_chunk("Hello"), END, '"[DONE]"')), "Hello"),
    "after_done": Scenario(streamed(sse(text_chunk("Hello"), END, DONE, text_chunk("ghost"))), "Hello"),
    "open_after_done": Scenario([head(connection="close"), sse(text_chunk("Hello"), END, DONE), Hang()], "Hello"),
    "silent_after_finish": Scenario(
        [head(connection="close"), sse(text_chunk("Hello"), END), Hang()], "Hello", via="short_idle_work"
    ),
    "length": Scenario(streamed(sse(text_chunk("Hello"), chunk({}, "length"), DONE)), "Hello", finish="length"),
    "filtered": Scenario(streamed(sse(text_chunk("Hello"), chunk({}, "content_filter"), DONE)), "Hello", finish="content_filter"),
    "usage_after_finish": Scenario(streamed(sse(text_chunk("Hello"), END, usage(9, 4), DONE)), "Hello", usage=(9, 4, None)),
    "cached_usage": Scenario(
        streamed(sse(text_chunk("Hello"), END, usage(100, 4, prompt_tokens_details={"cached_tokens": 80}), DONE)),
        "Hello",
        usage=(100, 4, 80),
    ),
    "object_for_a_stream": Scenario(whole(answer(content="Hello")), "Hello", usage=(5, 2, None)),
    "object_with_call": Scenario(whole(answer(content=None, tool_calls=[WEATHER])), calls=CALL, finish="tool_calls"),
    # --- calls
    "whole_arguments": with_calls(calls(WEATHER)),
    "whole_call_and_finish": Scenario(streamed(sse(calls(WEATHER, finish="tool_calls"), DONE)), calls=CALL, finish="tool_calls"),
    "interleaved": with_calls(
        calls(called(0, "call_a", "weather", ""), called(1, "call_b", "time", "")),
        calls(called(0, arguments='{"city":')),
        calls(called(1, arguments='{"tz": ')),
        calls(called(0, arguments='"Paris"}')),
        calls(called(1, arguments='"UTC"}')),
        found=BOTH,
    ),
    "equal_indexes": with_calls(calls(WEATHER), calls(called(0, "call_b", "time", '{"tz":"UTC"}')), found=BOTH),
    "no_index": with_calls(
        calls(called(None, "call_a", "weather", '{"city":"Paris"}'), called(None, "call_b", "time", '{"tz":"UTC"}')), found=BOTH
    ),
    "first_index_one": with_calls(calls(called(1, "call_a", "weather", '{"city":')), calls(called(1, arguments='"Paris"}'))),
    "negative_index": with_calls(calls(called(-1, "call_a", "weather", '{"city":"Paris"}'))),
    "repeated_id_and_name": with_calls(
        calls(called(0, "call_a", "weather", '{"ci')),
        calls(called(0, "call_a", "weather", 'ty":"Par')),
        calls(called(0, "call_a", "weather", 'is"}')),
    ),
    "empty_ids_later": with_calls(calls(called(0, "call_a", "weather", '{"city":')), calls(called(0, "", "", '"Paris"}'))),
    "arguments_as_object": with_calls(calls(called(0, "call_a", "weather", PARIS))),
    "call_with_stop": Scenario(streamed(sse(calls(WEATHER), END, DONE)), calls=CALL, finish="tool_calls"),
    "no_arguments": with_calls(calls(called(0, "call_p", "ping", "")), found=[("ping", {})]),
    "text_after_call": Scenario(
        streamed(sse(calls(WEATHER), text_chunk("I asked."), chunk({}, "tool_calls"), DONE)),
        "I asked.",
        calls=CALL,
        finish="tool_calls",
    ),
    # --- reasoning and what models write into their text
    "reasoning_content": Scenario(
        streamed(sse(chunk({"reasoning_content": "Hm."}), text_chunk("Hello"), END, DONE)), "Hello", "Hm."
    ),
    "delta_reasoning": Scenario(streamed(sse(chunk({"reasoning": "Hm."}), text_chunk("Hello"), END, DONE)), "Hello", "Hm."),
    "reasoning_twice": Scenario(
        streamed(
            sse(
                chunk({"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "index": 0}]}),
                text_chunk("Hello"),
                END,
                DONE,
            )
        ),
        "Hello",
        "Hm.",
    ),
    "reasoning_text_call": Scenario(
        streamed(
            sse(chunk({"reasoning_content": "Hm."}), text_chunk("Let me look."), calls(WEATHER), chunk({}, "tool_calls"), DONE)
        ),
        "Let me look.",
        "Hm.",
        CALL,
        "tool_calls",
    ),
    "thinking-split": Scenario(
        streamed(sse(text_chunk("<thi"), text_chunk("nk>Hm"), text_chunk(".</th"), text_chunk("ink>Hello"), END, DONE)),
        "Hello",
        "Hm.",
    ),
    "thinking-repeated": Scenario(
        streamed(sse(text_chunk("<think>One.</think>Hello<think>"), text_chunk("Two.</think> world"), END, DONE)),
        "Hello world",
        "One.Two.",
    ),
    "in_band_call": Scenario(
        streamed(
            sse(
                text_chunk("Let me look.<tool_"),
                text_chunk('call>{"name":"weather","arguments":{"city":"Paris"}}</tool_call>'),
                END,
                DONE,
            )
        ),
        "Let me look.",
        calls=CALL,
        finish="tool_calls",
        via="hermes",
    ),
    "no_tool_of_ours": Scenario(
        streamed(sse(text_chunk("<b>bold</b> and 1 < 2"), END, DONE)), "<b>bold</b> and 1 < 2", via="hermes"
    ),
    # --- broken in the middle
    "eof_in_text": Scenario(unfinished(sse(text_chunk("Hello"))), "Hello", error="ended without the end"),
    "eof_in_arguments": Scenario(
        unfinished(sse(text_chunk("Let me look."), calls(called(0, "call_a", "weather", '{"ci')))),
        "Let me look.",
        error="ended without the end",
    ),
    "eof_in_a_frame": Scenario(unfinished(sse(text_chunk("Hello")), b'data: {"choices":[{"del'), "Hello", error="ended"),
    "reset_in_text": Scenario(unfinished(sse(text_chunk("Hello")), end=Reset()), "Hello", error="broke"),
    "chunks_without_end": Scenario(
        [head(transfer_encoding="chunked"), b"5000\r\n" + sse(text_chunk("Hello")), Cut()], "Hello", error="broke"
    ),
    "error_in_the_middle": Scenario(
        streamed(sse(text_chunk("Hello"), {"error": {"message": "the model is on fire", "code": 500}})),
        "Hello",
        error="on fire",
    ),
    "error_field": Scenario(
        unfinished(sse(text_chunk("Hello")), b'error: {"message": "the model is on fire"}\n\n'),
        "Hello",
        error="on fire",
    ),
    "silent_in_the_middle": Scenario(
        [head(connection="close"), sse(text_chunk("Hello")), Hang()], "Hello", error="silent", via="short_idle_work"
    ),
    "not_json": Scenario(streamed(sse(text_chunk("Hello"), "{nonsense")), "Hello", error="JSON"),
    "done_in_arguments": Scenario(
        streamed(sse(text_chunk("Let me look."), calls(called(0, "call_a", "weather", '{"ci')), DONE)),
        "Let me look.",
        error="DONE",
    ),
    # --- broken at once
    "error_in_200": Scenario(whole(REFUSED), error="on fire", status=500),
    "error_in_200_stream": Scenario(
        streamed(sse({"error": {"message": "the model is on fire", "code": 503}})), error="on fire", status=503
    ),
    "empty": Scenario(whole(b"", media_type="text/event-stream"), error="empty", status=502),
    "only_done": Scenario(streamed(sse(DONE)), error="without an answer", status=502),
    "only_comments": Scenario(streamed(b": hello\n\n"), error="ended without the end", status=502),
    "html": Scenario(whole(b"<html>Sign in</html>", media_type="text/html"), error="Sign in", status=502),
    "never_answers": Scenario([Hang()], error="did not begin", status=504, via="short_first_byte_work"),
    "only_headers": Scenario([head(), Hang()], error="did not begin", status=504, via="short_first_byte_work"),
    "hangs_up": Scenario([Cut()], error="closed before", status=502),
    "resets": Scenario([Reset()], error="before an answer came", status=502),
    "no_http": Scenario([b"SSH-2.0-OpenSSH\r\n\r\n", Cut()], error="not HTTP", status=502),
    "nobody_there": Scenario([], error="cannot be reached", status=502, via="gone"),
    "redirect": Scenario(whole(b"", 302, location="http://elsewhere/"), error="base_url", status=502),
    "bad_request": Scenario(
        whole({"error": {"message": "bad field", "type": "invalid_request_error"}}, 400), error="bad field", status=400
    ),
    "unauthorized": Scenario(whole({"error": {"message": "wrong key"}}, 401), error="wrong key", status=401),
    "forbidden": Scenario(whole({"error": {"message": "not yours"}}, 403), error="not yours", status=403),
    "no_model": Scenario(whole({"error": {"message": "no such model"}}, 404), error="no such model", status=404),
    "too_many": Scenario(whole({"error": {"message": "slow down"}}, 429, retry_after="7"), error="slow down", status=429),
    "server_error": Scenario(whole(b"Internal Server Error", 500, "text/plain"), error="Internal Server Error", status=500),
    "unavailable": Scenario(whole(b"<html>503</html>", 503, "text/html"), error="503", status=503),
    "many_headers": Scenario(
        [head()[:-2] + b"".join(b"x-%d: %b\r\n" % (number, b"y" * 60) for number in range(2000)) + b"\r\n", Cut()],
        error="status 502",
        status=502,
    ),
    # --- upstreams of other dialects
    "anthropic_all": Scenario(
        streamed(anthropic(*THINKING, ("ping", {}), *TEXT, *TOOL_USE, *stopped("tool_use"))),
        "Let me look.",
        "Hm.",
        CALL,
        "tool_calls",
        (5, 7, None),
        via="claude",
    ),
    "anthropic_cut": Scenario(unfinished(anthropic(*TEXT)), "Let me look.", error="ended without the end", via="claude"),
    "anthropic_overloaded": Scenario(
        streamed(anthropic(*TEXT, ("error", {"error": {"type": "overloaded_error", "message": "Overloaded"}}))),
        "Let me look.",
        error="Overloaded",
        via="claude",
    ),
    "gemini_all": Scenario(
        streamed(
            sse(
                gemini({"text": "Hm.", "thought": True}),
                gemini({"text": "Let me look."}),
                gemini({"functionCall": {"name": "weather", "args": PARIS}}, finish="STOP", counts=True),
            )
        ),
        "Let me look.",
        "Hm.",
        CALL,
        "tool_calls",
        (5, 2, None),
        via="google",
    ),
    "gemini_cut": Scenario(unfinished(sse(gemini({"text": "Hello"}))), "Hello", error="ended without the end", via="google"),
    "ollama_all": Scenario(
        streamed(
            lines(
                message(thinking="Hm."),
                message(content="Let me look."),
                message(tool_calls=[{"function": {"name": "weather", "arguments": PARIS}}]),
                message(True),
            ),
            media_type="application/x-ndjson",
        ),
        "Let me look.",
        "Hm.",
        CALL,
        "tool_calls",
        (5, 2, None),
        via="box",
    ),
    "ollama_cut": Scenario(unfinished(lines(message(content="Hello"))), "Hello", error="ended without the end", via="box"),
    "responses_all": Scenario(
        streamed(responses(*MESSAGE, *FUNCTION_CALL, COMPLETED)),
        "Hello",
        calls=CALL,
        finish="tool_calls",
        usage=(5, 2, None),
        via="lab",
    ),
    "responses_cut": Scenario(unfinished(responses(*MESSAGE)), "Hello", error="ended without the end", via="lab"),
    "responses_failed": Scenario(
        streamed(
            responses(
                *MESSAGE,
                (
                    "response.failed",
                    {"response": {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "on fire"}}},
                ),
            )
        ),
        "Hello",
        error="on fire",
        via="lab",
    ),
    "keepalives_of_responses": Scenario(
        streamed(named("keepalive", {"sequence_number": 0}), responses(*MESSAGE, COMPLETED)), "Hello", via="lab"
    ),
}
