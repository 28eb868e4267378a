"""Calls in a history, numbers in arguments, and what the writers of two strict dialects never produce."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import streamglot
from agents.turns import Call, Turn
from agents.wires import streamed as wire
from gateway.dialect_clients import body_of, in_turn, path_of
from gateway.running import Running
from gateway.scenarios import DONE, PLAIN, called, calls, chunk
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, sse, streamed
from recordings import recordings
from streamglot.framing.sse import Sse
from vocabulary import *

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
CLIENTS = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui", "vercel_ui")
ENDS = {
    "openai_chat": PLAIN,
    **{name: b"".join(wire(name, Turn(text="Hello"), "m")) for name in WIRES if name != "openai_chat"},
}
MEDIA = {"ollama": "application/x-ndjson"}
DISABLED: Any = ...


def history(client: str, model: str, arguments: Any) -> dict[str, Any]:
    """A request whose history has a call with these arguments, as the client writes it."""
    given = {} if arguments is DISABLED else arguments
    body = body_of(client, model, True, ("ping",))
    call: dict[str, Any]
    result: dict[str, Any]

    def put(field: str, whole: dict[str, Any]) -> dict[str, Any]:
        return whole if arguments is DISABLED else {**whole, field: given}

    match client:
        case "openai_chat":
            call = {"id": "a", "type": "function", "function": put("arguments", {"name": "ping"})}
            result = {"role": "tool", "tool_call_id": "a", "content": "pong"}
            body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
        case "openai_responses":
            call = put("arguments", {"type": "function_call", "call_id": "a", "name": "ping"})
            asked = {"role": "user", "content": "q"}
            body["input"] = [asked, call, {"type": "function_call_output", "call_id": "a", "output": "pong"}]
        case "anthropic":
            call = put("input", {"type": "tool_use", "id": "a", "name": "ping"})
            result = {"type": "tool_result", "tool_use_id": "a", "content": "pong"}
            body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        case "gemini":
            call = {"functionCall": put("args", {"name": "ping"})}
            result = {"functionResponse": {"name": "ping", "response": {"result": "pong"}}}
            body["contents"] += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
        case "ollama":
            call = {"function": put("arguments", {"name": "ping"})}
            result = {"role": "tool", "tool_name": "ping", "content": "pong"}
            body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
        case "agui":
            call = {"id": "a", "type": "function", "function": put("arguments", {"name": "ping"})}
            body["messages"] += [
                {"id": "2", "role": "assistant", "toolCalls": [call]},
                {"id": "3", "role": "tool", "toolCallId": "a", "content": "pong"},
            ]
        case _:
            part = put("input", {"type": "tool-ping", "toolCallId": "a", "state": "output-available", "output": "pong"})
            body["messages"].append({"id": "2", "role": "assistant", "parts": [part]})
    return body


def arguments_sent(via: str, body: dict[str, Any]) -> Any:
    """The arguments of the one call in a request to an upstream, as a value."""
    match via:
        case "openai_chat":
            found = [call["function"]["arguments"] for one in body["messages"] for call in one.get("tool_calls", ())]
            return json.loads(found[0])
        case "openai_responses":
            return json.loads(next(one["arguments"] for one in body["input"] if one.get("type") == "function_call"))
        case "anthropic":
            blocks = [block for one in body["messages"] if isinstance(one["content"], list) for block in one["content"]]
            return next(block["input"] for block in blocks if block["type"] == "tool_use")
        case "gemini":
            parts = [part for one in body["contents"] for part in one["parts"]]
            return next(part["functionCall"].get("args", {}) for part in parts if "functionCall" in part)
        case _:
            return next(call["function"]["arguments"] for one in body["messages"] for call in one.get("tool_calls", ()))


AS_TEXT = ("openai_chat", "openai_responses", "agui")
"""The dialects whose arguments are text."""


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENTS))
def test_a_call_without_arguments_in_the_history_is_sent_as_an_empty_object(
    gateway: Running, upstream: HostileUpstream, client: str, via: str
) -> None:
    """codex-relay#57: an empty text in the place of the arguments made every later request of the session fail."""
    name = f"empty-arguments-{client}-{via}"
    upstream.scripts[name] = streamed(ENDS[via], media_type=MEDIA.get(via, "text/event-stream"))
    for arguments in ["", " ", "{}", None, DISABLED] if client in AS_TEXT else [{}, None, DISABLED]:
        answer = gateway.ask(
            path_of(client, f"{UPSTREAM_NAMES[via]}/{name}"), history(client, f"{UPSTREAM_NAMES[via]}/{name}", arguments)
        )
        assert answer.status == 200, (arguments, answer.body)
        assert arguments_sent(via, upstream.requests(name)[-1].body) == {}


BIG = '{"account": 123456789012345678901234567890, "zip": "02139", "price": 1.10, "tiny": 1E-30, "flag": "true"}'
DIGITS = (b"123456789012345678901234567890", b"02139")


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENTS))
def test_numbers_and_texts_in_arguments_stay_as_the_model_wrote_them(
    gateway: Running, upstream: HostileUpstream, via: str, client: str
) -> None:
    """A zip code became the number 2139, and long integers lost digits, where gateways guessed the types of values."""
    name = f"digits-{via}-{client}"
    if via == "openai_chat":
        body = sse(calls(called(0, "call_1", "ping", BIG)), chunk({}, "tool_calls"), DONE)
    else:
        body = b"".join(wire(via, Turn(calls=[Call("call_1", "ping", json.loads(BIG))]), "m"))
    upstream.scripts[name] = streamed(body, media_type=MEDIA.get(via, "text/event-stream"))
    for stream in (True, False) if client not in ("agui", "vercel_ui") else (True,):
        answer = gateway.ask(
            path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream),
            body_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream, ("ping",)),
        )
        if stream and client in ("anthropic", "openai_chat", "agui", "openai_responses"):
            joined = _arguments_of_stream(client, answer.body)
        else:
            joined = answer.body.replace(b"\\", b"")
        for digits in DIGITS:
            assert digits in joined, (stream, joined)
        assert b'"02139"' in joined


def _arguments_of_stream(client: str, body: bytes) -> bytes:
    box = Sse()
    found = ""
    for frame in box.feed(body) + box.close():
        if frame.kind != "data" or frame.data == b"[DONE]":
            continue
        data = json.loads(frame.data)
        match client:
            case "anthropic":
                found += data.get("delta", {}).get("partial_json", "")
            case "openai_chat":
                deltas = [choice["delta"] for choice in data["choices"]]
                found += "".join(call["function"].get("arguments", "") for one in deltas for call in one.get("tool_calls", ()))
            case "agui":
                found += data["delta"] if data["type"] == "TOOL_CALL_ARGS" else ""
            case _:
                found += data["delta"] if data["type"] == "response.function_call_arguments.delta" else ""
    return found.encode()


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENTS))
def test_numbers_in_a_history_keep_their_digits(gateway: Running, upstream: HostileUpstream, client: str, via: str) -> None:
    name = f"digits-back-{client}-{via}"
    upstream.scripts[name] = streamed(ENDS[via], media_type=MEDIA.get(via, "text/event-stream"))
    given = BIG if client in AS_TEXT else json.loads(BIG)
    body = json.dumps(history(client, f"{UPSTREAM_NAMES[via]}/{name}", given)).encode()
    assert gateway.ask(path_of(client, f"{UPSTREAM_NAMES[via]}/{name}"), body).status == 200
    seen = upstream.requests(name)[-1]
    sent = arguments_sent(via, seen.body)
    assert (sent["zip"], sent["flag"]) == ("02139", "true")
    assert DIGITS[0] in seen.raw


# --- writers


def _shuffled(seed: int) -> list[Event]:
    """A stream of blocks in any order, some of them blank or empty."""
    source = random.Random(seed)
    blocks: list[list[Event]] = [
        [TextStart(), TextDelta("Hello"), TextEnd()],
        [TextStart(), TextDelta(" \n"), TextEnd()],
        [TextStart(), TextEnd()],
        [TextStart(), TextDelta(""), TextEnd()],
        [ReasoningStart(), ReasoningDelta("Hm."), ReasoningEnd()],
        [ReasoningStart(), ReasoningEnd()],
        [ToolCallStart("", "ping"), ToolCallDelta("{}"), ToolCallEnd()],
        [ToolCallStart("", "ping"), ToolCallEnd()],
        [KeepAlive()],
    ]
    events: list[Event] = [StreamStart("a", "m")]
    for number in range(source.randrange(1, 9)):
        block = source.choice(blocks)
        events += [ToolCallStart(f"c{number}", "ping") if isinstance(event, ToolCallStart) else event for event in block]
    reasons: list[Any] = ["end", "tool_calls", "length", "refusal", "content_filter", "other", "cancelled"]
    ends: list[Event] = [*map(StreamEnd, reasons), StreamError("x", "it broke")]
    events.append(source.choice(ends))
    return [*events, TextStart(), TextDelta("ghost"), TextEnd()]


def _frames(dialect: str, events: list[Event], live: bool) -> list[dict[str, Any]]:
    writer = streamglot.writer(dialect)
    end = next(place for place, event in enumerate(events) if isinstance(event, (StreamEnd, StreamError)))
    reads = [[event] for event in events[: end + 1]] if live else [events[: end + 1]]
    body = b"".join([*map(writer.feed, reads), writer.feed(events[end + 1 :]), writer.close()])
    box = Sse()
    return [json.loads(frame.data) for frame in box.feed(body) + box.close() if frame.kind == "data" and frame.data != b"[DONE]"]


@pytest.mark.parametrize("live", [True, False])
def test_no_message_has_content_that_locks_its_session(live: bool) -> None:
    """luthien #134, #356, #708: text behind a call, an empty text, or content behind the end of a message. The client keeps it
    in its history, and each later request fails with 400."""
    for seed in range(400):
        frames = _frames("anthropic", _shuffled(seed), live)
        blocks = {frame["index"]: frame["content_block"] for frame in frames if frame["type"] == "content_block_start"}
        kinds = [block["type"] for block in blocks.values()]
        assert "text" not in kinds[kinds.index("tool_use") :] if "tool_use" in kinds else True, seed
        for index, block in blocks.items():
            if block["type"] == "text":
                written = "".join(
                    frame["delta"].get("text", "") for frame in frames if frame.get("index") == index and "delta" in frame
                )
                assert written.strip(), seed
        types = [frame["type"] for frame in frames]
        for end in ("message_delta", "error"):
            if end in types:
                assert set(types[types.index(end) + 1 :]) <= {"message_stop"}, seed
        if "message_delta" in types:
            reason = frames[types.index("message_delta")]["delta"]["stop_reason"]
            assert (reason == "tool_use") <= ("tool_use" in kinds), seed


def check_lifecycle(frames: list[dict[str, Any]]) -> None:
    """The rules of the life of a response: numbers rise, each item and part is added before it grows and is done after it."""
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames[:2]] == ["response.created", "response.in_progress"]
    assert frames[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    failed = frames[-1]["type"] == "response.failed"
    items: dict[int, str] = {}
    parts: set[tuple[int, str, int]] = set()
    done: dict[int, dict[str, Any]] = {}
    for frame in frames[2:-1]:
        kind, index = frame["type"], frame.get("output_index")
        if kind == "response.output_item.added":
            assert index == len(items)
            items[index] = frame["item"]["id"]
            continue
        if index is None:
            continue
        assert index in items, kind
        assert index not in done, kind
        assert frame.get("item_id", items[index]) == items[index]
        place = next(((index, name, frame[name]) for name in ("content_index", "summary_index") if name in frame), None)
        if kind.endswith("part.added"):
            parts.add(place)  # type: ignore[arg-type]  # a part always has a place
        elif place is not None:
            assert place in parts, kind
        if kind == "response.output_item.done":
            done[index] = frame["item"]
    output = frames[-1]["response"]["output"]
    complete = list(done.values())
    assert [item for item in output if item in complete] == complete
    assert all(item.get("status", "incomplete") == "incomplete" for item in output if item not in complete)
    assert failed or len(output) == len(items)


@pytest.mark.parametrize("live", [True, False])
def test_every_response_has_its_whole_lifecycle(live: bool) -> None:
    """litellm PR#36356, PR#32777, #41009, llm-rosetta#56: indexes out of order, missing beginnings, an empty list at the end."""
    for seed in range(300):
        check_lifecycle(_frames("openai_responses", _shuffled(seed), live))
    for recording in recordings():
        frames = _frames("openai_responses", recording.expected(), live)
        if frames[0]["type"] != "error":
            check_lifecycle(frames)


def test_a_call_that_is_broken_off_is_not_in_the_list_of_a_failed_response() -> None:
    """iii workers#878: half a JSON at the end of the input was run with the arguments null."""
    events: list[Event] = [StreamStart("a", "m"), ToolCallStart("c", "ping"), ToolCallDelta('{"a'), ToolCallEnd(complete=False)]
    frames = _frames("openai_responses", [*events, StreamError("upstream_truncated", "it broke off")], live=True)
    calls = [item for item in frames[-1]["response"]["output"] if item["type"] == "function_call"]
    assert all(item["status"] == "incomplete" for item in calls)
