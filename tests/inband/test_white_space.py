"""White space stays with the text that it belongs to: only the start and the end of an answer are trimmed."""

from __future__ import annotations

from itertools import product

import pytest

from each import each
from inband.readings import WEATHER, read_all_ways
from streamglot import collect, reader, writer
from streamglot.events import BareEvent, TextDelta, TextStart
from streamglot.inband import FORMATS, parse_text
from streamglot.inband.engines import WrittenCall
from streamglot.messages import Response, TextPart

GAPS = ("", " ", "\n", "\n\n", " \n ")
PARIS = WrittenCall("get_weather", '{"city": "Paris"}', "0")
BY_HEADERS = ("harmony", "muse_glimmer", "functionary_v32")
"""Notations that name the recipient of every text, in a message of its own."""
WITH_CALLS = sorted(name for name, row in FORMATS.items() if row.engines and name not in BY_HEADERS)
WITH_THINKING = sorted(name for name, row in FORMATS.items() if row.think.openers and name != "functionary_v32")


@each(format=WITH_CALLS)
def test_white_space_around_a_call(format: str) -> None:
    for before, behind in product(GAPS, GAPS):
        text = f"One{before}{FORMATS[format].write([PARIS])}{behind}Two."
        found = read_all_ways(text, format, starts_in_reasoning=False)
        assert (found["text"], len(found["calls"])) == (f"One{before}{behind}Two.", 1)


@each(format=WITH_THINKING)
def test_white_space_around_reasoning(format: str) -> None:
    think = FORMATS[format].think
    opener = next(word for word in think.openers if not word[0].isalpha())
    for before, behind in product(GAPS, GAPS):
        text = f"One{before}{opener}I look.{think.closers[0]}{behind}Two."
        found = read_all_ways(text, format, starts_in_reasoning=False)
        assert (found["text"], found["reasoning"]) == (f"One{before}{behind}Two.", "I look.")


def texts(events: list[BareEvent]) -> list[str]:
    blocks: list[str] = []
    for event in events:
        if isinstance(event, TextStart):
            blocks.append("")
        elif isinstance(event, TextDelta):
            blocks[-1] += event.text
    return blocks


def test_white_space_before_reasoning_stays_in_its_block() -> None:
    assert texts(parse_text("One <think>b</think>Two", "hermes")) == ["One ", "Two"]
    assert texts(parse_text("One<think>b</think>\n\nTwo", "hermes")) == ["One", "\n\nTwo"]


def test_white_space_before_a_call_waits_for_the_text_after_it() -> None:
    call = FORMATS["hermes"].write([PARIS])
    assert texts(parse_text(f"One \n{call}\nTwo", "hermes", [WEATHER])) == ["One", " \n\nTwo"]
    assert texts(parse_text(f"One \n{call}\n{call}\n", "hermes", [WEATHER])) == ["One"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a</think>\n\nHello. ", "Hello. "),
        ("\n<think>a</think>\n\n    x = 1\n", "    x = 1\n"),
        ("</think>\n\nHello.", "Hello."),
        ("Hello.\n<think>a</think> \n", "Hello.\n"),
        ("  Hello. \n", "  Hello. \n"),
        (" \n ", " \n "),
    ],
)
def test_the_start_and_the_end_of_an_answer(text: str, left: str) -> None:
    assert read_all_ways(text, "hermes")["text"] == left


def test_reasoning_keeps_the_white_space_between_its_blocks() -> None:
    found = read_all_ways("<think>\na\n</think>One <think>\nb\n</think>Two", "hermes")
    assert (found["reasoning"], found["text"]) == ("a\n\nb", "One Two")


def answer_text(response: Response) -> str:
    return "".join(part.text for part in response.choices[0].parts if isinstance(part, TextPart))


@pytest.mark.parametrize("dialect", ["openai_chat", "ollama", "gemini", "openai_responses", "openai_completions"])
def test_dialects_that_join_their_text_keep_words_apart(dialect: str) -> None:
    events = parse_text(f"One <think>b</think>Two\n{FORMATS['hermes'].write([PARIS])} Three", "hermes", [WEATHER])
    assert answer_text(collect(events)) == "One Two\n Three"
    box, client = writer(dialect), reader(dialect)
    written = box.feed([*events]) + box.close()
    assert answer_text(collect([*client.feed(written), *client.close()])) == "One Two\n Three"
