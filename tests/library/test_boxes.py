"""One rule for every box: it takes what the box before it gave, or one event, and anything else is a TypeError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamglot
from each import each
from streamglot import Collect, PerChoice, check, inband, reader, translator, writer
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.custom_tools import CustomCalls
from streamglot.policies import PolicyBox, load_policies
from streamglot.stages import SentenceBuffer, UniqueCallIds
from vocabulary import *

ROOT = Path(__file__).parents[2]
BODY = (ROOT / "examples" / "anthropic.sse").read_bytes()
MARKUP = '<think>Hm.</think>Yes.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
ANSWER: list[Event] = [StreamStart("r", "m"), TextStart(), TextDelta(MARKUP), TextEnd(), StreamEnd()]
BOXES: dict[str, Callable[[], Any]] = {
    "inband": lambda: inband("hermes"),
    "per choice": lambda: PerChoice(lambda: inband("hermes")),
    "custom calls": lambda: CustomCalls(frozenset(("f",))),
    "call ids": lambda: UniqueCallIds("c"),
    "sentences": lambda: SentenceBuffer(),
    "policies": lambda: PolicyBox(load_policies([{"use": "redact", "detectors": ["api_keys"]}])),
    "no policies": lambda: PolicyBox([]),
    "collect": lambda: Collect(),
}
NO_EVENTS: list[Any] = [b"x", bytearray(b"x"), "x", 5, None, {"type": "text_delta"}, [b"x"], [[TextDelta("x")]], [None], [{}]]


def gathered(box: Any, fed: list[Any]) -> list[Any]:
    return [*(given for each in fed for given in box.feed(each)), *box.close()]


@pytest.mark.parametrize("name", BOXES)
def test_a_box_gives_the_same_for_a_list_an_iterator_and_single_events(name: str) -> None:
    make = BOXES[name]
    whole = gathered(make(), [ANSWER])
    assert gathered(make(), [iter(ANSWER)]) == gathered(make(), [tuple(ANSWER)]) == gathered(make(), list(ANSWER)) == whole
    assert whole
    assert make().feed([]) == []


@each(wrong=NO_EVENTS)
@each(name=[*BOXES, "writer"])
def test_a_box_refuses_what_is_not_an_event(name: str, wrong: Any) -> None:
    box = BOXES[name]() if name in BOXES else writer("openai_chat")
    with pytest.raises(TypeError, match="a box takes events, not"):
        box.feed(wrong)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (b"x", r"box\.feed\(reader\.feed\(data\)\)"),
        ([[TextDelta("x")]], "not inside another list"),
        ("x", r"TextDelta\(text\)"),
        (3, "or one event"),
    ],
)
def test_the_error_says_what_to_pass(wrong: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        writer("anthropic").feed(wrong)


@each(wrong=["data: {}", None, [b"x"], 5])
@each(name=sorted(name for name in DIALECTS if DIALECTS[name].has_reader))
def test_a_reader_takes_bytes_only(name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match="a reader takes bytes, not"):
        reader(name).feed(wrong)
    box = reader(name)
    box.close()
    with pytest.raises(TypeError, match="a reader takes bytes, not"):
        box.feed(wrong)


def test_a_reader_takes_all_kinds_of_bytes() -> None:
    whole = reader("anthropic").feed(BODY)
    assert reader("anthropic").feed(bytearray(BODY)) == reader("anthropic").feed(memoryview(BODY)) == whole  # type: ignore[arg-type]  # the same bytes


@pytest.mark.parametrize("name", sorted(name for name in DIALECTS if DIALECTS[name].has_writer))
def test_a_writer_takes_a_list_an_iterator_and_single_events(name: str) -> None:
    whole = writer(name, id="r", created=1).feed(ANSWER)
    single = writer(name, id="r", created=1)
    assert b"".join(single.feed(event) for event in ANSWER) == whole
    assert writer(name, id="r", created=1).feed(iter(ANSWER)) == whole


def test_reader_box_and_writer_are_chained_as_one_guesses() -> None:
    data = b"".join(writer("openai_chat").feed(ANSWER) for _ in range(1))
    source, box, target = reader("openai_chat"), inband("hermes"), writer("anthropic")
    written = target.feed(box.feed(source.feed(data))) + target.feed(box.feed(source.close())) + target.close()
    answer = streamglot.collect(reader("anthropic").feed(written))
    assert (answer.reasoning, answer.text, [call.name for call in answer.tool_calls]) == ("Hm.", "Yes.", ["f"])


def test_the_in_band_box_reads_every_choice() -> None:
    second: list[Event] = [Choice(1, TextStart()), Choice(1, TextDelta(MARKUP)), Choice(1, TextEnd()), Choice(1, StreamEnd())]
    events = [*ANSWER[:-1], *second, ANSWER[-1]]
    expected = PerChoice(lambda: inband("hermes")).feed(events)
    check(expected)
    whole = inband("hermes")
    assert whole.feed(events) + whole.close() == expected
    single = inband("hermes")
    assert [given for event in events for given in single.feed(event)] + single.close() == expected
    assert [event.index for event in expected if isinstance(event, Choice) and isinstance(event.event, ToolCallStart)] == [1]


def test_collect_takes_what_one_read_gave() -> None:
    box, source = Collect(), reader("anthropic")
    for place in range(0, len(BODY), 100):
        assert box.feed(source.feed(BODY[place : place + 100])) == []
    assert box.feed_all(source.close()) == []
    assert box.close()[0].text.startswith("Let me look")
    assert Collect.feed_all is Collect.feed


def test_a_box_of_somebody_else_gets_one_event_at_a_time() -> None:
    class Loud:
        def feed(self, event: streamglot.events.BareEvent, /) -> list[streamglot.events.BareEvent]:
            return [TextDelta(event.text.upper())] if isinstance(event, TextDelta) else [event]

        def close(self) -> list[streamglot.events.BareEvent]:
            return []

    assert TextDelta(MARKUP.upper()) in PerChoice(Loud).feed(ANSWER)


def test_a_translator_takes_bytes_only() -> None:
    box: Any = translator("anthropic", "openai_chat")
    with pytest.raises(TypeError, match="a reader takes bytes, not list"):
        box.feed([TextDelta("x")])
