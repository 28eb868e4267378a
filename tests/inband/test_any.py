"""The common notations together, for models that nobody knows."""

from __future__ import annotations

import json

import pytest

from inband.readings import WEATHER, at_every_place, read_all_ways
from streamglot.inband import FORMATS, OwnMarkers, format_for_model, with_markers

JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CALL = ["get_weather", '{"city": "Paris"}']


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"[TOOL_CALLS] [{JSON}]", ""),
        ('<function=get_weather>{"city": "Paris"}</function>', ""),
        (f"<tool_call>{JSON}</tool_call>", ""),
        (f"I look.\n<tool_call>\n{JSON}\n</tool_call>", "I look."),
        (JSON, ""),
        (f" [{JSON}]\n", ""),
        (f"```json\n{JSON}\n```", ""),
        (f"I look:\n```\n{JSON}\n```\nSo.", "I look:\n\nSo."),
        (f"<THINK>hm</Think>\n{JSON}", ""),
    ],
)
def test_each_notation_is_read(text: str, left: str) -> None:
    found = at_every_place(text, "any")
    assert (found["text"], found["calls"], found["complete"]) == (left, [CALL], [True])
    for tools in (None, [{"name": "other"}]):
        assert read_all_ways(text, "any", tools)["calls"] == [], "a name that is no tool of the request"


@pytest.mark.parametrize(
    "text",
    [
        f"Here: {JSON}",
        f"{JSON} is the call.",
        f"```json\n{JSON}\nmore\n```",
        f"```json\n{JSON}",
        f"```python\n{JSON}\n```",
        JSON.replace("Paris", "P" * 700) + " so",
        '{"city": "Paris"}',
        "[1] says so",
        JSON[:-9],
    ],
)
def test_json_inside_an_answer_is_text(text: str) -> None:
    found = at_every_place(text, "any")
    assert (found["text"], found["calls"], found["end"]) == (text, [], "end")


@pytest.mark.parametrize("tag", ["think", "THINK", "Reasoning", "thought", "ThOuGhT"])
@pytest.mark.parametrize("row", ["any", "deepseek-r1", "deepseek-r1-distill-qwen-7b", "qwq-32b", "qwq:latest"])
def test_the_three_pairs_of_tags_count_in_any_case(tag: str, row: str) -> None:
    format = FORMATS["any"] if row == "any" else format_for_model(row)
    assert format is not None
    found = at_every_place(f"<{tag}>Well.</{tag.swapcase()}>Hi", format, [WEATHER])
    assert (found["reasoning"], found["text"]) == ("Well.", "Hi")
    if row != "any":
        assert at_every_place(f"Well.</{tag}>Hi", format, [WEATHER])["reasoning"] == "Well.", "the template wrote the opening tag"


def test_a_sentence_may_mention_a_tag_in_any_case() -> None:
    text = "Write <THINK> before it, and `</Think>` after it."
    assert at_every_place(text, "any")["text"] == text


def test_your_own_markers_count_in_addition() -> None:
    own = OwnMarkers((("<plan>", "</plan>"),), (("<run>", "</run>"),))
    for row in (None, FORMATS["any"], FORMATS["hermes"]):
        format = with_markers(row, own)
        assert format is not None
        found = at_every_place(f"<plan>Well.</plan>So <run>{JSON}</run>", format, [WEATHER])
        assert (found["reasoning"], found["text"], found["calls"]) == ("Well.", "So", [CALL])
    assert with_markers(FORMATS["any"], OwnMarkers()) is FORMATS["any"]


def test_the_whole_answer_is_held_in_linear_time_and_memory() -> None:
    long = json.dumps({"name": "get_weather", "arguments": {"city": "x" * 600_000}})
    found = read_all_ways(long, "any")
    assert (found["text"], found["calls"]) == (long, []), "more than may be held is text"
