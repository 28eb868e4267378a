"""The reader of Gemini chunks: small streams, complete and split anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from split_checks import every_cut
from streamglot import Limits, collect, reader
from streamglot.dialects.gemini.parts import Offsets
from streamglot.dialects.gemini.read import GeminiReader, PartialArgs, _raw_part, parse_path
from streamglot.errors import LimitExceeded, UpstreamProtocolError
from vocabulary import *

START = StreamStart("r1", "m1")


def chunk(*parts: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk of candidate 0; fields of the candidate are recognized by their names."""
    of_chunk: dict[str, Any] = {
        name: more.pop(name) for name in ("usageMetadata", "promptFeedback", "error", "createTime") if name in more
    }
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, **more}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "m1", "responseId": "r1", **of_chunk}


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: " + (c if isinstance(c, bytes) else json.dumps(c).encode()) + b"\r\n\r\n" for c in chunks)


def read(*chunks: Any, **options: Any) -> list[Event]:
    return every_cut(lambda: GeminiReader(**options), sse(*chunks))


def body(*chunks: Any) -> list[Event]:
    """The events between the start and the end."""
    events = read(*chunks)
    assert events[0] == START
    assert isinstance(events[-1], StreamEnd)
    return events[1:-1]


def text(*pieces: str, echo: Echo | None = None) -> list[Event]:
    return [TextStart(), *map(TextDelta, pieces), TextEnd(echo)]


def call(call_id: str, name: str, *args: str, echo: Echo | None = None) -> list[Event]:
    return [ToolCallStart(call_id, name), *map(ToolCallDelta, args), ToolCallEnd(echo)]


def signed(signature: str, **place: Any) -> Echo:
    return Echo("gemini", {"thoughtSignature": signature, **place})


# --- text, reasoning and the end of the stream


def test_text_and_reasoning() -> None:
    events = read(
        chunk({"text": "hm", "thought": True}),
        chunk({"text": "Good "}, {"text": "day"}),
        chunk({"text": ""}, finish="STOP", createTime="2026-01-02T03:04:05.678901234Z"),
    )
    assert events == [
        START,
        ReasoningStart(summary=True),
        ReasoningDelta("hm"),
        ReasoningEnd(),
        *text("Good ", "day"),
        StreamEnd("end", "STOP"),
    ]


def test_the_first_chunk_names_the_answer() -> None:
    first = chunk({"text": "a"}, finish="STOP", createTime="2026-01-02T03:04:05.678901Z")
    assert read(first)[0] == StreamStart("r1", "m1", 1767323045)
    assert read({**first, "createTime": "soon"})[0] == START


def test_a_finish_on_every_chunk_does_not_cut_the_text() -> None:
    assert body(chunk({"text": "a"}, finish="STOP"), chunk({"text": "b"}, finish="STOP")) == text("a", "b")


def test_input_that_ends_before_the_finish_was_cut() -> None:
    events = read(chunk({"text": "half"}))
    assert events[:-1] == [START, TextStart(), TextDelta("half"), TextEnd(complete=False)]
    assert isinstance(events[-1], StreamError)
    assert events[-1].code == "upstream_truncated"


def test_every_candidate_has_to_finish() -> None:
    first, second = chunk({"text": "a"}, finish="STOP"), chunk({"text": "b"}, index=1)
    assert isinstance(read(first, second)[-1], StreamError)
    assert isinstance(read(first, second, chunk(index=1, finish="STOP"))[-1], StreamEnd)


@pytest.mark.parametrize("finish", ["FINISH_REASON_UNSPECIFIED", 0, ""])
def test_an_unspecified_finish_is_none(finish: Any) -> None:
    assert isinstance(read(chunk({"text": "a"}, finish=finish))[-1], StreamError)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "end"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("CONTINUATION", "pause"),
        ("NEW_WORD", "other"),
        (1, "end"),
        (2, "length"),
        (8, "content_filter"),
        (9, "other"),
    ],
)
def test_reasons(finish: Any, reason: Any) -> None:
    assert read(chunk({"text": "a"}, finish=finish))[-1] == StreamEnd(reason, str(finish))


def test_a_call_that_the_provider_cannot_read_is_an_error() -> None:
    last = read(chunk({"text": "a"}, finish="MALFORMED_FUNCTION_CALL"))[-1]
    assert isinstance(last, StreamError)
    assert last.code == "tool_call_parse_error"


def test_a_blocked_prompt_is_a_proper_end() -> None:
    feedback = {"blockReason": "PROHIBITED_CONTENT", "safetyRatings": []}
    blocked = {"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}, "responseId": "r1", "modelVersion": "m1"}
    assert read(blocked, blocked) == [
        START,
        Extra("gemini", {"promptFeedback": feedback}),
        Usage(4, raw={"promptTokenCount": 4}),
        StreamEnd("content_filter", "PROHIBITED_CONTENT"),
    ]
    assert read({"promptFeedback": {"blockReason": 1}})[-1] == StreamEnd("content_filter", "1")
    unspecified = chunk({"text": "a"}, finish="STOP", promptFeedback={"blockReason": "BLOCKED_REASON_UNSPECIFIED"})
    assert read(unspecified)[-1] == StreamEnd("end", "STOP")


def test_both_casings() -> None:
    snake = {
        "candidates": [
            {
                "content": {
                    "parts": [{"text": "hm", "thought_signature": "c2ln"}, {"function_call": {"name": "f", "args": {"a_b": 1}}}]
                },
                "finish_reason": "STOP",
            }
        ],
        "usage_metadata": {"prompt_token_count": 3, "candidates_token_count": 2},
        "model_version": "m1",
        "response_id": "r1",
    }
    assert read(snake) == [
        START,
        *text("hm", echo=signed("c2ln")),
        *call("call_r1_1", "f", '{"a_b": 1}'),
        Usage(3, 2, raw={"promptTokenCount": 3, "candidatesTokenCount": 2}),
        StreamEnd("tool_calls", "STOP"),
    ]
    assert read(b'{"finish_reason": "STOP", oops')[-1].code == "not_json"  # type: ignore[union-attr]  # a StreamError


# --- signatures


def test_a_signature_is_the_echo_of_its_block() -> None:
    assert body(chunk({"text": "a"}), chunk({"text": "b", "thoughtSignature": "UzE="}), chunk({"text": "c"}, finish="STOP")) == [
        *text("a", "b", echo=signed("UzE=", offset=1)),
        *text("c"),
    ]
    assert body(chunk({"text": "a", "thoughtSignature": "UzE="}, finish="STOP")) == text("a", echo=signed("UzE="))


def test_a_signature_on_an_empty_part_signs_the_open_block() -> None:
    assert body(chunk({"text": "ab"}), chunk({"text": "", "thoughtSignature": "UzE="}, finish="STOP")) == text(
        "ab", echo=signed("UzE=", offset=2)
    )
    assert body(chunk({"text": "hm", "thought": True}), chunk({"thoughtSignature": "UzE="}, finish="STOP")) == [
        ReasoningStart(summary=True),
        ReasoningDelta("hm"),
        ReasoningEnd(signed("UzE=", offset=2, thought=False)),
    ]


@pytest.mark.parametrize(("part", "place"), [({"thought": True}, {}), ({"text": ""}, {"thought": False})])
def test_a_signature_with_nothing_to_sign_is_hidden_reasoning(part: dict[str, Any], place: dict[str, Any]) -> None:
    called = chunk({"functionCall": {"name": "f", "id": "c"}})
    assert body(called, chunk({**part, "thoughtSignature": "UzE="}, finish="STOP")) == [
        *call("c", "f", "{}"),
        ReasoningStart(summary=True),
        ReasoningEnd(signed("UzE=", **place), redacted=True),
    ]


def test_a_signature_on_an_image_comes_before_it() -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "UzE="}
    assert body(chunk({"text": "see"}, part, finish="STOP")) == [
        *text("see"),
        ReasoningStart(summary=True),
        ReasoningEnd(signed("UzE=", next=True), redacted=True),
        Media("image/png", "QUJD"),
    ]


def test_the_provider_tags_its_state() -> None:
    events = read(chunk({"text": "a", "thoughtSignature": "UzE="}, finish="STOP"), provider="vertex")
    assert TextEnd(Echo("gemini@vertex", {"thoughtSignature": "UzE="})) in events


# --- calls


def test_calls_are_whole_and_decide_the_reason() -> None:
    events = read(
        chunk(
            {"functionCall": {"id": "c1", "name": "f", "args": {"big": 12345678901234567890123}}, "thoughtSignature": "UzE="},
            {"functionCall": {"name": "f", "args": {}}},
            {"functionCall": {"name": "g"}},
            {"functionCall": {"name": "g", "args": None}},
            {"functionCall": {"id": "c1", "name": "h", "args": '{"in": "a string"}'}},
            {"functionCall": {"name": "i", "args": '"words"'}},
        ),
        chunk(finish="STOP"),
    )
    assert events == [
        START,
        *call("c1", "f", '{"big": 12345678901234567890123}', echo=signed("UzE=")),
        *call("call_r1_2", "f", "{}"),
        *call("call_r1_3", "g", "{}"),
        *call("call_r1_4", "g", "{}"),
        *call("call_r1_5", "h", '{"in": "a string"}'),
        *call("call_r1_6", "i", '"words"'),
        StreamEnd("tool_calls", "STOP"),
    ]


def test_an_unknown_finish_with_calls_means_the_calls() -> None:
    part = {"functionCall": {"name": "f"}}
    assert read(chunk(part, finish="NEW"))[-1] == StreamEnd("tool_calls", "NEW")
    assert read(chunk(part, finish="UNEXPECTED_TOOL_CALL"))[-1] == StreamEnd("other", "UNEXPECTED_TOOL_CALL")


def test_a_call_without_a_name() -> None:
    events = read(chunk({"functionCall": {"args": {"a": 1}}}, finish="STOP"))
    assert events[-1].code == "tool_call_without_name"  # type: ignore[union-attr]  # a StreamError
    assert body(chunk({"functionCall": {}}, {"text": "a"}, finish="STOP")) == text("a")


def partial(*pieces: Any, more: bool = True, **fields: Any) -> dict[str, Any]:
    """A fragment of a call. A piece is (path, value) or (path, value, will continue)."""
    kinds = {str: "stringValue", int: "numberValue", float: "numberValue", bool: "boolValue", type(None): "nullValue"}
    args = []
    for path, value, *going in pieces:
        args.append({"jsonPath": path, kinds[type(value)]: value, **({"willContinue": True} if going else {})})
    return {"functionCall": {**fields, **({"partialArgs": args} if args else {}), **({"willContinue": True} if more else {})}}


def test_arguments_by_path_flow_as_json() -> None:
    events = body(
        chunk({**partial(name="f"), "thoughtSignature": "UzE="}),
        chunk(partial(("$.list[0].name", "Eg", True))),
        chunk(partial(("$.list[0].name", "g\n"))),
        chunk(partial(("$.list[0].size", 2), ("$.list[0]['it''s']".replace("''", "\\'"), True))),
        chunk(partial(("$.list[2]", None), ("$.last", 1.5))),
        chunk(partial()),
        chunk(partial(("$.last2", ""), more=False)),
        chunk(partial(name="g")),
        chunk(partial(more=False), finish="STOP"),
    )
    pieces = [event.args for event in events if isinstance(event, ToolCallDelta)]
    assert pieces[:3] == ['{"list":[{"name":"Eg', "g\\n", '","size":2']
    assert json.loads("".join(pieces[:-1])) == {
        "list": [{"name": "Egg\n", "size": 2, "it's": True}, None, None],
        "last": 1.5,
        "last2": "",
    }
    assert events[-3:] == call("call_r1_2", "g", "{}")
    assert ToolCallEnd(signed("UzE=")) in events


def test_fragments_that_name_their_call_continue_it() -> None:
    events = read(
        chunk(partial(("$.a", "x", True), name="f", id="c")),
        chunk(partial(("$.a", "y", True), name="f", id="c")),
        chunk(partial(("$.a", "z"), name="f")),
        chunk(partial(("$.b", 1), name="f", id="d")),
        chunk(partial(more=False), finish="STOP"),
    )
    assert "".join(event.args for event in events if isinstance(event, ToolCallDelta)) == '{"a":"xyz{"b":1}'
    assert events.count(ToolCallEnd(complete=False)) == 1
    assert isinstance(events[-1], StreamError)
    assert events[-1].code == "tool_call_parse_error"


def test_a_whole_object_may_end_a_call_that_was_announced() -> None:
    announced = chunk(partial(name="f"))
    assert body(announced, chunk({"functionCall": {"args": {"a": 1}}}, finish="STOP")) == call("call_r1_1", "f", '{"a": 1}')


def test_a_call_that_was_promised_more_is_incomplete() -> None:
    events = read(chunk(partial(("$.a", "x", True), name="f")), chunk(finish="MAX_TOKENS"))
    assert events[-3:] == [ToolCallDelta('{"a":"x'), ToolCallEnd(complete=False), StreamEnd("length", "MAX_TOKENS")]


def test_a_path_into_a_closed_part_repeats_the_argument() -> None:
    box = PartialArgs()
    written = [
        box.add(parse_path(path), value)
        for path, value in (
            ("$.a.b", "x"),
            ("$.c[0]", 1),
            ("$.a.d", None),
            ("$.a.b", "y"),
            ("$.c[1]", 2),
            ("$.c", 3),
            ("$.e", 4),
            ("$.e.f", 5),
            ("$.g", 6),
            ("$.g", 7),
            ("$.h", "text"),
            ('$["k"][0][0]', False),
            ("$.k[1][0]", True),
            ("$.k[0][2]", "last"),
        )
    ]
    assert json.loads("".join(written) + box.close()) == {
        "a": {"b": "xy", "d": None},
        "c": 3,
        "e": {"f": 5},
        "g": 7,
        "h": "text",
        "k": [[False, None, "last"], [True]],
    }
    assert PartialArgs().close() == ""


def test_a_path_that_goes_back_in_the_stream() -> None:
    events = body(chunk(partial(("$.a.b", 1), ("$.c", 2), ("$.a.d", 3), name="f", more=False), finish="STOP"))
    written = "".join(event.args for event in events if isinstance(event, ToolCallDelta))
    assert json.loads(written) == {"a": {"b": 1, "d": 3}, "c": 2}


def test_a_path_of_the_wrong_kind_repeats_the_argument() -> None:
    box = PartialArgs()
    written = box.add(("a", 0), 1) + box.add(("a", "b"), 2) + box.close()
    assert json.loads(written) == {"a": {"0": 1, "b": 2}}


@pytest.mark.parametrize("path", ["", "$", "$[0]", "$.a..b", "$.a[*]", "$" + ".a" * 300])
def test_paths_that_name_no_place(path: str) -> None:
    with pytest.raises(UpstreamProtocolError, match="invalid path"):
        parse_path(path)


def test_gaps_in_lists_are_bounded() -> None:
    with pytest.raises(LimitExceeded):
        PartialArgs(Limits(block_chars=1000)).add(("a", 999_999_999), 1)
    box = PartialArgs()
    box.add(("a", 0), 1)
    box.add(("b",), 1)
    box.add(("a", 999_999_999), 1)
    with pytest.raises(UpstreamProtocolError, match="gap"):
        box.close()


def test_infinite_numbers_become_null_and_split_surrogate_pairs_are_joined() -> None:
    box = PartialArgs()
    written = box.add(("n",), float("inf")) + box.add(("s",), "\ud83d") + box.add(("s",), "\ude00é") + box.close()
    assert json.loads(written) == {"n": None, "s": "😀é"}


def test_a_fragment_without_a_value_is_ignored() -> None:
    part = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.a"}]}}
    assert body(chunk(part, finish="STOP")) == call("call_r1_1", "f", "{}")


# --- several candidates


def test_candidates_are_choices() -> None:
    two = {"candidates": [{"content": {"parts": [{"text": "a"}]}}, {"content": {"parts": [{"text": "b"}]}, "index": 1}]}
    end = {"candidates": [{"index": 1, "finishReason": "MAX_TOKENS"}, {"finishReason": "STOP"}]}
    assert read(two, end) == [
        StreamStart(),
        TextStart(),
        TextDelta("a"),
        Choice(1, TextStart()),
        Choice(1, TextDelta("b")),
        Choice(1, TextEnd()),
        Choice(1, StreamEnd("length", "MAX_TOKENS")),
        TextEnd(),
        StreamEnd("end", "STOP"),
    ]


def test_candidates_without_an_index_count_by_place() -> None:
    both = {"candidates": [{"content": {"parts": [{"text": word}]}, "finishReason": "STOP"} for word in "ab"]}
    events = read(both)
    assert Choice(1, TextDelta("b")) in events
    assert TextDelta("a") in events


def test_only_a_later_candidate_has_content() -> None:
    events = read(chunk({"functionCall": {"name": "f"}}, index=1, finish="STOP"))
    assert events[1] == Choice(1, ToolCallStart("call_r1_1_1", "f"))
    assert events[-2:] == [Choice(1, StreamEnd("tool_calls", "STOP")), StreamEnd("other")]


def test_an_index_out_of_reason() -> None:
    assert read(chunk({"text": "a"}, index=-1))[-1].code == "bad_candidate_index"  # type: ignore[union-attr]  # a StreamError


# --- usage


def test_usage_the_last_value_of_each_field_counts() -> None:
    events = read(
        chunk({"text": "a"}, usageMetadata={"promptTokenCount": 7, "toolUsePromptTokenCount": 3, "totalTokenCount": 10}),
        chunk({"text": "b"}, usageMetadata={"trafficType": "ON_DEMAND", "promptTokenCount": None}),
        chunk(
            finish="STOP",
            usageMetadata={
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 6,
                "cachedContentTokenCount": 4,
                "totalTokenCount": 21,
            },
        ),
        chunk(usageMetadata={"totalTokenCount": 21}),
    )
    usage = [event for event in events if isinstance(event, Usage)]
    assert [(u.input_tokens, u.output_tokens, u.cached_tokens, u.reasoning_tokens) for u in usage] == [
        (10, None, None, None),
        (10, None, None, None),
        (10, 11, 4, 6),
    ]
    assert usage[-1].raw == {
        "promptTokenCount": 7,
        "toolUsePromptTokenCount": 3,
        "totalTokenCount": 21,
        "trafficType": "ON_DEMAND",
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 6,
        "cachedContentTokenCount": 4,
    }


def test_usage_without_a_count_is_ignored() -> None:
    assert body(chunk({"text": "a"}, finish="STOP", usageMetadata={"trafficType": "X"})) == text("a")


# --- what the provider ran, media, metadata


def test_server_tools_are_calls_and_results_in_their_own_form() -> None:
    code, result = {"language": "PYTHON", "code": "1+1"}, {"outcome": "OUTCOME_FAILED", "output": "no"}
    search, found = {"id": "s", "toolType": "GOOGLE_SEARCH", "args": {"q": "x"}}, {"id": "s", "response": {"a": 1}}
    assert body(
        chunk({"text": "a"}, {"executableCode": code, "thoughtSignature": "UzE="}, {"codeExecutionResult": result}),
        chunk({"toolCall": search}, {"toolResponse": found}, {"toolCall": {}}, {"toolResponse": {}}),
        chunk({"functionResponse": {"name": "f", "response": {"b": 2}}}, finish="STOP"),
    ) == [
        *text("a"),
        ToolCallStart(
            "call_r1_server_1", "code_execution", "server", Echo("gemini", {"executableCode": code, "thoughtSignature": "UzE="})
        ),
        ToolCallDelta('{"language":"PYTHON","code":"1+1"}'),
        ToolCallEnd(),
        ToolResult("call_r1_server_1", "no", True, Echo("gemini", {"codeExecutionResult": result})),
        ToolCallStart("s", "GOOGLE_SEARCH", "server", Echo("gemini", {"toolCall": search})),
        ToolCallDelta('{"q":"x"}'),
        ToolCallEnd(),
        ToolResult("s", '{"a":1}', False, Echo("gemini", {"toolResponse": found})),
        ToolCallStart("call_r1_server_3", "tool", "server", Echo("gemini", {"toolCall": {}})),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolResult("call_r1_server_3", "", False, Echo("gemini", {"toolResponse": {}})),
        ToolResult("f", '{"b":2}', False, Echo("gemini", {"functionResponse": {"name": "f", "response": {"b": 2}}})),
    ]
    assert read(chunk({"executableCode": code}, finish="STOP"))[-1] == StreamEnd("end", "STOP")


def test_media() -> None:
    draft = {"thought": True, "inlineData": {"mimeType": "image/png", "data": "QUJD"}}
    assert body(
        chunk({"inlineData": {"mimeType": "image/png", "data": "QUJD"}}, {"fileData": {"fileUri": "gs://a/b"}}),
        chunk(draft, {"thought": True, "fileData": {"fileUri": "gs://c"}}, {"inlineData": {}}, finish="STOP"),
    ) == [
        Media("image/png", "QUJD"),
        Media("application/octet-stream", url="gs://a/b"),
        Extra("gemini", {"part": draft}),
    ]


def test_citations_and_grounding() -> None:
    cited = {"citations": [{"startIndex": 2, "endIndex": 5, "uri": "u", "title": "t"}, {"endIndex": 99}, {"startIndex": "x"}, 3]}
    web, store = {"web": {"uri": "w", "title": "W"}}, {"retrievedContext": {"text": "from", "title": 5}}
    grounding = {
        "groundingChunks": [web, store, {"other": {}}, web],
        "groundingSupports": [
            {"segment": {"endIndex": 5}, "groundingChunkIndices": [0, 7, "x"]},
            {"segment": None, "groundingChunkIndices": None},
        ],
    }
    last = chunk({"text": "b"}, finish="STOP", citationMetadata=cited, groundingMetadata=grounding)
    native = [Echo("gemini", {"citation": entry}) for entry in cited["citations"]]
    wanted = [
        Citation("u", "t", "", 1, 2, native[0]),
        Citation("", "", "", 0, 3, native[1]),
        Citation("", "", "", None, None, native[2]),
        Citation("w", "W", "", 0, 2, Echo("gemini", {"groundingChunk": web})),
        Citation("", "", "from", None, None, Echo("gemini", {"groundingChunk": store})),
        Citation("w", "W", "", None, None, Echo("gemini", {"groundingChunk": web})),
    ]
    events = body(
        chunk({"text": "é€"}), last, chunk(citationMetadata={"citationSources": [cited["citations"][0]]}, finish="STOP")
    )
    citations = [event for event in events if isinstance(event, Citation)]
    assert citations == wanted
    assert [event.data["candidate"].popitem()[0] for event in events if isinstance(event, Extra)] == [
        "citationMetadata",
        "groundingMetadata",
        "citationMetadata",
    ]
    assert (
        body(chunk({"text": "x"}, finish="STOP", citationMetadata=[], groundingMetadata={"groundingChunks": 1}))[:2]
        == text("x")[:2]
    )


def test_a_citation_of_an_earlier_text_has_no_place_in_the_newest() -> None:
    events = body(
        chunk({"text": "ab", "thoughtSignature": "UzE="}, {"text": "cd"}),
        chunk(
            finish="STOP",
            citationMetadata={"citations": [{"endIndex": 2, "uri": "u"}, {"startIndex": 2, "endIndex": 3, "uri": "v"}]},
        ),
    )
    assert [(c.url, c.start, c.end) for c in events if isinstance(c, Citation)] == [("u", None, None), ("v", 0, 1)]


def test_a_citation_after_reasoning_ends_it() -> None:
    metadata = {"citations": [{"uri": "u"}]}
    assert [type(event) for event in body(
        chunk({"text": "hm", "thought": True}, citationMetadata=metadata), chunk({"text": "a"}, finish="STOP")
    )] == [ReasoningStart, ReasoningDelta, ReasoningEnd, Citation, Extra, TextStart, TextDelta, TextEnd]  # fmt: skip


def test_offsets_in_both_directions() -> None:
    offsets = Offsets()
    assert (offsets.characters(3), offsets.bytes(3)) == (0, 0)
    offsets.add("aé")
    assert offsets.characters(3) == 2
    offsets.add("€b")
    assert [offsets.characters(place) for place in (0, 1, 3, 6, 7, 50)] == [0, 1, 2, 3, 4, 4]
    assert [offsets.bytes(place) for place in (0, 1, 2, 3, 4, 50)] == [0, 1, 3, 6, 7, 7]


def test_metadata_of_a_candidate_is_emitted_once() -> None:
    ratings, logprobs = [{"category": "C"}], {"chosenCandidates": [{"token": "a"}]}
    first = chunk({"text": "a"}, safetyRatings=ratings, logprobsResult=logprobs)
    events = body(first, first, chunk(finish="STOP", finishMessage="bye", avgLogprobs=-0.5, tokenCount=2, continuationToken="x"))
    assert [event.data["candidate"] for event in events if isinstance(event, Extra)] == [
        {"safetyRatings": ratings},
        {"logprobsResult": logprobs},
        {"logprobsResult": logprobs},
        {"finishMessage": "bye"},
        {"avgLogprobs": -0.5},
        {"tokenCount": 2},
        {"continuationToken": "x"},
    ]
    assert any("urlContextMetadata" in str(event) for event in body(chunk(finish="STOP", urlContextMetadata={"urlMetadata": []})))


def test_parts_of_an_unknown_kind_are_kept() -> None:
    assert body(chunk({"newKind": {"x": 1}}, {}, {"text": "a", "videoMetadata": {"fps": 1}}, finish="STOP")) == [
        Extra("gemini", {"part": {"newKind": {"x": 1}}}),
        TextStart(),
        TextDelta("a"),
        Extra("gemini", {"part": {"videoMetadata": {"fps": 1}}}),
        TextEnd(),
    ]
    mixed = {"candidates": [{"content": {"parts": [5, {"text": [5]}, {"new": 1}]}, "finishReason": "STOP"}]}
    assert isinstance(read(mixed)[-1], StreamEnd)
    assert _raw_part(b'{"candidates": 5}', 0, 0) is None


# --- other framings


def array(*chunks: Any) -> bytes:
    return b"[" + b"\r\n,\r\n".join(json.dumps(c, indent=1).encode() for c in chunks) + b"\r\n]\r\n"


def test_the_streamed_array() -> None:
    chunks = chunk({"text": "a{["}), chunk({"text": 'b"'}, finish="STOP")
    assert every_cut(GeminiReader, array(*chunks)) == read(*chunks)
    assert isinstance(every_cut(GeminiReader, array(*chunks)[:-20])[-1], StreamError)
    assert every_cut(GeminiReader, b"[]")[-1].code == "upstream_truncated"
    broken = every_cut(
        GeminiReader, array(chunks[0], {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}})
    )
    assert broken[1:-1] == [TextStart(), TextDelta("a{["), TextEnd(complete=False)]
    assert broken[-1].code == "RESOURCE_EXHAUSTED"
    assert (broken[-1].status, broken[-1].retryable) == (429, True)


def test_an_array_live() -> None:
    box = reader("gemini")
    assert box.feed(array(chunk({"text": "a"}), chunk(finish="STOP"))[:-60]) == [START, TextStart(), TextDelta("a")]


def test_one_object_instead_of_a_stream() -> None:
    answer = chunk({"text": "a"})
    assert every_cut(GeminiReader, json.dumps(answer).encode())[-1] == StreamEnd("other")
    pair = json.dumps(answer).encode() + b"\n" + json.dumps(chunk({"text": "b"}, finish="STOP")).encode()
    assert every_cut(GeminiReader, pair) == [START, *text("a", "b"), StreamEnd("end", "STOP")]
    detail = {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}
    refused = every_cut(GeminiReader, json.dumps({"error": detail}).encode())
    assert refused == [StreamError("INVALID_ARGUMENT", "bad", status=400, detail=detail)]


def test_scenarios_are_answered_without_streaming() -> None:
    assert collect(GeminiReader().read_whole(chunk({"text": "a"}))).choices[0].text == "a"
    assert GeminiReader().read_whole({"promptFeedback": {"blockReason": "OTHER"}})[-1] == StreamEnd("content_filter", "OTHER")
    assert "has no candidates" in GeminiReader().read_whole({"x": 1})[-1].message  # type: ignore[union-attr]  # a StreamError


def test_errors_in_the_stream() -> None:
    events = read(chunk({"text": "a"}), {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}})
    assert events[1:-1] == [TextStart(), TextDelta("a"), TextEnd(complete=False)]
    assert isinstance(events[-1], StreamError)
    assert (events[-1].code, events[-1].status) == ("UNAVAILABLE", 503)


def test_an_error_in_bare_lines_after_the_finish() -> None:
    error = json.dumps({"error": {"code": 499, "message": "gone", "status": "CANCELLED"}}, indent=2).encode()
    good = sse(chunk({"text": "a"}, finish="STOP"))
    events = every_cut(GeminiReader, good + error)
    assert events[-1].code == "CANCELLED"
    assert every_cut(GeminiReader, good + error[:-2])[-1].code == "upstream_truncated"
    assert every_cut(GeminiReader, good + b"note\n")[-1] == StreamEnd("end", "STOP")
    small = Limits(event_bytes=99, line_bytes=500)
    endless = b"x: y\n{\n" + b'"a": 1,\n' * 20
    assert every_cut(lambda: GeminiReader(limits=small), endless)[-1].code == "limit_event_bytes"


def test_frames_that_are_not_an_object() -> None:
    good = chunk({"text": "a"}, finish="STOP")
    assert read(good, b"[DONE]") == read(good)
    assert read(b'"[DONE]"', good) == read(good)
    assert read([good, {}]) == read(good)
    for wrong in (b"[1]", b"true"):
        assert read(wrong)[-1].code == "upstream_protocol_error"  # type: ignore[union-attr]  # a StreamError
    assert read(b"oops")[-1].code == "not_json"  # type: ignore[union-attr]  # a StreamError


def test_comments_and_blank_chunks() -> None:
    data = b": hi\n\n" + sse({}, chunk({"text": "a"}, finish="STOP"))
    assert every_cut(GeminiReader, data)[:2] == [KeepAlive("hi"), START]


def test_mistyped_fields_are_left_out() -> None:
    odd = {
        "candidates": [
            {"index": "0", "content": {"parts": [{"text": "a", "thought": "no?", "functionCall": 5, "thoughtSignature": 7}]}},
            7,
        ],
        "usageMetadata": {"promptTokenCount": "many", "totalTokenCount": 1e300, "candidatesTokenCount": 3.0},
        "responseId": 5,
    }
    events = read(odd, chunk(finish="STOP"))
    assert TextDelta("a") in events
    assert isinstance(events[-1], StreamEnd)
    deep = b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":' + b"[" * 3000 + b"]" * 3000 + b"}}]}}]}"
    assert isinstance(read(deep)[-1], StreamError)


def test_surrogates_cut_between_two_chunks() -> None:
    halves = [chunk({"text": "x\ud83d"}), chunk({"text": "\ude00"}, finish="STOP")]
    assert "".join(event.text for event in read(*halves) if isinstance(event, TextDelta)) == "x😀"
