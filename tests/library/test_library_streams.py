"""``read``, ``write``, ``translate`` and ``translator``: plain and asynchronous, closed early, with in-band calls and policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import streamglot
from streamglot import (
    AsyncByteStream,
    AsyncEventStream,
    ByteStream,
    ConfigError,
    EventStream,
    GrammarError,
    StreamglotError,
    UpstreamTruncated,
    check,
    collect,
    inband,
    read,
    reader,
    tool,
    translate,
    translator,
    write,
    writer,
)
from streamglot.inband import FORMATS
from streamglot.policies import load_policies
from vocabulary import *

ROOT = Path(__file__).parents[2]
BODY = (ROOT / "examples" / "anthropic.sse").read_bytes()
CHUNKS = [BODY[place : place + 50] for place in range(0, len(BODY), 50)]
EVENTS = reader("anthropic").feed(BODY)
MARKUP = '<think>Hm.</think>Yes.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


def chat(text: str, model: str = "m", choices: int = 1) -> bytes:
    events: list[Event] = [StreamStart("r1", model, 1)]
    for index in range(1, choices):
        events += [Choice(index, event) for event in (TextStart(), TextDelta(text), TextEnd(), StreamEnd())]
    return writer("openai_chat").feed([*events, TextStart(), TextDelta(text), TextEnd(), StreamEnd()])


class Source:
    """Bytes or events whose closing is seen, for both kinds of iteration."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.closed = 0
        self.given = 0

    def plain(self) -> Iterator[Any]:
        try:
            for item in self.items:
                self.given += 1
                yield item
        finally:
            self.closed += 1

    async def asynchronous(self) -> AsyncIterator[Any]:
        try:
            for item in self.items:
                await asyncio.sleep(0)
                self.given += 1
                yield item
        finally:
            self.closed += 1


async def listed(stream: Any) -> list[Any]:
    return [item async for item in stream]


# --- both kinds


def test_read_takes_chunks_and_whole_bytes() -> None:
    assert list(read(CHUNKS, "anthropic")) == list(read(BODY, "anthropic")) == list(read(iter(CHUNKS), "anthropic")) == EVENTS
    assert list(read(bytearray(BODY), "anthropic")) == EVENTS
    check(read(BODY, "anthropic"))


def test_the_kind_of_the_source_is_the_kind_of_the_iterator() -> None:
    async def work() -> None:
        events = read(Source(CHUNKS).asynchronous(), "anthropic")
        assert isinstance(events, AsyncEventStream)
        assert await listed(events) == EVENTS
        written = write(read(Source(CHUNKS).asynchronous(), "anthropic"), "openai_chat")
        assert isinstance(written, AsyncByteStream)
        whole = b"".join(await listed(written))
        translated = translate(Source(CHUNKS).asynchronous(), "anthropic", "openai_chat")
        assert isinstance(translated, AsyncByteStream)
        assert b"".join(await listed(translated)) == whole
        assert whole == b"".join(write(read(CHUNKS, "anthropic"), "openai_chat"))
        assert (
            whole
            == b"".join(translate(CHUNKS, "anthropic", "openai_chat"))
            == b"".join(translate(BODY, "anthropic", "openai_chat"))
        )

    asyncio.run(work())
    assert isinstance(read(CHUNKS, "anthropic"), EventStream)
    assert isinstance(write(EVENTS, "openai_chat"), ByteStream)
    assert isinstance(translate(CHUNKS, "anthropic", "openai_chat"), ByteStream)


def test_an_object_that_offers_both_kinds_says_by_plain_which_is_meant() -> None:
    class Both:
        def __init__(self, plain: bool) -> None:
            self.plain = plain

        def __iter__(self) -> Iterator[Event]:
            return iter(EVENTS)

        async def __aiter__(self) -> AsyncIterator[Event]:
            for event in EVENTS:
                yield event

    assert isinstance(write(Both(True), "openai_chat"), ByteStream)
    assert isinstance(write(Both(False), "openai_chat"), AsyncByteStream)


def test_events_leave_as_soon_as_their_bytes_have_come() -> None:
    source = Source(CHUNKS)
    stream = read(source.plain(), "anthropic")
    next(stream)
    assert source.given < 10
    written = Source(list(EVENTS))
    out = write(written.plain(), "anthropic")
    next(out)
    assert written.given == 1


def test_the_pieces_of_translate_are_never_empty() -> None:
    pieces = list(translate([b"", *CHUNKS, b""], "anthropic", "openai_chat"))
    assert len(pieces) > 5
    assert all(pieces)


def test_a_box_translates_like_translate() -> None:
    box = translator("anthropic", "openai_chat", strict=True)
    assert b"".join([box.feed(chunk) for chunk in CHUNKS]) + box.close() == b"".join(
        translate(CHUNKS, "anthropic", "openai_chat", strict=True)
    )
    assert box.writer.dialect == "openai_chat"


# --- ends


def test_closing_early_closes_the_source() -> None:
    for make in (
        lambda source: read(source, "anthropic"),
        lambda source: translate(source, "anthropic", "openai_chat"),
        lambda source: write(read(source, "anthropic"), "openai_chat"),
    ):
        source = Source(CHUNKS)
        stream: Any = make(source.plain())
        next(stream)
        stream.close()
        assert source.closed == 1
        assert list(stream) == []
        source = Source(CHUNKS)
        entering: Any = make(source.plain())
        with entering as entered:
            next(entered)
        assert source.closed == 1


def test_closing_early_closes_an_asynchronous_source() -> None:
    async def work() -> None:
        for make in (
            lambda source: read(source, "anthropic"),
            lambda source: translate(source, "anthropic", "openai_chat"),
            lambda source: write(read(source, "anthropic"), "openai_chat"),
        ):
            source = Source(CHUNKS)
            stream: Any = make(source.asynchronous())
            await anext(stream)
            await stream.aclose()
            assert source.closed == 1
            assert await listed(stream) == []
            source = Source(CHUNKS)
            entering: Any = make(source.asynchronous())
            async with entering as entered:
                await anext(entered)
            assert source.closed == 1

    asyncio.run(work())


def test_closing_before_the_first_item_closes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(BODY)
    with path.open("rb") as file:
        stream = translate(file, "anthropic", "openai_chat")
        stream.close()
        assert file.closed


def test_a_stream_that_breaks_off_ends_as_an_error() -> None:
    stream = read(CHUNKS[:10], "anthropic")
    last = list(stream)[-1]
    assert isinstance(last, StreamError)
    assert not stream.response().complete
    with pytest.raises(UpstreamTruncated):
        stream.response().raise_for_error()
    assert b"error" in b"".join(translate(CHUNKS[:10], "anthropic", "openai_chat"))
    assert b"error" in b"".join(write(EVENTS[:3], "openai_chat"))


def test_an_error_of_the_source_is_raised_and_keeps_what_came() -> None:
    def broken() -> Iterator[bytes]:
        yield from CHUNKS[:30]
        raise ConnectionError("gone")

    stream = read(broken(), "anthropic")
    with pytest.raises(ConnectionError):
        list(stream)
    assert stream.response().reasoning
    assert not stream.response().complete
    with pytest.raises(ConnectionError):
        list(translate(broken(), "anthropic", "openai_chat"))

    async def broken_later() -> AsyncIterator[bytes]:
        yield CHUNKS[0]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        asyncio.run(listed(read(broken_later(), "anthropic")))


def test_after_an_error_nothing_more_is_read() -> None:
    refused = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    source = Source([refused, *CHUNKS])
    assert isinstance(list(read(source.plain(), "anthropic"))[-1], StreamError)
    assert (source.given, source.closed) == (1, 1)
    source = Source([refused, *CHUNKS])
    asyncio.run(listed(translate(source.asynchronous(), "anthropic", "openai_chat")))
    assert (source.given, source.closed) == (1, 1)


def test_after_the_end_the_source_is_read_to_its_end() -> None:
    source = Source([*CHUNKS, b": more\n\n"])
    assert list(read(source.plain(), "anthropic")) == EVENTS
    assert (source.given, source.closed) == (len(CHUNKS) + 1, 1)


def test_chunks_of_text_end_the_stream_with_a_type_error() -> None:
    source = Source([chunk.decode("latin-1") for chunk in CHUNKS])
    with pytest.raises(TypeError, match="a reader takes bytes, not str"):
        list(read(source.plain(), "anthropic"))
    assert source.closed == 1
    source = Source(["x"])
    with pytest.raises(TypeError, match="a reader takes bytes, not str"):
        asyncio.run(listed(read(source.asynchronous(), "anthropic")))
    assert source.closed == 1


# --- the answer


def test_a_stream_keeps_the_answer() -> None:
    stream = read(CHUNKS, "anthropic")
    with pytest.raises(StreamglotError, match="the stream has not ended"):
        stream.response()
    taken: list[Event] = []
    for event in stream:
        taken.append(event)
        snapshot = stream.snapshot()
        assert snapshot.text == "".join(each.text for each in taken if isinstance(each, TextDelta))
        if isinstance(event, StreamEnd):
            assert stream.response() == collect(EVENTS)
    assert stream.response() == collect(EVENTS)
    assert stream.response() is stream.response()

    async def work() -> None:
        later = read(Source(CHUNKS).asynchronous(), "anthropic")
        with pytest.raises(StreamglotError, match="the stream has not ended"):
            later.response()
        async for _event in later:
            later.snapshot()
        assert later.response() == collect(EVENTS)

    asyncio.run(work())


def test_a_stream_that_was_closed_early_has_the_answer_so_far() -> None:
    stream = read(CHUNKS, "anthropic")
    for event in stream:
        if isinstance(event, TextDelta):
            stream.close()
    answer = stream.response()
    assert answer.text
    assert answer.text == next(event.text for event in EVENTS if isinstance(event, TextDelta))
    assert not answer.complete


# --- calls inside text


@pytest.mark.parametrize("given", ["hermes", FORMATS["hermes"], "auto"], ids=["name", "row", "auto"])
def test_read_finds_calls_inside_text(given: Any) -> None:
    stream = read(chat(MARKUP), "openai_chat", inband=given, model="Qwen3-8B")
    list(stream)
    answer = stream.response()
    assert (answer.reasoning, answer.text, answer.stop_reason) == ("Hm.", "Yes.", "tool_calls")
    assert [call.json() for call in answer.tool_calls] == [{"x": 1}]


def test_auto_takes_the_model_that_the_stream_names() -> None:
    assert [event for event in read(chat(MARKUP, "qwen3-8b"), "openai_chat", inband="auto") if isinstance(event, ToolCallStart)]
    assert not [event for event in read(chat(MARKUP, "gpt"), "openai_chat", inband="auto") if isinstance(event, ToolCallStart)]


def test_a_box_of_ones_own_is_taken_too() -> None:
    box = inband("hermes", calls=False)
    stream = read(chat(MARKUP), "openai_chat", inband=box)
    list(stream)
    assert stream.response().reasoning == "Hm."
    assert not stream.response().tool_calls


def test_every_choice_is_read() -> None:
    events = list(read(chat(MARKUP, choices=2), "openai_chat", inband="hermes"))
    check(events)
    assert [choice.text for choice in collect(events).choices] == ["Yes.", "Yes."]
    assert [len(choice.tool_calls) for choice in collect(events).choices] == [1, 1]


@tool
def g(x: int) -> int:
    """Doubles x."""
    return 2 * x


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ([ToolSpec("f")], True),
        ([{"type": "function", "function": {"name": "f", "parameters": {}}}], True),
        ([{"name": "f", "input_schema": {"type": "object"}}], True),
        ([ToolSpec("other")], False),
        ([g], False),
    ],
    ids=["spec", "chat", "messages", "another", "function"],
)
def test_only_declared_tools_are_called(declared: Any, found: bool) -> None:
    stream = read(chat(MARKUP), "openai_chat", inband="hermes", tools=declared)
    list(stream)
    assert bool(stream.response().tool_calls) == found
    translated = b"".join(translate(chat(MARKUP), "openai_chat", "anthropic", inband="hermes", tools=declared))
    assert (b'"tool_use"' in translated) == found


def test_the_ids_of_calls_inside_text_come_from_the_answer() -> None:
    first, second = (list(read(chat(MARKUP), "openai_chat", inband="hermes", call_prefix=prefix)) for prefix in ("", "mine"))
    assert [event.call_id for event in first if isinstance(event, ToolCallStart)] == ["call_r1_1"]
    assert [event.call_id for event in second if isinstance(event, ToolCallStart)] == ["mine_1"]


def test_custom_tools_come_back_from_functions() -> None:
    events: list[Event] = [
        StreamStart("r"),
        ToolCallStart("c", "patch"),
        streamglot.ToolCallDelta('{"input": "+ a"}'),
        streamglot.ToolCallEnd(),
        StreamEnd("tool_calls"),
    ]
    declared = [ToolSpec("patch", kind="custom")]
    for inband_name in (None, "hermes"):
        stream = read(writer("openai_chat").feed(events), "openai_chat", tools=declared, inband=inband_name)
        list(stream)
        assert [(call.kind, call.arguments) for call in stream.response().tool_calls] == [("custom", "+ a")]


# --- policies


def test_read_runs_policies() -> None:
    policies = load_policies([{"use": "deny_tools", "tools": ["weather"]}])
    stream = read(CHUNKS, "anthropic", policies=policies)
    list(stream)
    assert not stream.response().tool_calls
    assert list(read(CHUNKS, "anthropic", policies=[])) == EVENTS


def test_policies_see_the_tools() -> None:
    policies = load_policies([{"use": "tool_arguments", "declared": True}])
    schema = {"type": "object", "properties": {"city": {"type": "integer"}}}
    kept, refused = (read(BODY, "anthropic", policies=policies, tools=[ToolSpec("weather", "", one)]) for one in ({}, schema))
    assert [call.name for call in collect(kept).tool_calls] == ["weather"]
    assert collect(refused).tool_calls == []


def test_an_end_by_a_policy_closes_the_source() -> None:
    source = Source(CHUNKS)
    policies = load_policies([{"use": "block_patterns", "words": ["sky"], "action": "end", "message": "no"}])
    assert isinstance(list(read(source.plain(), "anthropic", policies=policies))[-1], (StreamError, StreamEnd))
    assert source.closed == 1
    assert source.given < len(CHUNKS)


# --- faults of the caller


@pytest.mark.parametrize("wrong", ["text", {"a": 1}, None, 5], ids=repr)
def test_a_source_that_is_none_is_refused_at_once(wrong: Any) -> None:
    calls: list[Any] = [lambda: read(wrong, "anthropic"), lambda: translate(wrong, "anthropic", "openai_chat")]
    for call in calls:
        with pytest.raises(TypeError, match=r"response\.iter_bytes\(\)"):
            call()
    with pytest.raises(TypeError, match="a box takes events"):
        write(wrong, "openai_chat")


def test_names_and_options_are_checked_at_once() -> None:
    late: Any = Source([])
    for call in (
        lambda: read(late.plain(), "antropic"),
        lambda: translate(late.plain(), "antropic", "openai_chat"),
        lambda: translate(late.plain(), "openai_chat", "antropic"),
        lambda: write(late.plain(), "antropic"),
        lambda: translator("antropic", "openai_chat"),
        lambda: reader("antropic"),
        lambda: writer("antropic"),
    ):
        with pytest.raises(ConfigError, match=r"did you mean 'anthropic'\?"):
            call()
    with pytest.raises(ConfigError, match=r"did you mean 'hermes'\?"):
        read(BODY, "anthropic", inband="hermess")
    wrongs: list[Any] = [
        lambda: read(BODY, "anthropic", foo=1),  # type: ignore[call-overload]  # that is what is tested
        lambda: translate(BODY, "anthropic", "openai_chat", foo=1),  # type: ignore[call-overload]  # the same
        lambda: write(EVENTS, "openai_chat", foo=1),  # type: ignore[call-overload]  # the same
        lambda: writer("openai_chat", array=True),
        lambda: reader("anthropic", foo=1),  # type: ignore[call-arg]  # the same
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"foo|array"):
            wrong()
    with pytest.raises(TypeError, match=r"has no option 'array'; it has .*include_usage"):
        writer("openai_chat", array=True)


def test_events_out_of_order_are_refused() -> None:
    with pytest.raises(GrammarError):
        list(write([TextDelta("x")], "openai_chat"))


def test_the_tools_of_translate_reach_a_writer_that_names_calls_by_them() -> None:
    spaced = ToolSpec("files__read", native=streamglot.Echo("openai_responses", {"namespace": "files", "name": "read"}))
    body = b"".join(translate(BODY, "anthropic", "openai_responses", tools=[spaced, ToolSpec("weather")]))
    assert b"weather" in body
