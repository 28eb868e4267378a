"""Whole paths: a web chat's bytes, the in-band parser, chat chunks; and how calls follow text in chat streams."""

from __future__ import annotations

import json
from typing import Any

from streamglot import Event, PerChoice, inband, reader, writer
from streamglot.events import BareEvent, TextDelta, TextEnd, TextStart, ToolCallDelta, ToolCallEnd, ToolCallStart

READ = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {"filePath": {"type": "string"}}}},
}


def delta(content: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content, **more}}]}


CREATED = {"response.created": {"chat_id": "chat-123", "parent_id": "parent-456", "response_id": "resp-789"}}
WORDS = [
    {**delta("I'll ", role="assistant", phase="answer", status="typing"), "usage": {"input_tokens": 25, "output_tokens": 1}},
    delta("read "),
    delta("the "),
    delta("file.\n\n"),
]
FINISHED = {**delta("", phase="answer", status="finished"), "usage": {"input_tokens": 25, "output_tokens": 15}}


def through(*chunks: dict[str, Any]) -> list[Any]:
    """The chat payloads for these chunks of a web chat, each read and written as it arrives."""
    source, target = reader("qwen_web"), writer("openai_chat", model="qwen3-max", include_usage=True)
    parser = PerChoice(lambda: inband("tool_tags", tools=[READ]))
    written = b""
    for chunk in [*(f"data: {json.dumps(one)}\n\n".encode() for one in chunks), b"data: [DONE]\n\n"]:
        written += target.feed([given for event in source.feed(chunk) for given in parser.feed(event)])
    events: list[Event] = [given for event in source.close() for given in parser.feed(event)]
    written += target.feed([*events, *parser.close()]) + target.close()
    payloads = [frame.removeprefix("data: ") for frame in written.decode().strip().split("\n\n")]
    return [json.loads(payload) if payload.startswith("{") else payload for payload in payloads]


def content_of(payloads: list[Any]) -> str:
    deltas = [payload["choices"][0]["delta"] for payload in payloads[:-1] if payload["choices"]]
    return "".join(one.get("content") or "" for one in deltas)


def test_a_tool_call_in_tags_becomes_chunks_in_their_order() -> None:
    payloads = through(
        CREATED,
        *WORDS,
        delta("<read>\n"),
        delta("<filePath>/home/user/package.json</filePath>\n"),
        delta("</read>"),
        FINISHED,
    )
    assert payloads[0]["choices"][0]["delta"]["role"] == "assistant"
    kinds = []
    for payload in payloads[:-1]:
        if not payload["choices"]:
            kinds.append("usage")
            continue
        choice = payload["choices"][0]
        if choice["finish_reason"]:
            kinds.append(choice["finish_reason"])
        elif "tool_calls" in choice["delta"]:
            call = choice["delta"]["tool_calls"][0]
            kinds.append("start" if "id" in call else "arguments")
        else:
            kinds.append("text")
    order = [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
    assert order == ["text", "start", "arguments", "tool_calls", "usage"]
    assert payloads[-1] == "[DONE]"
    assert content_of(payloads) == "I'll read the file."
    calls = [
        one["choices"][0]["delta"]["tool_calls"][0]
        for one in payloads[:-1]
        if one["choices"] and "tool_calls" in one["choices"][0]["delta"]
    ]
    assert calls[0]["index"] == 0
    assert calls[0]["type"] == "function"
    assert calls[0]["function"] == {"name": "read", "arguments": ""}
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"filePath": "/home/user/package.json"}
    usage = payloads[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (25, 15, 40)


def test_malformed_tags_are_text_and_nothing_is_lost() -> None:
    payloads = through(CREATED, *WORDS, delta("<read><filePath>/test.js"), delta("</read>"), FINISHED)
    assert content_of(payloads) == "I'll read the file.\n\n<read><filePath>/test.js</read>"
    assert payloads[-3]["choices"][0]["finish_reason"] == "stop"


def test_tags_that_the_end_cuts_off_are_text_and_nothing_is_lost() -> None:
    payloads = through(CREATED, delta("Let me read it.\n\n"), delta("<read>\n<filePath>/test"), FINISHED)
    assert content_of(payloads) == "Let me read it.\n\n<read>\n<filePath>/test"
    assert payloads[-3]["choices"][0]["finish_reason"] == "stop"


# --- the four orders of content and calls in chat streams


def fragments(index: int, name: str, *arguments: str, content: str | None = None) -> list[dict[str, Any]]:
    """The chunks of one call: id and name first, then the arguments piece by piece."""
    first: dict[str, Any] = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
    calls: list[dict[str, Any]] = [first, *({"index": index, "function": {"arguments": piece}} for piece in arguments)]
    beside = {} if content is None else {"content": content}
    return [{"tool_calls": [call], **beside} for call in calls]


def events_of(deltas: list[dict[str, Any]], finish: str) -> list[list[Event]]:
    """The events of each chunk."""
    box = reader("openai_chat")
    chunks = [*({"id": "c", "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas)]
    chunks.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    given = [box.feed(f"data: {json.dumps(chunk)}\n\n".encode()) for chunk in chunks]
    return [*given, box.feed(b"data: [DONE]\n\n")]


def blocks(given: list[list[Event]]) -> list[BareEvent]:
    kinds = (TextStart, TextEnd, ToolCallStart, ToolCallEnd)
    return [event for some in given for event in some if isinstance(event, kinds)]


def test_content_only() -> None:
    given = events_of([{"role": "assistant", "content": "Here"}, {"content": " are the major"}, {"content": " islands."}], "stop")
    assert [event.text for some in given for event in some if isinstance(event, TextDelta)] == [
        "Here",
        " are the major",
        " islands.",
    ]
    assert all(len(some) > 0 for some in given[:3])
    assert blocks(given) == [TextStart(), TextEnd()]


def test_several_calls_without_content() -> None:
    deltas = [
        *fragments(0, "get_weather", '{"lo', '": "Tokyo', '"}'),
        *fragments(1, "get_weather", '{"lo', '"}'),
        *fragments(2, "get_time", "{}"),
    ]
    given = events_of(deltas, "tool_calls")
    starts = [position for position, some in enumerate(given) if any(isinstance(event, ToolCallStart) for event in some)]
    ends = [position for position, some in enumerate(given) if any(isinstance(event, ToolCallEnd) for event in some)]
    assert starts == [0, 4, 7]
    assert ends == [4, 7, 9], "a call is complete as soon as the next one starts, the last with the finish"
    assert [event.args for event in given[1] if isinstance(event, ToolCallDelta)] == ['{"lo']


def test_content_and_then_several_calls_with_empty_content_beside_them() -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "I'll get the weather"}, {"content": " for both"}]
    deltas += [*fragments(0, "get_weather", '{"location', '": "Tokyo"}', content=""), *fragments(1, "get_time", "{}", content="")]
    given = events_of(deltas, "tool_calls")
    assert blocks(given) == [
        TextStart(),
        TextEnd(),
        ToolCallStart("call_0", "get_weather"),
        ToolCallEnd(),
        ToolCallStart("call_1", "get_time"),
        ToolCallEnd(),
    ]
    assert isinstance(given[2][0], TextEnd), "the content is complete in the chunk in which the first call starts"


def test_long_content_and_then_calls() -> None:
    deltas: list[dict[str, Any]] = [{"content": f"word {number} "} for number in range(98)]
    deltas += [*fragments(0, "get_weather", "{}", content=""), *fragments(1, "get_weather", "{}", content="")]
    given = events_of(deltas, "tool_calls")
    assert sum(isinstance(event, TextDelta) for some in given for event in some) == 98
    assert len(blocks(given)) == 6
