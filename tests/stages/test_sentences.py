"""Reasoning that leaves by the sentence."""

from __future__ import annotations

from each import each
from split_checks import random_cuts
from streamglot.stages import SentenceBuffer
from vocabulary import *

TEXT = (
    'First I look at 3.14 and at e.g. this. Then "that is it!" I say… And so on?) Yes.\nA line\n\nanother "line".\'\n'
    "你好。对吗？对！ A thought without an end: " + "and " * 30 + "... 1. one 2. two"
)
SENTENCES = [
    "First I look at 3.14 and at e.g. ",
    "this. ",
    'Then "that is it!" ',
    "I say… ",
    "And so on?) ",
    "Yes.\n",
    "A line\n",
    "\n",
    'another "line".\'\n',
    "你好。",
    "对吗？",
    "对！",
    " A thought without an end: and and and and and and and and an",
    "d and and and and and and and and and and and and and and and",
    " and and and and and and ... ",
    "1. ",
    "one 2. ",
    "two",
]
MAX_CHARS = 61


def pieces(cuts: list[str], most: int = MAX_CHARS) -> list[str]:
    """The deltas that come out where the text comes in these pieces, one read for each."""
    stage = SentenceBuffer(most)
    out = stage.feed([StreamStart(), ReasoningStart()])
    for cut in cuts:
        out += stage.feed([ReasoningDelta(cut)])
    out += stage.feed([ReasoningEnd()])
    assert isinstance(out[-1], ReasoningEnd)
    return [event.text for event in out if isinstance(event, ReasoningDelta)]


def test_each_sentence_leaves_whole() -> None:
    assert pieces([TEXT]) == SENTENCES


@each(seed=range(50))
def test_the_cuts_of_the_upstream_change_nothing(seed: int) -> None:
    assert pieces(random_cuts(TEXT, seed)) == SENTENCES


def test_character_by_character() -> None:
    assert pieces(list(TEXT)) == SENTENCES


@each(at=range(len(TEXT)))
def test_every_cut_in_two(at: int) -> None:
    assert pieces([TEXT[:at], TEXT[at:]]) == SENTENCES


def test_a_sentence_leaves_as_soon_as_it_is_whole() -> None:
    stage = SentenceBuffer()
    assert stage.feed([ReasoningStart(), ReasoningDelta("Hm")]) == [ReasoningStart()]
    assert stage.feed([ReasoningDelta(".")]) == []
    assert stage.feed([ReasoningDelta(" So")]) == [ReasoningDelta("Hm. ")]
    assert stage.feed([KeepAlive(), ReasoningEnd()]) == [KeepAlive(), ReasoningDelta("So"), ReasoningEnd()]


def test_text_and_blocks_without_reasoning_are_not_held() -> None:
    events: list[Event] = [TextStart(), TextDelta("a"), TextEnd(), ReasoningStart(), ReasoningEnd(redacted=True)]
    stage = SentenceBuffer()
    assert stage.feed(events) == events
    assert stage.close() == []


def test_choices_have_sentences_of_their_own() -> None:
    stage = SentenceBuffer()
    assert stage.feed([ReasoningDelta("One"), Choice(1, ReasoningDelta("Two"))]) == []
    assert stage.feed([Choice(1, ReasoningDelta(".\n")), ReasoningDelta("!\n")]) == [
        Choice(1, ReasoningDelta("Two.\n")),
        ReasoningDelta("One!\n"),
    ]
    assert stage.feed([Choice(1, ReasoningEnd()), ReasoningEnd()]) == [Choice(1, ReasoningEnd()), ReasoningEnd()]


def test_a_thought_without_an_end_is_bounded() -> None:
    assert pieces(["a" * 150], most=60) == pieces(["a"] * 150, most=60) == ["a" * 60, "a" * 60, "a" * 30]
