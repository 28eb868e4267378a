"""Properties of every row: it reads its example and what it writes, and it calls nothing that it must not."""

from __future__ import annotations

import pytest
from msgspec import structs

from each import each
from inband.readings import READ, WEATHER, arguments, put_together, read, read_all_ways
from streamglot.inband import FORMATS, find_format, format_for_model, parse_text
from streamglot.inband.engines import WrittenCall

NAMES = """
hermes longcat ernie45 granite4 reka_edge granite granite_20b_fc jamba hunyuan_a13b apriel nemotron_nano_v2 phi4_mini
firefunction_v2 llama3_json pythonic llama4_pythonic olmo3 lfm2 mistral xlam internlm2 gigachat3 functionary_v31
functionary_v32 cohere_command_r_plus cohere_command3 cohere_command4 apertus deepseek_v3 deepseek_r1_tools deepseek_v31
deepseek_v32 deepseek_v4 qwen3_coder nemotron_v3 step3p5 seed_oss minimax_m2 minimax_m3 glm4x ling3 poolside_v1 hy_v3
kimi_k2 kimi_k3 step3 dots minicpm5 muse_glimmer gemma4 functiongemma inkling harmony json_array generic_json deepseek_r1
qwen3_think think_generic kimi_vl_think minimax_m2_append_think llama_function tool_tags none
""".split()
WITH_CALLS = sorted(name for name, row in FORMATS.items() if row.engines)
ANY_NAME = ("gemma4", "kimi_k3")
"""Rows that accept any name, because their tokens can only mean a call."""
FENCED = ("generic_json", "xlam")
"""Rows in which a fence that contains only a call is a call."""
PARIS = WrittenCall("get_weather", '{"city": "Paris"}', "0")
ROME = WrittenCall("get_weather", '{"city": "Rome", "days": 2}', "1")


def test_every_format_is_there_by_its_name() -> None:
    assert set(NAMES) <= set(FORMATS)
    assert all(row.name == name and row.example for name, row in FORMATS.items())


@each(name=sorted(FORMATS))
def test_the_example(name: str) -> None:
    found = read_all_ways(FORMATS[name].example, name)
    if FORMATS[name].engines and name != "qwen3_think":
        assert arguments(found) == [("get_weather", {"city": "Paris"})]
        assert found["complete"] == [True]
        assert found["end"] == "tool_calls"
    elif FORMATS[name].untouched:
        assert found["text"].endswith(FORMATS[name].example)
    else:
        assert (found["reasoning"], found["text"], found["calls"]) == ("I think.", "It is sunny.", [])


@each(name=WITH_CALLS)
def test_text_before_between_and_after_calls(name: str) -> None:
    write = FORMATS[name].write
    before = "all\nBefore." if name == "functionary_v32" else "Before."
    found = read_all_ways(f"{before}\n{write([PARIS, ROME])}\nBehind.", name, starts_in_reasoning=False)
    assert arguments(found) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome", "days": 2})]
    assert found["text"].split() == ["Before.", "Behind."]
    found = read_all_ways(f"{before}\n{write([PARIS])}\nBetween.\n{write([ROME])}", name, starts_in_reasoning=False)
    assert arguments(found) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome", "days": 2})]
    assert found["text"].split() == ["Before.", "Between."]


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("glm4x", "<|user|>"),
        ("glm4x", "<|observation|>"),
        ("gemma4", "<|tool_response>"),
        ("functiongemma", "<start_function_response>"),
        ("minimax_m2", "[e~["),
    ],
)
def test_the_token_that_ends_a_turn_of_the_model_is_dropped_at_the_end(name: str, token: str) -> None:
    found = read_all_ways(f"{FORMATS[name].write([PARIS])}{token}", name, starts_in_reasoning=False)
    assert (found["text"], arguments(found)) == ("", [("get_weather", {"city": "Paris"})])
    assert read_all_ways(f"Hello.{token}", name, starts_in_reasoning=False)["text"] == "Hello."
    mention = f"The token {token} ends a turn."
    assert read_all_ways(mention, name, starts_in_reasoning=False)["text"] == mention


@each(name=WITH_CALLS)
def test_only_declared_tools_are_called(name: str) -> None:
    text = FORMATS[name].write([WrittenCall("rm_rf", '{"city": "Paris"}', "0")])
    found = read_all_ways(text, name, starts_in_reasoning=False)
    assert FORMATS[name].any_name == (name in ANY_NAME)
    if name in ANY_NAME:
        assert arguments(found) == [("rm_rf", {"city": "Paris"})]
        strict = parse_text(text, structs.replace(FORMATS[name], any_name=False), [WEATHER], starts_in_reasoning=False)
        assert put_together(strict)["calls"] == []
        return
    assert (found["calls"], found["end"]) == ([], "end")
    if name == "mistral":
        assert found["text"] == text.removeprefix("[TOOL_CALLS]"), "the opener is a token, and never text"
    else:
        assert found["text"] == text
    if name != "tool_tags" and not FORMATS[name].only_declared:
        assert len(read(text, name, None, starts_in_reasoning=False)["calls"]) == 1, "without tools every name may be called"


@each(name=sorted(set(WITH_CALLS) - set(FENCED)))
@each(fence=["```", "~~~~"])
def test_no_call_in_a_fence(name: str, fence: str) -> None:
    text = f"Look:\n{fence}\n{FORMATS[name].write([PARIS])}\n{fence}\nSo."
    found = read_all_ways(text, name, starts_in_reasoning=False)
    assert (found["calls"], found["text"]) == ([], text)


@each(name=WITH_CALLS)
def test_a_call_in_the_thinking_counts_only_where_the_row_says_so(name: str) -> None:
    row = FORMATS[name]
    if not row.think.openers:
        return
    opener, closer = row.think.openers[0], row.think.closers[0]
    text = f"{opener}Maybe {row.write([PARIS])}{closer}Well."
    found = read_all_ways(text, name, starts_in_reasoning=False)
    assert found["text"] == "Well."
    if row.engines[0].in_reasoning != "no":
        assert (arguments(found), found["reasoning"]) == ([("get_weather", {"city": "Paris"})], "Maybe")
    else:
        assert found["calls"] == []
        assert found["reasoning"].split() == f"Maybe {row.write([PARIS])}".split()


@each(name=WITH_CALLS)
def test_a_call_that_was_cut_is_text_or_incomplete(name: str) -> None:
    text = FORMATS[name].write([PARIS])
    for size in range(1, len(text)):
        found = read(text[:size], name, starts_in_reasoning=False)
        if found["complete"] == [True]:
            assert arguments(found) == [("get_weather", {"city": "Paris"})], text[:size]
        elif found["calls"]:
            assert (found["complete"], found["end"]) == ([False], "tool_call_parse_error")
            given = found["calls"][0][1]
            assert '{"city": "Paris"}'.startswith(given) or given.startswith('{"city": "Paris'), "and half of an end tag"
        elif name not in ("harmony", "kimi_k3"):
            left = text[:size].removeprefix("[TOOL_CALLS]")
            assert found["end"] in ("end", "tool_call_parse_error")
            assert found["text"].strip() in (left.strip(), left.removeprefix("<|message_sep|>").strip())


LIKE_PROSE = """
cohere_command_r_plus firefunction_v2 generic_json json_array llama3_json phi4_mini tool_tags xlam harmony
""".split()
"""Rows whose calls look like ordinary text, or like a message to somebody: what is not a call is never an error there."""


@each(name=sorted(set(WITH_CALLS) - set(ANY_NAME)))
def test_a_call_that_is_not_one_can_be_an_error(name: str) -> None:
    before = "all\nLook: " if name == "functionary_v32" else "Look: "
    text = before + FORMATS[name].write([WrittenCall("rm_rf", '{"city": "Paris"}', "0")])
    found = read_all_ways(text, name, starts_in_reasoning=False, bad_call="error")
    assert found["calls"] == []
    assert found["text"].startswith("Look:")
    assert found["end"] == ("end" if name in LIKE_PROSE else "tool_call_parse_error")


ALWAYS_THINK = """
ernie45 cohere_command4 deepseek_r1 deepseek_r1_tools qwen3_coder qwen3_think nemotron_v3 step3p5 seed_oss minimax_m2 glm4x
""".split()


def test_which_rows_begin_in_the_thinking() -> None:
    """A plain answer of these rows is reasoning by default; of every other row it is the answer."""
    assert sorted(name for name, row in FORMATS.items() if row.think.starts) == sorted(ALWAYS_THINK)
    for name in FORMATS:
        found = read("Hello.", name)
        assert found["reasoning" if name in ALWAYS_THINK else "text"].endswith("Hello.")
        assert read("Hello.", name, thinking=False)["text"].endswith("Hello.")
        assert read("Hello.", name, starts_in_reasoning=False)["text"].endswith("Hello.")


@pytest.mark.parametrize(
    ("format", "model", "starts"),
    [
        ("qwen3_coder", "", True),
        ("qwen3_coder", "Qwen/Qwen3-Coder-30B", False),
        ("qwen3_coder", "qwen3.5-plus", True),
        ("qwen3_coder", "some-other-model", True),
        ("kimi_k2", "", False),
        ("kimi_k2", "moonshotai/Kimi-K2-Thinking", True),
        ("kimi_k2", "kimi-k2.6", True),
        ("kimi_k2", "kimi-k2-instruct", False),
        ("kimi_k3", "kimi-k3", True),
        ("olmo3", "allenai/Olmo-3-32B-Think", True),
        ("olmo3", "olmo-3-7b-instruct", False),
        ("hermes", "qwq-32b", True),
        ("hermes", "kimi-k2-thinking", False),
    ],
)
def test_a_row_that_is_named_begins_as_the_model_does(format: str, model: str, starts: bool) -> None:
    row = find_format(format, model)
    assert (row.name, row.think.starts) == (format, starts)


def test_a_row_itself_is_taken_as_it_is() -> None:
    row = FORMATS["hermes"]
    assert find_format(row) is row
    assert find_format("none", "gpt-oss-20b") is FORMATS["none"]
    assert format_for_model("provider/GPT-OSS-20B@cloud") is FORMATS["harmony"]


def test_two_tools() -> None:
    text = FORMATS["hermes"].write([PARIS, WrittenCall("read", '{"filePath": "a"}')])
    found = read_all_ways(text, "hermes", [WEATHER, READ])
    assert arguments(found) == [("get_weather", {"city": "Paris"}), ("read", {"filePath": "a"})]


@each(name=sorted(FORMATS))
def test_plain_words_are_never_an_error(name: str) -> None:
    text = "It is to=sunny, a < b; see [1] and {x}.\nThat is all."
    found = read_all_ways(text, name, starts_in_reasoning=False, bad_call="error")
    assert (found["text"].removeprefix("<think>"), found["end"]) == (text, "end")
