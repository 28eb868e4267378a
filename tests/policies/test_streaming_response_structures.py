"""The structures of streaming responses and the policies on them, section by section of the design note that asked for policies.

The chunks are those of the note: chat chunks with ``delta.content`` and ``delta.tool_calls``, as two vendors send them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from policies.policy_streams import calls_of, normal, run, text_of
from streamglot import check, reader
from streamglot.events import Event, StreamEnd, TextEnd, ToolCallEnd, ToolCallStart
from streamglot.policies import Callbacks, Piece, Policy, Verdict, policy_stage, refuse, rewrite
from streamglot.stages.stage import ExchangeContext


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def opened(index: int, name: str, **more: Any) -> bytes:
    return chunk(
        tool_calls=[{"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}],
        **more,
    )


def arguments(index: int, *pieces: str, **more: Any) -> list[bytes]:
    return [chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}], **more) for piece in pieces]


DONE = b"data: [DONE]\n\n"
CONTENT_ONLY = [
    chunk(role="assistant", content="Here"),
    chunk(content=" are the major"),
    chunk(content=" islands."),
    chunk("stop"),
    DONE,
]
TOOL_CALLS_ONLY = [
    opened(0, "get_weather", role="assistant", content=None),
    *arguments(0, '{"lo', 'cation": "Tok', 'yo"}'),
    opened(1, "get_weather"),
    *arguments(1, '{"lo', 'cation": "London', '"}'),
    opened(2, "get_time"),
    *arguments(2, '{"zone": "', 'JST"}'),
    chunk("tool_calls"),
    chunk(),
    DONE,
]
CONTENT_THEN_CALLS = [
    chunk(role="assistant", content="I'll get the weather"),
    chunk(content=" for both Tokyo and London"),
    opened(0, "get_weather", content=""),
    *arguments(0, "", '{"location', '": "Tokyo', '"}', content=""),
    opened(1, "get_time", content=""),
    *arguments(1, '{"zone": ', '"UTC', '"}', content=""),
    opened(2, "get_weather", content=""),
    *arguments(2, '{"location": "London"}', content=""),
    chunk("tool_calls"),
    DONE,
]
EXTENDED_CONTENT = (
    [chunk(content=f"word {number} ") for number in range(98)] + CONTENT_THEN_CALLS[2:7] + [chunk("tool_calls"), DONE]
)
STRUCTURES = {
    "content only": CONTENT_ONLY,
    "multiple tool calls only": TOOL_CALLS_ONLY,
    "content then multiple tool calls": CONTENT_THEN_CALLS,
    "extended content then tool calls": EXTENDED_CONTENT,
}


def events_of(chunks: list[bytes]) -> list[Event]:
    box = reader("openai_chat")
    events = [event for piece in chunks for event in box.feed(piece)] + box.close()
    check(events)
    return events


def live(chunks: list[bytes], *policies: Policy) -> Iterator[list[Event]]:
    """The events that are released for each chunk."""
    box = reader("openai_chat")
    stage = policy_stage(policies)(ExchangeContext())
    assert stage is not None
    for piece in chunks:
        events = box.feed(piece)
        yield stage.feed(events) if events else []  # type: ignore[misc]  # nothing is asked


def fed(chunks: list[bytes], *policies: Policy) -> list[list[Event]]:
    return list(live(chunks, *policies))


# --- observed patterns


def test_pattern_1_content_only() -> None:
    deltas: list[str] = []
    run(events_of(CONTENT_ONLY), Callbacks(on_text_delta=lambda piece: deltas.append(piece.text), observe=True))
    assert deltas == ["Here", " are the major", " islands."]


def test_pattern_2_multiple_tool_calls_only() -> None:
    seen: list[tuple[str, str, Any]] = []
    note = lambda piece: seen.append((piece.call_id, piece.name, piece.arguments()))
    run(events_of(TOOL_CALLS_ONLY), Callbacks(on_tool_call_complete=note, observe=True))
    assert seen == [
        ("call_0", "get_weather", {"location": "Tokyo"}),
        ("call_1", "get_weather", {"location": "London"}),
        ("call_2", "get_time", {"zone": "JST"}),
    ]


def test_pattern_3_content_then_multiple_tool_calls() -> None:
    seen: list[tuple[str, str]] = []
    run(
        events_of(CONTENT_THEN_CALLS),
        Callbacks(on_block_complete=lambda piece: seen.append((piece.kind, piece.text)), observe=True),
    )
    assert seen == [
        ("text", "I'll get the weather for both Tokyo and London"),
        ("tool_call", '{"location": "Tokyo"}'),
        ("tool_call", '{"zone": "UTC"}'),
        ("tool_call", '{"location": "London"}'),
    ]


def test_pattern_4_extended_content_then_tool_calls() -> None:
    left = fed(EXTENDED_CONTENT, Callbacks(on_tool_call_complete=lambda piece: None))
    assert [len(text_of(events)) > 0 for events in left[:98]] == [True] * 98, "content is forwarded at once"
    assert calls_of([event for events in left for event in events]) == [("get_weather", '{"location": "Tokyo"}')]


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_passes_unchanged(name: str) -> None:
    events = events_of(STRUCTURES[name])
    both = Callbacks(on_text_delta=lambda piece: None, on_tool_call_complete=lambda piece: None)
    assert normal(run(events, both)) == normal(events)
    assert normal(run(events, Callbacks(on_block_complete=lambda piece: None))) == normal(events)


# --- critical observations


def test_observation_1_blocks_are_a_sequence_and_not_nested() -> None:
    open_blocks = 0
    for event in run(events_of(CONTENT_THEN_CALLS), Callbacks(on_block_complete=lambda piece: None)):
        open_blocks += type(event).__name__.endswith("Start") and type(event).__name__ != "StreamStart"
        assert open_blocks <= 1
        open_blocks -= isinstance(event, (TextEnd, ToolCallEnd))


def test_observation_2_tool_calls_stream_sequentially() -> None:
    """A call is judged as soon as it is whole: when the next one starts, and not at the end of the stream."""
    left = fed(TOOL_CALLS_ONLY, Callbacks(on_tool_call_complete=lambda piece: None))
    starts = [number for number, events in enumerate(left) if any(isinstance(event, ToolCallStart) for event in events)]
    next_calls = [number for number, piece in enumerate(TOOL_CALLS_ONLY) if b'"id": "call_' in piece]
    assert starts == [*next_calls[1:], len(TOOL_CALLS_ONLY) - 3]


def test_observation_3_the_same_tool_called_twice_is_two_calls() -> None:
    def second_only(piece: Piece) -> Verdict | None:
        return refuse("once is enough") if piece.call_id == "call_1" else None

    after = run(events_of(TOOL_CALLS_ONLY), Callbacks(on_tool_call_complete=second_only))
    assert [name for name, _ in calls_of(after)] == ["get_weather", "get_time"]


def test_observation_4_empty_content_beside_calls_is_harmless() -> None:
    after = run(events_of(CONTENT_THEN_CALLS), Callbacks(on_block_complete=lambda piece: None))
    assert sum(isinstance(event, TextEnd) for event in after) == 1


def test_observation_5_the_content_is_complete_when_the_calls_begin() -> None:
    left = fed(
        CONTENT_THEN_CALLS, Callbacks(on_block_complete=lambda piece: piece.text.upper() if piece.kind == "text" else None)
    )
    assert [text_of(events) for events in left[:3]] == ["", "", "I'LL GET THE WEATHER FOR BOTH TOKYO AND LONDON"]


# --- recommendations for policy logic


def test_recommendation_several_calls_are_not_assumed_to_be_one() -> None:
    after = run(
        events_of(TOOL_CALLS_ONLY), Callbacks(on_tool_call_complete=lambda piece: rewrite('{"n": "' + piece.call_id + '"}'))
    )
    assert [text for _, text in calls_of(after)] == ['{"n": "call_0"}', '{"n": "call_1"}', '{"n": "call_2"}']


def test_recommendation_calls_are_processed_as_they_complete() -> None:
    order: list[str] = []
    policy = Callbacks(on_tool_call_complete=lambda piece: order.append(piece.call_id))
    for events in live(TOOL_CALLS_ONLY, policy):
        order += [f"released {event.call_id}" for event in events if isinstance(event, ToolCallStart)]
    assert order == ["call_0", "released call_0", "call_1", "released call_1", "call_2", "released call_2"]


def test_recommendation_content_is_forwarded_while_a_call_is_buffered() -> None:
    left = fed(CONTENT_THEN_CALLS, Callbacks(on_tool_call_complete=lambda piece: None))
    assert text_of(left[0] + left[1]) == "I'll get the weather for both Tokyo and London"
    assert calls_of(left[2] + left[3] + left[4]) == []


def test_recommendation_all_calls_refused_ends_as_text() -> None:
    after = run(events_of(CONTENT_THEN_CALLS), Callbacks(on_tool_call_complete=lambda piece: refuse("No.")))
    assert after[-1] == StreamEnd("end")
    assert text_of(after).endswith("No.No.No.")


def test_recommendation_arbitrary_block_kinds() -> None:
    thinking = [chunk(reasoning_content="Hm, "), chunk(reasoning_content="yes."), chunk(content="Yes."), chunk("stop"), DONE]
    seen: list[tuple[str, str]] = []
    run(events_of(thinking), Callbacks(on_block_complete=lambda piece: seen.append((piece.kind, piece.text)), observe=True))
    assert seen == [("reasoning", "Hm, yes."), ("text", "Yes.")]
