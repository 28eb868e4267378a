"""State belongs to its maker: it comes back to it in the same items, fields and places, whatever the upstream is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conformance.state import CLIENTS, UPSTREAMS, Trip, fault, take, trips

from recordings import recordings
from streamglot import collect, reader, writer
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.state import belongs_to, is_native, maker, pack, same_state
from streamglot.events import Echo, Event, Extra, ReasoningDelta, ReasoningEnd, ReasoningStart, StreamEnd, StreamStart
from streamglot.messages import Message, Part, ReasoningPart, Request, TextPart, ToolCallPart
from streamglot.store import restore_echoes
from streamglot.upstream import Upstream
from streamglot.upstream.providers import PROVIDERS, maker_of

CHAT = DIALECTS["openai_chat"]
RESPONSES = DIALECTS["openai_responses"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_state_returns_in_the_same_items_fields_and_places(dialect: str, client: str) -> None:
    """Streamed and whole, with the store and without it, from clients that return everything, only the documented field, or only
    the packed form; over all recordings."""
    taken = 0
    for recording in recordings():
        if recording.dialect != dialect:
            continue
        for trip in trips():
            if trip.client == client and (outcome := take(trip, dialect, recording.body)) is not None:
                taken += 1
                assert fault(trip, dialect, outcome) == "", (recording.name, trip)
    assert taken


# --- who the maker is


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_the_name_of_an_upstream_does_not_matter(provider: Any) -> None:
    first = provider.upstream()
    for name in (provider.dialect, "work", "claude"):
        assert maker_of(msgspec.structs.replace(first, name=name, key=name)) == maker_of(first)
    assert maker_of(msgspec.structs.replace(first, dialect="other")) != maker_of(first)
    assert maker_of(msgspec.structs.replace(first, base_url="http://elsewhere:8000")) != maker_of(first)


def test_who_is_the_same_maker() -> None:
    def of(base_url: str, dialect: str = "openai_chat", state: str = "", name: str = "box") -> str:
        return maker_of(Upstream(name=name, dialect=dialect, base_url=base_url, state=state))

    assert of("https://api.deepseek.com/v1") == of("https://api.deepseek.com/beta") == "openai_chat@deepseek"
    assert of("https://api.deepseek.com/anthropic", "anthropic") == "anthropic@deepseek"
    assert of("http://10.0.0.5:8000/v1") == of("http://10.0.0.5:8000/v2", name="other") == "openai_chat@10.0.0.5:8000"
    assert of("https://host/v1") == of("https://HOST:443/v1") != of("https://host:8443/v1")
    assert of("http://one", state="shared") == of("http://two", state="shared")
    assert of("http://proxy", state="deepseek") == of("https://api.deepseek.com/v1")
    assert of("http://one", state="shared") != of("http://one", "ollama", state="shared")
    assert of("", name="a") != of("", name="b")


def test_the_names_of_makers() -> None:
    assert maker("gemini", None) == maker("gemini", "gemini") == "gemini"
    assert maker("gemini", "vertex") == maker("gemini", "gemini@vertex") == "gemini@vertex"
    unnamed, named = Echo("gemini", {}), Echo("gemini@vertex", {})
    assert is_native(unnamed, "gemini")
    assert is_native(named, "gemini")
    assert not is_native(Echo("gemini2@vertex", {}), "gemini")
    assert belongs_to(unnamed, "gemini@vertex")
    assert belongs_to(named, "gemini@vertex")
    assert not belongs_to(named, "gemini@studio")
    assert not belongs_to(unnamed, "anthropic@vertex")


def test_what_identifies_state() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
    stored = Echo("openai_responses@openai", item)
    for changed in ({**item, "status": "completed"}, {**item, "id": ""}, {"type": "reasoning", "id": "rs_1"}):
        assert same_state(Echo("openai_responses", changed), stored)
    assert not same_state(Echo("openai_responses", {**item, "id": "rs_2", "encrypted_content": "f"}), stored)
    assert not same_state(Echo("other", item), stored)
    assert not same_state(Echo("openai_responses", {"type": "reasoning", "id": ""}), Echo("openai_responses", {"id": ""}))


# --- reasoning in the fields of chat


def sent(message: dict[str, Any], provider: str = "deepseek", stored: list[Part] | None = None) -> dict[str, Any]:
    request = CHAT.parse_request({"model": "m", "messages": [{"role": "assistant", "content": "a", **message}]})
    if stored is not None:
        request = restore_echoes(request, [Message("assistant", stored)], provider=f"openai_chat@{provider}")
    body: dict[str, Any] = CHAT.build_request(request, provider=provider).body["messages"][0]
    return {name: value for name, value in body.items() if name.startswith("reasoning")}


def test_one_returned_field_is_sent_under_its_name() -> None:
    assert sent({"reasoning_content": "hm"}) == {"reasoning_content": "hm"}
    assert sent({"reasoning": "hm"}) == {"reasoning": "hm"}
    details = [{"type": "reasoning.text", "text": "hm"}]
    assert sent({"reasoning_details": details}) == {"reasoning_details": details}


def test_both_fields_of_an_unknown_writer_are_sent_as_one() -> None:
    assert sent({"reasoning": "hm", "reasoning_content": "hm"}) == {"reasoning_content": "hm"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "wrote",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}], "reasoning": "hm"},
        {
            "reasoning_details": [
                {"type": "reasoning.summary", "summary": "hm", "format": "f", "index": 0},
                {"type": "reasoning.encrypted", "data": "d", "id": "r", "index": 0},
            ],
            "reasoning": "hm",
        },
    ],
)
def test_only_the_fields_that_the_upstream_wrote_go_up(wrote: dict[str, Any], streamed: bool) -> None:
    from conformance.state import chat_message, frames

    frame = {"id": "x", "choices": [{"index": 0, "message": {"content": "a", **wrote}, "finish_reason": "stop"}]}
    events = reader("openai_chat", provider="deepseek").read_whole(frame)
    if streamed:
        box = writer("openai_chat")
        message = chat_message(frames(box.feed(events) + box.close()))
    else:
        message = CHAT.build_response(collect(events))["choices"][0]["message"]
    assert {"reasoning_content", "reasoning_details"} <= set(message)
    returned = {name: value for name, value in message.items() if name.startswith("reasoning")}
    assert sent(returned) == wrote
    parts = collect(events).choices[0].parts
    for name in ("reasoning", "reasoning_content"):
        assert sent({name: "hm"}, stored=parts) == wrote
    elsewhere = sent(returned, provider="moonshot")
    assert "reasoning_content" in elsewhere or "reasoning_details" in elsewhere


# --- items of Responses


def test_a_compaction_reaches_the_client_as_one() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "e"}
    end = ReasoningEnd(Echo("openai_responses@openai", item), redacted=True)
    box = writer("openai_responses")
    written = box.feed([StreamStart("r", "m"), ReasoningStart(), end, StreamEnd("end")]) + box.close()
    done = [msgspec.json.decode(line[6:]) for line in written.split(b"\n") if line.startswith(b"data: {")]
    assert done[-1]["response"]["output"] == [item]
    request = RESPONSES.parse_request({"input": [item, {"role": "user", "content": "Go on."}]})
    assert RESPONSES.build_request(request, provider="work").body["input"][0] == item


def test_a_reasoning_item_has_no_status_that_its_upstream_did_not_give() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e"}
    for original in (item, {**item, "status": "completed"}):
        box = writer("openai_responses")
        events: list[Event] = [
            StreamStart("r", "m"),
            Extra("openai_responses", {"item": {"type": "reasoning", "id": "rs_1"}}),
            ReasoningStart(summary=True),
            ReasoningDelta("hm"),
            ReasoningEnd(Echo("openai_responses@openai", original)),
            StreamEnd("end"),
        ]
        written = box.feed(events) + box.close()
        last = [msgspec.json.decode(line[6:]) for line in written.split(b"\n") if line.startswith(b"data: {")][-1]
        assert last["response"]["output"] == [original]


@pytest.mark.parametrize("change", [{"status": "completed"}, {"status": None}, {"id": None}, {"encrypted_content": None}])
def test_a_reasoning_item_goes_up_once(change: dict[str, Any]) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
    stored: list[Part] = [ReasoningPart("", redacted=True, echo=Echo("openai_responses@openai", item)), TextPart("a")]
    returned = {name: value for name, value in {**item, **change}.items() if value is not None}
    answer = {"type": "message", "role": "assistant", "content": "a"}
    request = RESPONSES.parse_request({"input": [returned, answer, {"role": "user", "content": "Go on."}]})
    restored = restore_echoes(request, [Message("assistant", stored)], provider="openai_responses@openai")
    items = RESPONSES.build_request(restored, provider="openai").body["input"]
    assert [one for one in items if one["type"] == "reasoning"] == [item]


def test_message_ids_and_annotations_come_back() -> None:
    annotation = {"type": "url_citation", "url": "http://a", "title": "A", "start_index": 0, "end_index": 1}
    content = [{"type": "output_text", "text": "a", "annotations": [annotation]}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    call = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c", "name": "f", "arguments": "{}"}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
    request = RESPONSES.parse_request({"input": [search, message, call]})
    assert RESPONSES.build_request(request, provider="openai").body["input"] == [search, message, call]
    minted = {**message, "id": "msg_sglot_x_1"}
    assert "id" not in RESPONSES.build_request(RESPONSES.parse_request({"input": [minted]})).body["input"][0]


# --- what is not sent is named


def test_what_is_not_sent_is_named() -> None:
    other = Echo("openai_responses@other", {"type": "web_search_call", "id": "ws_1"})
    signed = Echo("anthropic@there", {"signature": "s"})
    parts: list[Part] = [
        ReasoningPart("hm", echo=signed),
        ToolCallPart("ws_1", "web_search", "{}", "server", native=other),
        TextPart("a", echo=Echo("gemini@there", {"thoughtSignature": "x"})),
        TextPart("b", echo=Echo("openai_responses", {"type": "message", "id": "msg_1"})),
        ToolCallPart("c", "f", "{}", echo=Echo("gemini@there", {"thoughtSignature": "y"})),
    ]
    request = Request("m", [Message("assistant", parts)])
    for dialect in UPSTREAMS:
        built = DIALECTS[dialect].build_request(request, provider="here")
        assert built.dropped == [
            "messages.reasoning",
            "messages.web_search_call",
            "messages.text.state",
            "messages.tool_calls.state",
        ]
        assert "thoughtSignature" not in str(built.body).replace("skip_thought", "")
        assert "'s'" not in str(built.body)


def test_several_summaries_of_one_item_are_not_reported() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text} for text in ("a", "b")]}
    parts: list[Part] = [ReasoningPart("a", summary=True), ReasoningPart("b", summary=True, echo=Echo("openai_responses", item))]
    built = RESPONSES.build_request(Request("m", [Message("assistant", parts)]))
    assert (built.body["input"], built.dropped) == ([item], [])
    alone = RESPONSES.build_request(Request("m", [Message("assistant", parts[:1])]))
    assert (alone.body["input"], alone.dropped) == ([], ["messages.reasoning"])


def test_packed_state_goes_to_its_maker_only() -> None:
    packed = pack(Echo("anthropic@anthropic", {"signature": "s"}))
    details = [{"type": "reasoning.text", "text": "hm", "signature": packed}]
    body = {"model": "m", "messages": [{"role": "assistant", "content": "a", "reasoning_details": details}]}
    anthropic = DIALECTS["anthropic"]
    for provider, there in (("anthropic@anthropic", True), ("elsewhere", False)):
        built = anthropic.build_request(CHAT.parse_request(body), provider=provider)
        assert ("'s'" in str(built.body), built.dropped == ["messages.reasoning"]) == (there, not there)


def test_a_signature_is_not_copied_to_its_neighbour() -> None:
    gemini = DIALECTS["gemini"]
    contents = [
        {"role": "model", "parts": [{"text": "Yes, "}]},
        {"role": "model", "parts": [{"text": "all day.", "thoughtSignature": "c2ln"}]},
        {"role": "user", "parts": [{"text": "Go on."}]},
    ]
    stored: list[Part] = [TextPart("Yes, all day.", echo=Echo("gemini@google", {"thoughtSignature": "c2ln", "offset": 5}))]
    request = gemini.parse_request({"contents": contents})
    restored = restore_echoes(request, [Message("assistant", stored)], provider="gemini@google")
    parts = gemini.build_request(restored, provider="google").body["contents"][0]["parts"]
    assert parts == [{"text": "Yes, "}, {"text": "all day.", "thoughtSignature": "c2ln"}]


def test_trips_cover_every_kind_of_client() -> None:
    assert {(trip.returns, trip.streamed, trip.store) for trip in trips()} == {
        (returns, streamed, store)
        for returns in ("everything", "documented", "packed")
        for streamed in (False, True)
        for store in (False, True)
    }
    assert Trip("openai_chat", True, "packed", False) in trips()
