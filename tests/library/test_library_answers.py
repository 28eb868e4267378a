"""What an answer and a snapshot of it say by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamglot import (
    Collect,
    ConfigError,
    LimitExceeded,
    PolicyRefused,
    RequestError,
    Snapshot,
    StreamglotError,
    ToolCallParseError,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamTruncated,
    collect,
    reader,
)
from streamglot.errors import error_of
from streamglot.events import StopReason
from streamglot.messages import Part
from vocabulary import *

BODY = (Path(__file__).parents[2] / "examples" / "anthropic.sse").read_bytes()
EVENTS: list[Event] = [
    StreamStart("r", "m"),
    *(ReasoningStart(), ReasoningDelta("Hm, "), ReasoningDelta("so."), ReasoningEnd()),
    *(TextStart(), TextDelta("Let me "), TextDelta("look."), TextEnd()),
    *(ToolCallStart("s", "search", "server"), ToolCallDelta("{}"), ToolCallEnd(), ToolResult("s", "found")),
    *(ToolCallStart("c", "weather"), ToolCallDelta('{"city": '), ToolCallDelta('"Oslo"}'), ToolCallEnd()),
    *(Usage(3, 5), StreamEnd("tool_calls")),
]


def both(events: list[Event]) -> tuple[Response, Snapshot]:
    box = Collect()
    box.feed(events)
    snapshot = box.snapshot()
    return box.close()[0], snapshot


def test_an_answer_and_its_snapshot_say_what_is_in_them() -> None:
    for answer in both(EVENTS):
        assert answer.text == "Let me look."
        assert answer.reasoning == "Hm, so."
        assert [(call.name, call.call_id, call.arguments, call.json()) for call in answer.tool_calls] == [
            ("weather", "c", '{"city": "Oslo"}', {"city": "Oslo"})
        ]
        assert answer.stop_reason == "tool_calls"
        assert answer.complete


def test_every_prefix_of_a_stream_has_an_answer_so_far() -> None:
    for end in range(len(EVENTS)):
        answer, snapshot = both(EVENTS[:end])
        assert (snapshot.text, snapshot.reasoning) == (answer.text, answer.reasoning)
        assert snapshot.tool_calls == answer.tool_calls
        assert not answer.complete
        assert not snapshot.complete
        assert snapshot.stop_reason is None is answer.stop_reason
        assert str(snapshot) == str(answer)
    growing = both(EVENTS[:-4])[1].tool_calls[0]
    assert not growing.complete
    with pytest.raises(ToolCallParseError, match="'weather' broke off"):
        growing.json()


def test_an_empty_answer_has_nothing() -> None:
    for answer in (Response(), Collect().snapshot()):
        assert (answer.text, answer.reasoning, answer.tool_calls, answer.stop_reason) == ("", "", [], None)
        assert not answer.complete


@pytest.mark.parametrize(("reason", "complete"), [("end", True), ("length", True), ("cancelled", False), (None, False)])
def test_an_answer_is_complete_if_it_reached_its_own_end(reason: StopReason | None, complete: bool) -> None:
    assert Response(choices=[ResponseChoice(0, stop_reason=reason)]).complete == complete
    assert Response(choices=[ResponseChoice(0, stop_reason="end"), ResponseChoice(1, stop_reason=reason)]).complete == complete


def test_a_truncated_answer_raises_its_error() -> None:
    box = reader("anthropic")
    answer = collect(box.feed(BODY[:1200]) + box.close())
    assert not answer.complete
    with pytest.raises(UpstreamTruncated, match="the stream ended") as raised:
        answer.raise_for_error()
    assert raised.value.retryable
    assert collect(EVENTS).raise_for_error().text == "Let me look."


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("x"),
        RequestError("x"),
        Unsupported("x"),
        LimitExceeded("x"),
        LimitExceeded("x", code="limit_blocks"),
        PolicyRefused("x"),
        UpstreamError("x"),
        UpstreamRefused("x", code="rate_limit", status=429, detail={"a": 1}),
        UpstreamProtocolError("x"),
        ToolCallParseError("x"),
        UpstreamTruncated("x", code="upstream_empty"),
        UpstreamTimeout("x"),
        StreamglotError("x"),
    ],
    ids=lambda error: f"{type(error).__name__} {error.code}",
)
def test_the_error_of_a_stream_is_raised_as_what_it_was(error: StreamglotError) -> None:
    event = error.as_event()
    found = error_of(event)
    assert type(found) is type(error)
    assert found.as_event() == event
    with pytest.raises(type(error)):
        Response(error=event).raise_for_error()


@pytest.mark.parametrize(
    ("origin", "kind"),
    [("upstream", UpstreamRefused), ("client", RequestError), ("policy", PolicyRefused), ("gateway", StreamglotError)],
)
def test_an_error_with_a_code_of_its_own_is_that_of_its_origin(origin: str, kind: type[StreamglotError]) -> None:
    assert type(error_of(StreamError("own_code", "x", origin))) is kind  # type: ignore[arg-type]  # one of the four words


def test_arguments_are_decoded_or_refused_with_the_name_of_the_tool() -> None:
    assert ToolCallPart("c", "f", "").json() == ToolCallPart("c", "f", " {} ").json() == {}
    for arguments in ('{"x": ', "[1]", "5", "free text", "[" * 100_000):
        with pytest.raises(ToolCallParseError, match="the tool 'f'") as raised:
            ToolCallPart("c", "f", arguments).json()
        assert len(str(raised.value)) < 1000


def test_an_answer_is_readable_when_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print(collect(EVENTS))
    assert capsys.readouterr().out == (
        "[reasoning] Hm, so.\nLet me look.\n[call] search({})\n[result] found\n"
        '[call] weather({"city": "Oslo"})\n[tool_calls, m, 3 in, 5 out]\n'
    )
    second: list[Event] = [Choice(1, TextStart()), Choice(1, TextDelta("Or so.")), Choice(1, TextEnd()), Choice(1, StreamEnd())]
    several = str(collect([StreamStart("r", "m"), TextStart(), TextDelta("So."), TextEnd(), *second, StreamEnd()]))
    assert several == "So.\n[choice 1: end]\nOr so.\n[end, m]"
    assert str(collect(EVENTS[:8])).endswith("[unfinished, m]")
    assert str(Response()) == "[unfinished]"
    broken = Response(
        choices=[ResponseChoice(0, [ToolCallPart("c", "f", '{"x', complete=False)])], error=StreamError("gone", "why")
    )
    assert str(broken) == '[call] f({"x) [broken off]\n[error gone: why]'
    rest: list[Part] = [RefusalPart("No."), MediaPart("image/png", url="u"), MediaPart(), NativePart("d", {}, "t")]
    assert str(Response(choices=[ResponseChoice(0, rest, "end")])) == "[refusal] No.\n[image/png] u\n[media]\n[d] t\n[end]"
    assert repr(collect(EVENTS)).startswith("Response(id='r'")
