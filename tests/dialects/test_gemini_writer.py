"""The writer of Gemini chunks: exact bytes, and what our own reader and the official client read from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from response_server import serve_response
from streamglot import collect, reader, writer
from streamglot.dialects.gemini import GEMINI
from streamglot.dialects.gemini import write as response
from streamglot.dialects.gemini.parts import read_signature, sign
from streamglot.dialects.gemini.wire import error_body, write_usage
from streamglot.dialects.gemini.write import GeminiWriter
from vocabulary import *

START = StreamStart("r1", "m1", 5)
OWN = Echo("gemini", {"thoughtSignature": "UzE="})
FOREIGN = Echo("elsewhere", {"signature": "~ä"})


def write(*events: Event, **options: Any) -> tuple[GeminiWriter, bytes]:
    box = writer("gemini", **options)
    assert isinstance(box, GeminiWriter)
    written = b"".join(box.feed([event]) for event in events) + box.close()
    return box, written


def chunks(*events: Event) -> list[dict[str, Any]]:
    lines = write(START, *events)[1].decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line[6:]) for line in lines]


def parts(*events: Event) -> list[dict[str, Any]]:
    """The parts of all chunks except the last, which only ends the answer."""
    *written, last = chunks(*events, StreamEnd("end"))
    assert last["candidates"][0]["content"] == {"role": "model", "parts": [{"text": ""}]}
    return [part for chunk in written for part in chunk["candidates"][0]["content"]["parts"]]


def test_exact_bytes() -> None:
    _, written = write(
        START,
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(),
        TextStart(),
        TextDelta("a\u2028b\u2029c\u0085é"),
        TextEnd(),
        Usage(9, 7, 2, None, 3),
        StreamEnd("end", "stop"),
    )
    about = b',"modelVersion":"m1","responseId":"r1"}\n\n'
    head = b'data: {"candidates":[{"index":0,"content":{"role":"model","parts":['
    assert written == (
        head + b'{"text":"hm","thought":true}]}}]' + about
        + head + b'{"text":"a\\u2028b\\u2029c\\u0085' + "é".encode() + b'"}]}}]' + about
        + head + b'{"text":""}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4,'
        b'"totalTokenCount":16,"thoughtsTokenCount":3,"cachedContentTokenCount":2}' + about
    )  # fmt: skip


def test_the_array_form() -> None:
    _, written = write(START, TextStart(), TextDelta("a"), TextEnd(), StreamEnd("length"), array=True)
    assert written.startswith(b'[{"candidates":[')
    assert b"}\r\n,{" not in written
    assert b'},\r\n{"candidates"' in written.replace(b"}}],", b"}],")
    assert [chunk["candidates"][0].get("finishReason") for chunk in json.loads(written)] == [None, "MAX_TOKENS"]
    _, refused = write(StreamError("slow_down", "wait", status=429), array=True)
    assert json.loads(refused)[0]["error"]["code"] == 429
    _, broken = write(START, TextStart(), TextDelta("a"), array=True)
    assert json.loads(broken)[1]["error"]["status"] == "UNAVAILABLE"


def test_without_a_name_and_an_id() -> None:
    assert write(StreamEnd("end"))[1].endswith(b'"finishReason":"STOP"}]}\n\n')


def test_there_is_never_a_comment() -> None:
    box, written = write(KeepAlive("early"), START, KeepAlive("x\ny"), StepEnd(1), StreamEnd("end"))
    assert written.count(b"data: ") == 2
    assert b"\n:" not in written
    assert not written.startswith(b":")
    assert not box.lost


def test_signatures_are_native_or_packed() -> None:
    packed = sign(FOREIGN)
    assert read_signature(packed) == FOREIGN
    hidden = Echo("gemini", {"thoughtSignature": "UzI=", "thought": False})
    assert parts(
        TextStart(), TextDelta("a"), TextEnd(OWN),
        ReasoningStart(), ReasoningEnd(FOREIGN, True),
        ReasoningStart(), ReasoningEnd(hidden, True),
        ToolCallStart("c", "f"), ToolCallDelta('{"a": 1}'), ToolCallEnd(OWN),
        ToolCallStart("d", "f"), ToolCallEnd(FOREIGN),
    ) == [
        {"text": "a"},
        {"text": "", "thoughtSignature": "UzE="},
        {"text": "", "thought": True, "thoughtSignature": packed},
        {"text": "", "thoughtSignature": "UzI="},
        {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}, "thoughtSignature": "UzE="},
        {"functionCall": {"id": "d", "name": "f", "args": {}}, "thoughtSignature": packed},
    ]  # fmt: skip
    box, _ = write(START, ReasoningStart(), ReasoningEnd(redacted=True), StreamEnd("end"))
    assert box.lost == {"ReasoningEnd": 1}


def test_arguments_stay_as_they_were_written() -> None:
    text = '{"zip": 1.50,\n "big": 12345678901234567890123}'
    _, written = write(
        START, ToolCallStart("c", "f"), *map(ToolCallDelta, text), ToolCallEnd(), StreamEnd("tool_calls", "tool_use")
    )
    assert b'"args":{"zip": 1.50,  "big": 12345678901234567890123}}' in written
    assert b'"finishReason":"STOP"' in written
    assert parts(ToolCallStart("c", "f", "custom"), ToolCallDelta("free\ntext"), ToolCallEnd()) == [
        {"functionCall": {"id": "c", "name": "f", "args": {"input": "free\ntext"}}}
    ]
    lone = parts(ToolCallStart("c", "f"), ToolCallDelta('{"a":"\\ud83d"}'), ToolCallEnd())
    assert lone == [{"functionCall": {"id": "c", "name": "f", "args": {"a": "\ufffd"}}}]
    assert (
        b"NaN" not in write(START, ToolCallStart("c", "f"), ToolCallDelta('{"a":NaN}'), ToolCallEnd(), StreamEnd("tool_calls"))[1]
    )


@pytest.mark.parametrize("arguments", ['{"half":', "[1]", "words"])
def test_a_malformed_call_is_not_run(arguments: str) -> None:
    events: list[Event] = [START, ToolCallStart("c", "f"), ToolCallDelta(arguments), ToolCallEnd(), StreamEnd("tool_calls")]
    box, written = write(*events)
    candidate = json.loads(written[6:])["candidates"][0]
    assert (candidate["finishReason"], candidate["finishMessage"]) == ("MALFORMED_FUNCTION_CALL", "Malformed function call: f")
    assert box.lost == {"ToolCallStart": 1}
    assert response.build(collect(events))["candidates"][0]["finishReason"] == "MALFORMED_FUNCTION_CALL"


@pytest.mark.parametrize("array", [False, True])
def test_a_call_that_cannot_be_read_has_the_finish_reason_of_this_dialect(array: bool) -> None:
    error = StreamError("tool_call_parse_error", "no JSON")
    box = GeminiWriter(array=array)
    written = box.feed([START, ToolCallStart("c", "f"), ToolCallDelta("{"), ToolCallEnd(complete=False), error]) + box.close()
    (chunk,) = json.loads(written) if array else [json.loads(written[6:])]
    candidate = chunk["candidates"][0]
    assert (candidate["finishReason"], candidate["finishMessage"]) == ("MALFORMED_FUNCTION_CALL", "no JSON")
    read = reader("gemini")
    last = [*read.feed(written), *read.close()][-1]
    assert isinstance(last, StreamError)
    assert last.code == "tool_call_parse_error"
    assert b'"error"' in GeminiWriter().feed([error]), "before the answer has begun it is an error like any other"


def test_a_call_that_was_cut_off_ends_with_the_limit() -> None:
    events: list[Event] = [
        START,
        ToolCallStart("c", "f"),
        ToolCallDelta('{"a": 1}'),
        ToolCallEnd(complete=False),
        StreamEnd("length"),
    ]
    assert json.loads(write(*events)[1][6:])["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert response.build(collect(events))["candidates"][0] == {
        "index": 0,
        "content": {"role": "model", "parts": [{"text": ""}]},
        "finishReason": "MAX_TOKENS",
    }


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (StreamEnd("content_filter", "RECITATION"), "RECITATION"),
        (StreamEnd("content_filter", "content_filter"), "SAFETY"),
        (StreamEnd("refusal"), "SAFETY"),
        (StreamEnd("tool_calls", "STOP"), "STOP"),
        (StreamEnd("end", "1"), "STOP"),
        (StreamEnd("end", "SAFETY"), "STOP"),
        (StreamEnd("pause"), "CONTINUATION"),
        (StreamEnd("cancelled"), "OTHER"),
    ],
)
def test_reasons(end: StreamEnd, word: str) -> None:
    assert chunks(end)[-1]["candidates"][0]["finishReason"] == word


def test_candidates() -> None:
    written = chunks(
        TextStart(), TextDelta("a"), TextEnd(),
        Choice(2, TextStart()), Choice(2, TextDelta("b")), Choice(2, TextEnd()), Choice(2, Usage(1)),
        Choice(2, Extra("gemini", {"candidate": {"avgLogprobs": -1}})), Choice(2, ReasoningStart()), Choice(2, ReasoningEnd()),
        Choice(2, StepEnd(1)), Choice(2, StreamEnd("length")), Choice(1, TextStart()), StreamEnd("end"),
    )  # fmt: skip
    ends = {c["index"]: c["finishReason"] for chunk in written for c in chunk["candidates"] if "finishReason" in c}
    assert ends == {0: "STOP", 1: "OTHER", 2: "MAX_TOKENS"}
    assert written[2]["candidates"][0]["avgLogprobs"] == -1


def test_errors() -> None:
    written = chunks(TextStart(), TextDelta("a"), TextEnd(), StreamError("busy", "later", status=503))
    assert written[1]["error"] == {
        "code": 503,
        "message": "later",
        "status": "UNAVAILABLE",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "busy", "domain": "streamglot"}],
    }
    assert error_body(StreamError("x", "y", status=418))["error"]["status"] == "INVALID_ARGUMENT"
    assert error_body(StreamError("x", "y", status=599))["error"]["status"] == "INTERNAL"


def test_metadata_waits_for_the_last_chunk() -> None:
    def extra(**fields: Any) -> Extra:
        return Extra("gemini", {"candidate": fields})

    last = chunks(
        extra(safetyRatings=[1], citationMetadata={"citationSources": [1], "x": 1}),
        extra(safetyRatings=[2], citationMetadata={"citationSources": [2], "x": 2}),
        TextStart(),
        TextDelta("é!"),
        Citation("u", "t", "", 1, 2),
        Citation("v"),
        Citation(native=Echo("gemini", {"citation": {}})),
        TextEnd(),
        StreamEnd("end"),
    )[-1]["candidates"][0]
    assert last["safetyRatings"] == [2]
    assert last["citationMetadata"] == {
        "citationSources": [1, 2, {"uri": "u", "title": "t", "startIndex": 2, "endIndex": 3}, {"uri": "v"}],
        "x": 2,
    }


def test_events_that_cannot_be_expressed_are_counted() -> None:
    box, _ = write(
        START, Extra("other", {"candidate": {}}), Extra("gemini", {"what": 1}), Citation(cited_text="x"),
        ToolCallStart("s", "search", "server"), ToolCallDelta("{}"), ToolCallEnd(), ToolResult("s", "found"),
        Media("audio/*", transcript="words"), StreamEnd("end"),
    )  # fmt: skip
    assert box.lost == {"Extra": 2, "Citation": 1, "ToolCallStart": 1, "ToolResult": 1, "Media": 1}
    box, _ = write(START, Choice(1, StreamStart()), Choice(1, StreamEnd()), StreamEnd())
    assert box.lost == {"StreamStart": 1}


def test_media_and_what_the_provider_ran() -> None:
    code, result = {"executableCode": {"code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}
    assert parts(
        ReasoningStart(), ReasoningEnd(Echo("gemini", {"thoughtSignature": "UzE=", "next": True}), True),
        Media("image/*", "iVBORw0K"), Media("image/*", url="https://x/y"), Media("audio/*", "QUJDR", id="a"),
        Media("audio/*", "EV", id="a"), Media("audio/*", "G", id="b"), Media("audio/*", "QUJD", id="c"),
        ToolCallStart("s", "code", "server", Echo("gemini", code)), ToolCallEnd(),
        ToolResult("s", "", native=Echo("gemini", result)),
        Extra("gemini", {"part": {"newKind": 1}}),
    ) == [
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}, "thoughtSignature": "UzE="},
        {"fileData": {"fileUri": "https://x/y"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "QUJD"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "QUJD"}},
        code,
        result,
        {"newKind": 1},
        {"inlineData": {"mimeType": "audio/wav", "data": "REU="}},
    ]  # fmt: skip


def test_media_that_no_client_can_decode_is_lost() -> None:
    events: list[Event] = [
        START,
        Media("image/png", "QU...JD"),
        Media("image/png", "QUJDR"),
        Media("image/png", "QUI"),
        StreamEnd(),
    ]
    box, written = write(*events)
    assert box.lost == {"Media": 2}
    assert written.count(b"inlineData") == 1
    assert b'"data":"QUI="' in written
    assert len(response.build(collect(events))["candidates"][0]["content"]["parts"]) == 1
    linked = response.build(collect([START, Media("image/png", url="u"), StreamEnd()]))
    assert linked["candidates"][0]["content"]["parts"] == [{"fileData": {"mimeType": "image/png", "fileUri": "u"}}]


def test_a_blocked_prompt() -> None:
    feedback = Extra("gemini", {"promptFeedback": {"blockReason": "SAFETY"}})
    assert chunks(feedback, Usage(3), StreamEnd("content_filter", "SAFETY")) == [
        {
            "promptFeedback": {"blockReason": "SAFETY"},
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 0, "totalTokenCount": 3},
            "modelVersion": "m1",
            "responseId": "r1",
        }
    ]
    assert "candidates" in chunks(feedback, TextStart(), TextDelta("a"), TextEnd(), StreamEnd("end"))[-1]


def test_usage_of_this_dialect_is_passed_on_unchanged() -> None:
    raw = {"promptTokenCount": 3, "trafficType": "X"}
    assert write_usage(Usage(3, None, raw=raw)) == raw
    assert write_usage(Usage()) is None


def test_numbers_for_enums_become_names() -> None:
    rating = {"category": 7, "probability": 1, "severity": 9, "blocked": False}
    written = chunks(
        Extra("gemini", {"candidate": {"safetyRatings": [rating], "logprobsResult": 5}}),
        Extra("gemini", {"promptFeedback": {"blockReason": 77}}),
        TextStart(),
        TextDelta("a"),
        TextEnd(),
        Usage(1, 2, raw={"promptTokenCount": 1, "trafficType": 1, "promptTokensDetails": [{"modality": 1, "tokenCount": 1}]}),
        StreamEnd("end", "1"),
    )[-1]
    candidate = written["candidates"][0]
    named = {"category": "HARM_CATEGORY_HARASSMENT", "probability": "NEGLIGIBLE", "blocked": False}
    assert candidate["safetyRatings"] == [named]
    assert candidate["finishReason"] == "STOP"
    assert written["promptFeedback"] == {"blockReason": "OTHER"}
    assert written["usageMetadata"] == {
        "promptTokenCount": 1,
        "trafficType": "ON_DEMAND",
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1}],
    }


def test_its_own_reader_gets_the_same_events_back() -> None:
    events: list[Event] = [
        StreamStart("r1", "m1"), ReasoningStart(summary=True), ReasoningDelta("hm"),
        ReasoningEnd(Echo("gemini", {"thoughtSignature": "UzE=", "offset": 2})),
        TextStart(), TextDelta("a"), TextDelta("b"), TextEnd(),
        ToolCallStart("c", "f"), ToolCallDelta('{"x":1}'), ToolCallEnd(OWN), StreamEnd("tool_calls", "STOP"),
    ]  # fmt: skip
    for array in (False, True):
        box = reader("gemini")
        assert box.feed(write(*events, array=array)[1]) + box.close() == events


# --- complete responses


def test_complete_responses_in_both_directions() -> None:
    body = {
        "candidates": [
            {
                "index": 0,
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "hm", "thought": True},
                        {"text": "hi", "thoughtSignature": "UzE="},
                        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "UzI="},
                        {"executableCode": {"code": "1"}},
                        {"codeExecutionResult": {"outcome": "OUTCOME_OK"}},
                        {"functionCall": {"id": "c", "name": "f", "args": {"a": [1]}}},
                    ],
                },
                "finishReason": "STOP",
                "safetyRatings": [{"category": "C"}],
            },
            {"index": 1, "content": {"role": "model", "parts": [{"text": "b"}]}, "finishReason": "MAX_TOKENS"},
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2},
        "modelVersion": "m1",
        "responseId": "r1",
    }
    answer = GEMINI.parse_response(body)
    assert answer.choices[0].stop_reason == "tool_calls"
    assert isinstance(answer.choices[0].parts[-1], ToolCallPart)
    assert response.build(answer) == body


def test_complete_responses_of_others() -> None:
    events: list[Event] = [
        START, TextStart(refusal=True), TextDelta("no"), TextEnd(),
        TextStart(), TextDelta("é"), Citation("u", "", "", 0, 1), TextEnd(FOREIGN),
        TextStart(), TextDelta("!"), Citation("v", "", "", 0, 1), Citation(cited_text="x"), TextEnd(),
        ToolCallStart("c", "f"), ToolCallEnd(), ToolResult("c", "ran"), StreamEnd("refusal"),
    ]  # fmt: skip
    candidate = response.build(collect(events))["candidates"][0]
    assert candidate["content"]["parts"] == [
        {"text": "no"},
        {"text": "é", "thoughtSignature": sign(FOREIGN)},
        {"text": "!"},
        {"functionCall": {"id": "c", "name": "f", "args": {}}},
    ]
    assert candidate["citationMetadata"]["citationSources"] == [
        {"uri": "u", "startIndex": 0, "endIndex": 2},
        {"uri": "v", "startIndex": 2, "endIndex": 3},
    ]
    assert candidate["finishReason"] == "SAFETY"


def test_complete_responses_that_failed() -> None:
    error = StreamError("busy", "later", status=503)
    assert response.build(collect([error])) == error_body(error)
    partial = response.build(collect([START, TextStart(), TextDelta("a"), TextEnd(), error]))
    assert "error" in partial
    assert "finishReason" not in partial["candidates"][0]
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
    assert response.build(GEMINI.parse_response(blocked)) == blocked
    rated = {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "a"}]}, "finishReason": "STOP"}]}
    assert response.build(GEMINI.parse_response({**rated, "promptFeedback": {"safetyRatings": []}})) == {
        **rated,
        "promptFeedback": {"safetyRatings": []},
    }
    odd = collect([START, Extra("gemini", {"candidate": {"x": 1}}), Extra("other", {}), StreamEnd("end")])
    assert response.build(odd)["candidates"][0]["x"] == 1
    odd.choices.clear()
    assert "candidates" not in response.build(odd)
    assert GEMINI.parse_response({"candidates": [{"content": {"parts": [{"text": "a"}]}}]}).choices[0].parts == [TextPart("a")]


# --- the official client


def sdk(body: bytes, media_type: str = "text/event-stream") -> tuple[list[Any], Any]:
    """The chunks that google-genai reads from these bytes, and the error that it raises."""
    genai = pytest.importorskip("google.genai")
    written: list[Any] = []
    with serve_response(body, media_type) as address:
        options = genai.types.HttpOptions(
            base_url=address, timeout=60_000, retry_options=genai.types.HttpRetryOptions(attempts=1)
        )
        client = genai.Client(api_key="key", http_options=options)
        try:
            if media_type == "application/json":
                written.append(client.models.generate_content(model="m", contents="q"))
            else:
                written.extend(client.models.generate_content_stream(model="m", contents="q"))
        except genai.errors.APIError as error:
            return written, error
    return written, None


ANSWER: list[Event] = [
    START, KeepAlive(), ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(FOREIGN), TextStart(), TextDelta("a\u2028\u0085b"),
    TextEnd(OWN), ToolCallStart("c", "f"), ToolCallDelta('{"a":\n1}'), ToolCallEnd(FOREIGN), Usage(9, 7, None, None, 3),
    StreamEnd("tool_calls", "tool_use"),
]  # fmt: skip


def test_the_official_client_reads_the_stream() -> None:
    written, error = sdk(write(*ANSWER)[1])
    assert error is None
    parts_read = [part for chunk in written for part in chunk.candidates[0].content.parts]
    assert "".join(part.text or "" for part in parts_read if not part.thought) == "a\u2028\u0085b"
    assert [part.text for part in parts_read if part.thought] == ["hm", ""]
    assert [part.thought_signature[:6] for part in parts_read if part.thought_signature] == [b"sglot1", b"S1", b"sglot1"]
    assert [(part.function_call.name, part.function_call.args) for part in parts_read if part.function_call] == [("f", {"a": 1})]
    assert written[-1].candidates[0].finish_reason.value == "STOP"
    assert (written[-1].usage_metadata.candidates_token_count, written[-1].usage_metadata.thoughts_token_count) == (4, 3)


def test_the_official_client_reads_the_complete_response() -> None:
    body = json.dumps(response.build(collect(ANSWER))).encode()
    written, error = sdk(body, "application/json")
    assert error is None
    assert written[0].function_calls[0].args == {"a": 1}
    assert written[0].candidates[0].content.parts[1].text == "a\u2028\u0085b"


def test_the_official_client_raises_what_we_report() -> None:
    written, error = sdk(write(START, TextStart(), TextDelta("a"), TextEnd(), StreamError("busy", "later", status=503))[1])
    assert [chunk.text for chunk in written] == ["a"]
    assert (error.code, error.status, error.message) == (503, "UNAVAILABLE", "later")
    written, error = sdk(write(START, TextStart(), TextDelta("a"))[1])
    assert error.code == 502
