"""Invalid numbers in every place where a dialect reads one: they cause no fault, and no invalid usage."""

from __future__ import annotations

import msgspec
import pytest

import streamglot
from streamglot import DIALECTS, StreamError, Usage
from streamglot.dialects.common.lenient import MAX_DEPTH as DEEPEST
from streamglot.dialects.common.lenient import clean, fit
from streamglot.dialects.common.tables import MAX_DEPTH, MAX_TOKENS, count, plausible
from streamglot.dialects.common.upstream_errors import MESSAGE_CHARS, refusal

ODD = (
    *(b"-5", b"-1e308", b"1e308", b"1e400", b"NaN", b"-Infinity", b"-0", b"1.5", b"true", b"null", b"[]", b"{}"),
    *(b'""', b'"inf"', b'"-inf"', b'"nan"', '"²"'.encode(), b'"\\ud800"', b'"\\u0000"', b'"1e5"'),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"-" + b"9" * 30, b"9223372036854775808", b'"' + b"9" * 5000 + b'"'),
)
"""Each value replaces ``@``."""
STREAMS = {
    "openai_chat": b'data: {"id":"x","created":@,"choices":[{"index":@,"delta":{"content":"hi","tool_calls":[{"index":@,"id":"c",'
    b'"function":{"name":"f","arguments":"{}"}}]},"logprobs":{"content":[{"token":"a","logprob":@,"bytes":[@]}]}}],"usage":'
    b'{"prompt_tokens":@,"completion_tokens":@,"prompt_tokens_details":{"cached_tokens":@}}}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    "anthropic": b'data: {"type":"message_start","message":{"id":"x","usage":{"input_tokens":@,"output_tokens":@,'
    b'"cache_read_input_tokens":@,"cache_creation_input_tokens":@}}}\n\n'
    b'data: {"type":"content_block_start","index":@,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":@,"delta":{"type":"text_delta","text":"hi"}}\n\n'
    b'data: {"type":"content_block_stop","index":@}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":@}}\n\n'
    b'data: {"type":"message_stop"}\n\n',
    "gemini": b'data: {"candidates":[{"index":@,"content":{"parts":[{"text":"hi"},{"functionCall":{"name":"f","args":{"a":@}}}]},'
    b'"finishReason":"STOP","citationMetadata":{"citations":[{"startIndex":@,"endIndex":@,"uri":"u"}]}}],"usageMetadata":'
    b'{"promptTokenCount":@,"candidatesTokenCount":@,"thoughtsTokenCount":@,"totalTokenCount":@},"createTime":@}\n\n',
    "ollama": b'{"created_at":@,"message":{"content":"hi","tool_calls":[{"function":{"index":@,"name":"f","arguments":{"a":@}}}]}}\n'
    b'{"done":true,"done_reason":"stop","total_duration":@,"prompt_eval_count":@,"eval_count":@,"status_code":@}\n',
    "openai_responses": b'data: {"type":"response.created","sequence_number":@,"response":{"id":"r","created_at":@}}\n\n'
    b'data: {"type":"response.output_item.added","output_index":@,"item":{"type":"message","id":"i","content":[]}}\n\n'
    b'data: {"type":"response.output_text.delta","output_index":@,"content_index":@,"item_id":"i","delta":"hi"}\n\n'
    b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":@,'
    b'"output_tokens":@,"input_tokens_details":{"cached_tokens":@}}}}\n\n',
    "cohere": b'data: {"type":"message-start","id":"x"}\n\n'
    b'data: {"type":"content-start","index":@,"delta":{"message":{"content":{"type":"text","text":""}}}}\n\n'
    b'data: {"type":"content-delta","index":@,"delta":{"message":{"content":{"text":"hi"}}}}\n\n'
    b'data: {"type":"citation-start","index":@,"delta":{"message":{"citations":{"start":@,"end":@,"text":"hi"}}}}\n\n'
    b'data: {"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":{"tokens":{"input_tokens":@,"output_tokens":@}}}}\n\n',
    "qwen_web": b'data: {"choices":[{"delta":{"content":"hi","phase":"answer"},"index":@}],"usage":{"input_tokens":@,'
    b'"output_tokens":@},"created":@}\n\ndata: {"choices":[{"delta":{"status":"finished"}}]}\n\ndata: [DONE]\n\n',
    "openai_completions": b'data: {"id":"x","created":@,"choices":[{"index":@,"text":"hi","finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":@,"completion_tokens":@}}\n\ndata: [DONE]\n\n',
    "bedrock_converse": b'{"output":{"message":{"role":"assistant","content":[{"text":"hi"}]}},"stopReason":"end_turn",'
    b'"usage":{"inputTokens":@,"outputTokens":@,"totalTokens":@,"cacheReadInputTokens":@},"metrics":{"latencyMs":@}}',
    "bedrock_invoke": b'{"inputTextTokenCount":@,"results":[{"tokenCount":@,"outputText":"hi","completionReason":"FINISH"}],'
    b'"prompt_token_count":@,"generation_token_count":@}',
}
ERROR = b'{"error":{"message":@,"code":@,"status":@,"type":@,"status_code":@,"retry_after":@,"metadata":{"error_type":@}}}'
FIELDS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


def filled(template: bytes, odd: bytes) -> list[bytes]:
    """The odd value in each place alone, with ones in the others, and in all places."""
    pieces = template.split(b"@")
    alone = [
        b"".join(piece + (odd if number == place else b"1") for number, piece in enumerate(pieces[:-1])) + pieces[-1]
        for place in range(len(pieces) - 1)
    ]
    return [*alone, odd.join(pieces)]


def read(name: str, body: bytes) -> list[streamglot.Event]:
    box = streamglot.reader(name)
    events = box.feed(body) + box.close()
    streamglot.check(events)
    return events


def written(events: list[streamglot.Event]) -> None:
    """Writes the events in every dialect."""
    response = streamglot.collect(events)
    for name, target in DIALECTS.items():
        if target.has_writer:
            box = streamglot.writer(name)
            assert box.feed(events) + box.close()
            if target.has_response:
                msgspec.json.encode(target.build_response(response))


@pytest.mark.parametrize("name", STREAMS)
def test_odd_numbers_cause_no_faults_and_no_usage(name: str) -> None:
    for body in (body for odd in ODD for body in filled(STREAMS[name], odd)):
        events = read(name, body)
        written(events)
        for event in events:
            if isinstance(event, Usage):
                counts = [getattr(event, field) for field in FIELDS]
                assert all(number is None or (type(number) is int and 0 <= number < 4 * MAX_TOKENS) for number in counts), event


@pytest.mark.parametrize("name", STREAMS)
def test_errors_full_of_odd_numbers_have_a_status_and_a_code(name: str) -> None:
    for body in (body for odd in ODD for body in filled(ERROR, odd)):
        for form in (body, b"data: " + body + b"\n\n"):
            last = read(name, form)[-1]
            assert isinstance(last, StreamError), form
            assert 400 <= last.status < 600, form
            assert len(last.code) <= 64, form
            written([last])


@pytest.mark.parametrize("name", STREAMS)
def test_negative_usage_is_none(name: str) -> None:
    """Checks the events, and what clients of the same dialect see."""
    for body in filled(STREAMS[name], b"-5"):
        events = read(name, body)
        target = DIALECTS[name]
        if target.has_writer and not isinstance(events[-1], StreamError):
            box = streamglot.writer(name)
            usage = (box.feed(events) + box.close()).lower().partition(b"usage")[2]
            assert b'tokens":-' not in usage
            assert b'count":-' not in usage


def test_counts() -> None:
    assert count({"a": None, "b": "7", "c": True, "d": 3}, "a", "b", "c", "d") == 3
    assert count({"a": -5}, "a") == 0
    assert count({"a": float("-inf")}, "a") == 0
    assert count({"a": 7.9}, "a") == 7
    assert count({"a": MAX_TOKENS}, "a") is None
    assert count({"a": float("nan")}, "a") is None


def test_a_usage_object_is_passed_on_without_counts_that_are_invalid() -> None:
    fine = {"prompt_tokens": 5, "cost": 0.1}
    assert plausible(fine) is fine
    odd = {"prompt_tokens": -5, "cost": -0.1, "details": {"cached_tokens": 10**30, "x": [{"tokenCount": -1, "modality": "TEXT"}]}}
    clean_one = {"prompt_tokens": 0, "cost": -0.1, "details": {"cached_tokens": 0, "x": [{"tokenCount": 0, "modality": "TEXT"}]}}
    assert plausible(odd) == clean_one
    deep: object = 1
    for _ in range(MAX_DEPTH + 2):
        deep = {"a": [deep]}
    assert b"1" not in msgspec.json.encode(plausible({"usage": deep}))


class Numbers(msgspec.Struct, frozen=True):
    number: float | None = None
    text: str = ""


class Nested(msgspec.Struct):
    one: Numbers = Numbers()
    many: list[Numbers] | None = None


def test_infinity_is_not_a_number() -> None:
    assert fit(Numbers, {"number": "inf", "text": "inf"}) == Numbers(None, "inf")
    assert fit(Numbers, {"number": "1.5"}) == Numbers(1.5)
    odd = {"one": {"number": "nan", "text": "a"}, "many": [{"number": "-Infinity", "text": "b"}, {"number": "2"}]}
    assert fit(Nested, odd) == Nested(Numbers(None, "a"), [Numbers(None, "b"), Numbers(2.0)])


def test_an_error_that_is_nested_endlessly_is_still_an_error() -> None:
    for depth in (500, 900):
        last = read("openai_chat", b'{"error":' * depth + b'"why"' + b"}" * depth)[-1]
        assert isinstance(last, StreamError)
        assert last.message == "why"
        body = b'{"error":{"message":"\\ud800x","more":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}}"
        last = read("gemini", body)[-1]
        assert isinstance(last, StreamError)
        assert last.detail is None


def test_a_value_that_is_nested_endlessly_is_refused() -> None:
    deep: object = 1
    for _ in range(DEEPEST):
        deep = [deep]
    assert clean(deep) == deep
    with pytest.raises(streamglot.UpstreamProtocolError, match="levels deep"):
        clean({"a": deep})
    arguments = "[" * 500 + '"\\ud800"' + "]" * 500
    assert DIALECTS["gemini"].has_writer
    box = streamglot.writer("gemini")
    call: list[streamglot.Event] = [
        streamglot.ToolCallStart("c", "f"),
        streamglot.ToolCallDelta(f'{{"a":{arguments}}}'),
        streamglot.ToolCallEnd(),
    ]
    assert box.feed([streamglot.StreamStart(), *call, streamglot.StreamEnd("tool_calls")]) + box.close()


def test_the_code_of_an_error_is_one_word_and_its_message_has_an_end() -> None:
    assert refusal({"code": "rate_limit_exceeded"}).code == "rate_limit_exceeded"
    assert refusal({"code": "a sentence, which is no code", "type": "api_error"}).code == "api_error"
    assert refusal({"code": "x" * 65}, 429).code == "rate_limit"
    assert refusal({"code": "²"}).status == 502
    assert refusal({"code": "0429"}).status == 502
    assert refusal({"code": "429"}).status == 429
    assert refusal({"code": True}).status == 502
    message = refusal({"message": "m" * 10**6}).message
    assert len(message) < MESSAGE_CHARS + 50
    assert message.endswith("… (1000000 in all)")
