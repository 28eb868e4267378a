"""The web chat: its reader, its request builder, and an answer of it written for a chat client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from split_checks import every_cut
from streamglot import ConfigError, Unsupported, UpstreamError, check, collect, dialect, translate
from streamglot.dialects import DIALECTS
from streamglot.dialects.qwen_web.read import QwenWebReader
from streamglot.dialects.qwen_web.request import build_chat
from vocabulary import *

build = DIALECTS["qwen_web"].build_request
STATE = {"chat_id": "chat-1", "parent_id": "p-1", "response_id": "r-1"}
CREATED = {"response.created": STATE}
LEARNT = [StreamStart("r-1"), Extra("qwen_web", STATE, "qwen_web")]
FINISHED = {"content": "", "phase": "answer", "status": "finished"}


def frame(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def stream(*deltas: dict[str, Any], created: bool = True, done: bool = False) -> bytes:
    frames = [frame({"choices": [{"delta": delta}]}) for delta in deltas]
    return (frame(CREATED) if created else b"") + b"".join(frames) + (b"data: [DONE]\n\n" if done else b"")


def say(content: str, phase: str = "answer", status: str = "typing", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "phase": phase, "status": status, **more}


def read(data: bytes) -> list[Event]:
    return every_cut(QwenWebReader, data)


# --- the reader


def test_the_state_of_the_conversation_the_answer_and_its_end() -> None:
    assert read(stream(say("I'll "), {"content": "read"}, FINISHED)) == [
        *LEARNT,
        TextStart(),
        TextDelta("I'll "),
        TextDelta("read"),
        TextEnd(),
        StreamEnd("end"),
    ]


def test_the_end_of_the_thinking_is_not_the_end_of_the_answer() -> None:
    thinking = [say("hm", "think"), say("", "think", "finished")]
    assert read(stream(*thinking, say("Yes"), FINISHED)) == [
        *LEARNT,
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(),
        TextStart(),
        TextDelta("Yes"),
        TextEnd(),
        StreamEnd("end"),
    ]
    assert read(stream(thinking[0], {"content": "", "status": "finished"}, {"content": "Yes"}, FINISHED)) == read(
        stream(*thinking, say("Yes"), FINISHED)
    )
    broken = read(stream(*thinking))
    assert isinstance(broken[-1], StreamError)
    assert broken[-1].code == "upstream_truncated"


def test_without_the_finish_marker_the_partial_answer_is_kept_as_a_truncation() -> None:
    events = read(stream(say("Half of"), say(" it")))
    assert events[:-1] == [*LEARNT, TextStart(), TextDelta("Half of"), TextDelta(" it"), TextEnd(complete=False)]
    assert isinstance(events[-1], StreamError)
    assert events[-1].code == "upstream_truncated"


def test_done_is_an_end_with_or_without_the_marker_and_nothing_after_it_counts() -> None:
    assert read(stream({"content": "Yes"}, created=False, done=True)) == [
        StreamStart(),
        TextStart(),
        TextDelta("Yes"),
        TextEnd(),
        StreamEnd("end"),
    ]
    assert read(stream(say("Yes"), FINISHED, done=True) + stream(say("no"), created=False))[-1] == StreamEnd("end")


def test_chunks_whose_blank_lines_were_lost() -> None:
    data = stream(say("Yes"), done=True)
    assert read(data.replace(b"\n\n", b"\n")) == read(data)
    assert read(data.replace(b"\n\n", b"\n") + b"data: {}\n")[-1] == StreamEnd("end")
    pretty = b'data: {"choices":\ndata: [{"delta":{"content":"Yes"}}]}\n\ndata: [DONE]\n\n'
    assert collect(read(pretty)).choices[0].text == "Yes"


def test_usage_runs_on_and_the_last_counts() -> None:
    first = {"input_tokens": 25, "output_tokens": 1, "input_tokens_details": {"text_tokens": 25}}
    second = {"output_tokens": 2, "cached_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}}
    chunks = [{"choices": [{"delta": say(text)}], "usage": usage} for text, usage in (("a", first), ("b", first), ("c", second))]
    events = read(b"".join(map(frame, chunks)) + stream(FINISHED, created=False))
    assert [event for event in events if isinstance(event, Usage)] == [
        Usage(25, 1, raw=first),
        Usage(25, 2, 4, None, 1, second),
    ]
    details = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}}
    assert read(frame({"usage": details}) + stream(say("x"), done=True))[1] == Usage(1, None, 1, raw=details)


@pytest.mark.parametrize(("word", "reason"), [("stop", "end"), ("length", "length"), ("odd", "other")])
def test_a_finish_reason_where_one_comes(word: str, reason: Any) -> None:
    body = {"choices": [{"delta": {"content": "x"}, "finish_reason": word}]}
    assert read(frame(body))[-1] == StreamEnd(reason, word)


def test_reasoning_in_a_field_of_its_own_and_text_after_the_marker() -> None:
    events = read(stream({"reasoning_content": "hm"}, say("a"), FINISHED, say("b")))
    assert events[2:4] == [ReasoningStart(), ReasoningDelta("hm")]
    assert collect(events).choices[0].text == "ab"


def test_summaries_of_the_thinking_are_emitted_once() -> None:
    def thought(content: Any) -> dict[str, Any]:
        return say("", "thinking_summary", extra={"summary_thought": {"content": content}})

    events = read(
        stream(thought(["First"]), thought(["First", "Then"]), thought(["First", "Then"]), thought("Other"), thought(3),
               say(" more", "thinking_summary"), say("", "thinking_summary", "finished"), say("Yes"), FINISHED)
    )  # fmt: skip
    assert events[2] == ReasoningStart(summary=True)
    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["First", "\n\nThen", "\n\nOther", " more"]


def test_a_call_whose_arguments_are_snapshots() -> None:
    def call(name: str | None, arguments: Any) -> dict[str, Any]:
        return {"function_call": {"name": name, "arguments": arguments}, "phase": "answer"}

    events = read(
        stream(
            say("Look."), call("f", ""), call("f", '{"a":'), call("f", '{"a":1}'), call(None, ""), call("g", {"b": 2}), FINISHED
        )
    )
    assert events[5:] == [
        ToolCallStart("call_r-1_1", "f"),
        ToolCallDelta('{"a":1}'),
        ToolCallEnd(),
        ToolCallStart("call_r-1_2", "g"),
        ToolCallDelta('{"b":2}'),
        ToolCallEnd(),
        StreamEnd("tool_calls"),
    ]
    assert read(stream(call(None, "{}"), say("x"), FINISHED))[-1] == StreamEnd("end")
    assert ToolCallDelta("{}") in read(stream(call("f", None), done=True))


def test_a_call_that_was_cut_off_is_kept_and_marked() -> None:
    half = {"function_call": {"name": "f", "arguments": '{"a":'}}
    for data in (stream(half), stream(half, done=True), stream(half) + frame({"error": {"message": "no"}})):
        events = read(data)
        assert events[2:5] == [ToolCallStart("call_r-1_1", "f"), ToolCallDelta('{"a":'), ToolCallEnd(complete=False)]
        assert isinstance(events[-1], StreamError)


def test_a_search_that_the_provider_runs() -> None:
    source = {"url": "https://a", "title": "A", "snippet": "about a", "date": 3}
    search = {"name": "web_search", "arguments": '{"queries":["a"]}'}
    events = read(
        stream(
            say("", "web_search", function_call=search, function_id="round_1"),
            {
                "role": "function",
                "content": "",
                "phase": "web_search",
                "function_id": "round_1",
                "extra": {"web_search_info": [source]},
            },
            say("", "web_search", "finished", extra={"web_search_info": [source, {"url": "https://b"}, {"title": "none"}, 3]}),
            say("Yes"),
            FINISHED,
        )
    )
    assert events[2:] == [
        ToolCallStart("round_1", "web_search", "server"),
        ToolCallDelta('{"queries":["a"]}'),
        ToolCallEnd(),
        ToolResult(
            "round_1",
            "",
            native=Echo("qwen_web", {"phase": "web_search", "content": "", "extra": {"web_search_info": [source]}}),
        ),
        Citation("https://a", "A", "about a", native=Echo("qwen_web", source)),
        Citation("https://b", native=Echo("qwen_web", {"url": "https://b"})),
        TextStart(),
        TextDelta("Yes"),
        TextEnd(),
        StreamEnd("end"),
    ]


def test_results_and_rounds_of_a_tool_that_the_provider_runs() -> None:
    run = {"phase": "code", "function_call": {"name": "run", "arguments": "{}"}}
    events = read(
        stream(
            {**run, "function_id": "a"}, {**run, "function_id": "b"}, {"role": "function", "content": "4"},
            {"role": "function", "content": ""}, {"role": "function", "content": "5"}, say("9"), FINISHED,
        )
    )  # fmt: skip
    assert [event.call_id for event in events if isinstance(event, ToolCallStart)] == ["a", "b"]
    assert [(event.call_id, event.content) for event in events if isinstance(event, ToolResult)] == [("b", "4"), ("call", "5")]
    assert events[-1] == StreamEnd("end")


def test_another_phase_with_text_ends_the_answer_too() -> None:
    assert read(stream(say("https://picture", "image_gen"), say("", "image_gen", "finished")))[-1] == StreamEnd("end")
    assert isinstance(read(stream(say("", "web_search", "finished")))[-1], StreamError)


@pytest.mark.parametrize(
    ("data", "code", "status"),
    [
        (b"", "upstream_empty", 502),
        (stream(done=True), "upstream_empty", 502),
        (stream(say("x")) + b"data: {", "upstream_truncated", 502),
        (stream(say("x")) + frame({"error": {"message": "no", "code": 429}}), "rate_limit", 429),
        (frame({"success": False, "data": {"code": "RateLimited", "details": "slow down"}}), "RateLimited", 429),
        (b'{"success":false,"data":{"code":"Bad_Request","details":"no"}}', "Bad_Request", 400),
        (b'{"success":false,"data":"gone"}', "upstream", 502),
        (b'{"success":false}', "upstream", 502),
        (b'{"success":true,"data":{}}', "upstream_protocol_error", 502),
        (b'{"ret":["punish"]}', "upstream_protocol_error", 502),
    ],
)
def test_a_body_that_is_not_an_answer_is_an_error(data: bytes, code: str, status: int) -> None:
    event = read(data)[-1]
    assert isinstance(event, StreamError)
    assert (event.code, event.status) == (code, status)


def test_an_answer_without_streaming() -> None:
    data = {
        "chat_id": "c",
        "parent_id": "p",
        "message_id": "m",
        "choices": [{"message": say("Yes")}],
        "usage": {"input_tokens": 1},
    }
    assert read(json.dumps({"success": True, "request_id": "q", "data": data}).encode()) == [
        StreamStart("m"),
        Extra("qwen_web", {"chat_id": "c", "parent_id": "p", "response_id": "m"}, "qwen_web"),
        TextStart(),
        TextDelta("Yes"),
        Usage(1, raw={"input_tokens": 1}),
        TextEnd(),
        StreamEnd("end"),
    ]
    assert read(b'{"choices":[{},{"delta":{"content":"Yes"},"finish_reason":"stop"}]}')[-1] == StreamEnd("end", "stop")


def test_comments_repeated_states_and_mistyped_fields() -> None:
    odd = {"response.created": {"response_id": 3}, "choices": [{"delta": {"content": 3, "extra": "x", "phase": None}}, {}]}
    events = read(b": wait\n\n" + frame(odd) + frame(odd) + stream(say("x"), FINISHED))
    assert events[:3] == [KeepAlive("wait"), StreamStart(), Extra("qwen_web", {"response_id": 3}, "qwen_web")]
    assert [event for event in events if isinstance(event, Extra)][1:] == [Extra("qwen_web", STATE, "qwen_web")]


WORDS = ["", "x", "answer", "think", "thinking_summary", "finished", "function"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["response.created", "choices", "delta", "content", "phase", "status", "role", "function_call", "name", "arguments",
         "extra", "web_search_info", "summary_thought", "url", "usage", "success", "data", "error"]), inner, max_size=6),
    max_leaves=16,
)  # fmt: skip


@given(st.lists(JSON, max_size=3), st.lists(JSON, max_size=4), st.binary(max_size=12))
def test_anything_gives_events_or_an_error(values: list[Any], deltas: list[Any], tail: bytes) -> None:
    reader = QwenWebReader()
    data = b"".join(map(frame, values)) + b"".join(frame({"choices": [{"delta": delta}]}) for delta in deltas) + tail
    check(reader.feed(data) + reader.close())


# --- to a chat client: the comparison case, an answer without a tool call

SENTENCE = "The package.json file contains 5 dependencies."


def chat_chunks(data: bytes) -> list[Any]:
    written = b"".join(
        translate([data], "qwen_web", "openai_chat", id="chatcmpl-1", model="qwen3-max", created=7, include_usage=True)
    )
    lines = [line.removeprefix(b"data: ") for line in written.split(b"\n\n") if line]
    return [line if line == b"[DONE]" else json.loads(line) for line in lines]


def test_an_answer_without_a_tool_call_chunk_for_chunk() -> None:
    usage = {"input_tokens": 20, "output_tokens": 10}
    body = {"choices": [{"delta": {"content": SENTENCE}}], "usage": usage}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "qwen3-max"}
    delta = {"role": "assistant", "content": SENTENCE}
    assert chat_chunks(frame(body) + b"data: [DONE]\n\n") == [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}},
        b"[DONE]",
    ]


def test_the_same_with_its_lines_as_the_example_prints_them() -> None:
    data = b'data: {"choices":[{"delta":{"content":"%b"}}]}\ndata: [DONE]\n' % SENTENCE.encode()
    first, last, done = chat_chunks(data)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": SENTENCE}
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"], done) == ({}, "stop", b"[DONE]")


# --- the request


def user(text: str) -> Message:
    return Message("user", [TextPart(text)])


def content(request: Request, **options: Any) -> str:
    text: str = build(request, **options).body["messages"][0]["content"]
    return text


def test_the_whole_request() -> None:
    request = Request(
        "qwen3-max", [user("Hi")], stream=True, reasoning=Reasoning(effort="high"), temperature=0.5, dialect="other"
    )
    built = build(request, chat_id="c", parent_id="p", message_id="m", timestamp=7)
    assert built.body == {
        "stream": True,
        "incremental_output": True,
        "chat_id": "c",
        "chat_mode": "normal",
        "model": "qwen3-max",
        "parent_id": "p",
        "messages": [
            {
                "fid": "m",
                "parentId": "p",
                "parent_id": "p",
                "childrenIds": [],
                "role": "user",
                "content": "Hi",
                "user_action": "chat",
                "files": [],
                "timestamp": 7,
                "models": ["qwen3-max"],
                "chat_type": "t2t",
                "sub_chat_type": "t2t",
                "feature_config": {"thinking_enabled": True, "output_schema": "phase"},
                "extra": {"meta": {"subChatType": "t2t"}},
            }
        ],
        "timestamp": 7,
    }
    assert built.dropped == ["reasoning.effort", "temperature"]
    assert build_chat(request, title="T", timestamp=7000) == {
        "title": "T",
        "models": ["qwen3-max"],
        "chat_mode": "normal",
        "chat_type": "t2t",
        "timestamp": 7000,
    }


CONVERSATION = [
    Message("system", [TextPart("Be kind.", cache="")], name="boss"),
    user("Read it."),
    Message("assistant", [
        ReasoningPart("hm"), TextPart("I look."), ToolCallPart("s", "search", "{}", "server"),
        ToolCallPart("c", "read", '{"a":1}'), ToolCallPart("d", "list", ""),
    ]),
    Message("tool", [ToolResultPart("c", [TextPart("it says")]), ToolResultPart("d", [TextPart("none")], is_error=True)]),
]  # fmt: skip
RESULTS = "<tool_response>\nit says\n</tool_response>\n<tool_response>\nError: none\n</tool_response>"


def test_a_chat_that_is_known_gets_the_newest_turn_only() -> None:
    assert content(Request(messages=CONVERSATION), parent_id="p") == RESULTS
    assert content(Request(messages=[*CONVERSATION, user("And?")]), parent_id="p") == RESULTS + "\n\nAnd?"


def test_the_state_of_a_stream_continues_the_conversation() -> None:
    wire = DIALECTS["qwen_web"]
    state = Echo("mine", {"chat_id": "c", "parent_id": "p", "response_id": "r"})
    answered = Message("assistant", [TextPart("x")], echo=state)
    request = Request(messages=[user("one"), answered, user("two")])
    options = wire.continuation(request, "mine", "m", 9)
    assert options == {"chat_id": "c", "parent_id": "r", "instructions": "", "message_id": "m", "timestamp": 9}
    assert wire.setup("http://x", request, **options) is None
    new: dict[str, Any] = {"message_id": "m", "timestamp": 9}
    assert wire.continuation(request, "another", "m", 9) == new
    assert wire.continuation(Request(messages=[user("one")]), "mine", "m", 9) == new
    assert wire.continuation(structs.replace(request, extra={"chat_id": "d"}), "mine", "m", 9) == new, "another chat"
    place = wire.endpoint("http://x", Request(), **options)
    assert place.url == "http://x/api/v2/chat/completions?chat_id=c"
    with pytest.raises(ConfigError, match="whole conversation"):
        DIALECTS["openai_chat"].continuation(request, "mine", "m", 9)


def test_a_new_chat_is_made_first() -> None:
    wire = DIALECTS["qwen_web"]
    setup = wire.setup("http://x", Request("qwen3-max"), key="token", timestamp=9)
    assert setup is not None
    assert (setup.endpoint.url, setup.endpoint.headers) == (
        "http://x/api/v2/chats/new",
        {"authorization": "Bearer token"},
    )
    assert setup.body == build_chat(Request("qwen3-max"), timestamp=9000)
    for body in ({"data": {"id": "c"}}, {"success": True, "data": {"chat_id": "c"}}, {"id": "c"}, {"chat_id": "c"}):
        assert setup.read(body) == {"chat_id": "c"}
    refused: dict[str, Any] = {"success": False, "data": {"code": "Unauthorized"}}
    others: list[Any] = [{"error": {"message": "no"}}, {}, [], {"data": {"id": 3}}]
    for wrong in (refused, *others):
        with pytest.raises(UpstreamError):
            setup.read(wrong)
    assert DIALECTS["openai_chat"].setup("http://x", Request()) is None


def test_a_new_chat_gets_the_whole_conversation() -> None:
    assert content(Request(messages=[CONVERSATION[0], user("Hi")])) == "Be kind.\n\nHi"
    bodies = ('{"name":"read","arguments":{"a":1}}', '{"name":"list","arguments":{}}')
    calls = "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    assert content(Request(messages=CONVERSATION)) == (
        f"Be kind.\n\nUser: Read it.\n\nAssistant: I look.\n{calls}\n\nUser: {RESULTS}"
    )
    assert build(Request(messages=CONVERSATION)).dropped == [
        "cache_control",
        "messages.reasoning",
        "messages.search",
        "messages.name",
    ]
    assert content(Request(messages=[Message("user", [RefusalPart("no")])])) == "no"


def test_tools_are_described_in_the_text_if_configured() -> None:
    request = Request(messages=[user("Hi")], tools=[ToolSpec("read")], output=OutputFormat())
    assert content(request, describe_tools=lambda tools: f"You have {tools[0].name}.") == "You have read.\n\nHi"
    request.tool_choice = ToolChoice("none")
    assert content(request) == "Hi"


@pytest.mark.parametrize(
    ("reasoning", "thinks", "dropped"),
    [
        (None, False, []),
        (Reasoning(enabled=True), True, []),
        (Reasoning(enabled=False, effort="none"), False, []),
        (Reasoning(effort="none"), False, []),
        (Reasoning(budget_tokens=9, summary="auto"), True, ["reasoning.budget_tokens", "reasoning.summary"]),
        (Reasoning(budget_tokens=0), False, []),
    ],
)
def test_thinking(reasoning: Reasoning | None, thinks: bool, dropped: list[str]) -> None:
    built = build(Request(messages=[user("Hi")], reasoning=reasoning))
    assert built.body["messages"][0]["feature_config"]["thinking_enabled"] is thinks
    assert built.dropped == dropped


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(messages=[Message("user", [MediaPart("image/png", "x")])]), "text only"),
        (Request(messages=[Message("tool", [ToolResultPart("c", [MediaPart("image/png", "x")])])]), "text only"),
        (Request(tools=[ToolSpec("f")]), "tools in the text"),
        (Request(output=OutputFormat("json_object")), "JSON"),
        (Request(stop=["x"]), "stop"),
    ],
)
def test_unsupported_requests_are_refused(request_: Request, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        build(request_)


def test_a_tool_cannot_be_required() -> None:
    for choice in (ToolChoice("required"), ToolChoice("auto", ["f"])):
        with pytest.raises(Unsupported, match="forced to call a tool"):
            build(Request(tools=[ToolSpec("f")], tool_choice=choice), describe_tools=str)


def test_no_client_uses_it() -> None:
    with pytest.raises(ConfigError, match="'qwen_web' cannot parse a request"):
        dialect("qwen_web").parse_request({})
    with pytest.raises(ConfigError, match="has no writer"):
        dialect("qwen_web").writer()
