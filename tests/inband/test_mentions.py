"""Text that mentions the markup of its own format: it arrives unchanged, in the answer and in the reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from inband.notations import markup
from inband.readings import PYTHON, WEATHER, read
from streamglot.events import TextDelta
from streamglot.inband import FORMATS, inband
from streamglot.inband.scan import SPECIAL_TOKENS

TOOLS = (WEATHER, PYTHON)
ROWS = sorted(name for name, row in FORMATS.items() if not row.untouched)
SENTENCES = (
    "Aaa bbb. The {} mark is used here. Zzz yyy.",
    "It is written with {}, or with {}; not with anything else.",
    "A line.\n\nThe word {} is one. It ends with {}.",
)
CODE = {"llama3_json": ("<|python_tag|>",), "functionary_v31": ("<|python_tag|>",)}
"""Markers after which everything is code, if an interpreter was declared."""


def words(name: str) -> list[str]:
    row = FORMATS[name]
    ends = [word for engine in row.engines for word in engine.ends]
    return sorted({*markup(name), *ends, *SPECIAL_TOKENS})


def splits(text: str) -> list[list[str]]:
    return [list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]


def read_at_every_split(text: str, name: str, tools: Any, **more: Any) -> dict[str, Any]:
    whole = read(text, name, tools, **more)
    for pieces in splits(text):
        assert read(pieces, name, tools, **more) == whole, pieces
    return whole


def expected(text: str = "", reasoning: str = "") -> dict[str, Any]:
    return {"text": text, "reasoning": reasoning, "calls": [], "complete": [], "ids": [], "end": "end"}


@pytest.mark.parametrize("tools", [TOOLS, (WEATHER,), None], ids=["tools", "a tool", "no tools"])
@pytest.mark.parametrize("name", ROWS)
def test_a_sentence_with_a_marker_is_unchanged_text(name: str, tools: Any) -> None:
    for word in words(name):
        if tools is TOOLS and word in CODE.get(name, ()):
            continue
        for sentence in SENTENCES:
            text = sentence.replace("{}", word)
            for more in ({}, {"calls": False}, {"reasoning": False}, {"bad_call": "text"}):
                assert read(text, name, tools, starts_in_reasoning=False, **more) == expected(text), (text, more)


@pytest.mark.parametrize("name", ROWS)
def test_a_sentence_with_a_marker_is_unchanged_at_every_split(name: str) -> None:
    for word in markup(name):
        text = SENTENCES[0].replace("{}", word)
        assert read_at_every_split(text, name, (WEATHER,), starts_in_reasoning=False) == expected(text)


@pytest.mark.parametrize("tools", [(WEATHER,), None], ids=["a tool", "no tools"])
@pytest.mark.parametrize("name", [name for name in ROWS if FORMATS[name].think.openers])
def test_a_thought_with_a_marker_is_one_thought(name: str, tools: Any) -> None:
    think = FORMATS[name].think
    for word in set(words(name)) - set(think.closers):
        for sentence in SENTENCES:
            thought = sentence.replace("{}", word)
            text = f"{think.openers[0]}{thought}{think.closers[0]}Hi"
            assert read(text, name, tools, starts_in_reasoning=False) == expected("Hi", thought), text
        assert read_at_every_split(text, name, tools, starts_in_reasoning=False) == expected("Hi", thought)


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "Strike <s>old</s> new."),
        ("mistral", "Strike <s>old</s>"),
        ("gigachat3", "Strike <s>old</s> new."),
        ("granite", "I wrote: Here is my response to the letter."),
        ("granite", "Here is my thought process on that: first, second."),
        ("granite", "He says: Here is my thought process: a, b. Here is my response: c."),
        ("apriel", "He says: Here are my reasoning steps: a, b."),
        ("qwen3_coder", "XML: <root><function>a</function></root> ok."),
        ("qwen3_coder", "XML: <function>a</function>"),
        ("minicpm5", "XML: <function>a</function> <function x='1'>b</function>"),
        ("minimax_m2", "XML: <invoke>a</invoke>."),
        ("hunyuan_a13b", "XML: <answer>a</answer> and <answer>b</answer>"),
        ("ernie45", "XML: <response>a</response>"),
        ("hermes", "Write <tool_call></tool_call> around it, and <think></think> before it."),
        ("hermes", "A ChatML turn: <|im_start|>user\nHi<|im_end|>\nand so on."),
        ("cohere_command3", "A citation is <co> and </co: 0:[1]> around it."),
        ("inkling", 'Say "<|message_model|><|content_text|>" or `<|end_message|><|message_model|><|content_text|>` first.'),
        ("inkling", "Write <|end_message|><|message_model|> there."),
        ("harmony", 'First "<|end|><|start|>", then (<|channel|>) and the <|end|> token.'),
    ],
)  # fmt: skip
def test_other_text_that_looks_like_markup_is_unchanged(name: str, text: str, tools: Any) -> None:
    for whole in (text, text + " Well."):
        assert read_at_every_split(whole, name, tools, starts_in_reasoning=False) == expected(whole)


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "answer"),
    [
        ("hermes", 'I close with "</think>" then.</think>Hi', 'I close with "</think>" then.', "Hi"),
        ("hermes", 'I answer "Paris"</think>"Paris" it is.', 'I answer "Paris"', '"Paris" it is.'),
        ("mistral", "Strike <s>old</s>[/THINK]Hi", "Strike <s>old</s>", "Hi"),
        ("glm4x", "I could use <tool_call> here. Hmm.</think>Hi", "I could use <tool_call> here. Hmm.", "Hi"),
        ("glm4x", "Then <tool_call></tool_call> is empty.</think>Hi", "Then <tool_call></tool_call> is empty.", "Hi"),
        ("glm4x", "I call:<tool_call>no name</tool_call> No.</think>Hi", "I call:<tool_call>no name</tool_call> No.", "Hi"),
        ("kimi_k2", "A <|tool_calls_section_begin|> token.</think>Hi", "A <|tool_calls_section_begin|> token.", "Hi"),
        ("seed_oss", "One. <seed:cot_budget_reflect>Two.</seed:cot_budget_reflect>Three.</seed:think>Hi",
         "One. Two.Three.", "Hi"),
        ("gigachat3", "A <|message_sep|> and </s> here.</think>Hi", "A <|message_sep|> and </s> here.", "Hi"),
    ],
)  # fmt: skip
def test_a_thought_keeps_its_text(name: str, text: str, reasoning: str, answer: str) -> None:
    for tools in ((WEATHER,), None):
        assert read_at_every_split(text, name, tools, starts_in_reasoning=True) == expected(answer, reasoning)


def test_a_header_in_a_thought_counts_only_if_it_is_one() -> None:
    thought = 'The <|start|> token, the <|end|> token. And "<|channel|>".'
    text = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
    assert read_at_every_split(text, "harmony", (WEATHER,)) == expected("Hi", thought)
    thought = "The <|open|> token."
    text = f"<|open|>think<|sep|>{thought}<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>"
    assert read_at_every_split(text, "kimi_k3", (WEATHER,)) == expected("Hi", thought)


# --- words that are dropped


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("hermes", "Hello.</tool_call>", "Hello."),
        ("hermes", "Hello.</tool_call>\n<|im_end|>\n<|endoftext|>", "Hello."),
        ("hermes", "Hello.</think>\n", "Hello."),
        ("hermes", "Reasons.\n</think>\n\nHello.", "Reasons.\n\n\nHello."),
        ("hermes", "<bos>Hello!<eos> There.", "Hello! There."),
        ("hunyuan_a13b", "<answer>\nHello.\n</answer>", "Hello."),
        ("ernie45", "<response>Hello.</response>", "Hello."),
        ("mistral", "Hello.</s>", "Hello."),
        ("mistral", "[TOOL_CALLS] is not a call", "is not a call"),
        ("cohere_command3", "<|START_RESPONSE|>It is <co>Paris</co: 0:[1]>.<|END_RESPONSE|>", "It is Paris."),
        ("inkling", "<|content_text|>One.<|end_message|><|message_model|><|content_text|>Two.<|end_message|>", "One.Two."),
    ],
)
def test_words_that_wrap_an_answer_are_dropped(name: str, text: str, answer: str) -> None:
    found = read_at_every_split(text, name, (WEATHER,), starts_in_reasoning=False)
    assert {**found, "text": found["text"].strip()} == expected(answer)


def test_words_around_a_call_are_dropped() -> None:
    call = FORMATS["phi4_mini"].example
    found = read_at_every_split(f"I look. <|tool_call|>{call}<|/tool_call|> Well.", "phi4_mini", (WEATHER,))
    assert (found["text"], found["calls"]) == ("I look.  Well.", [["get_weather", '{"city": "Paris"}']])
    call = FORMATS["hermes"].example
    found = read_at_every_split(f"I look.</tool_call>\n{call}\n</tool_call>\n Well.", "hermes", (WEATHER,))
    assert (found["text"], len(found["calls"])) == ("I look.\n\n Well.", 1)


def test_a_word_waits_only_until_the_next_visible_character() -> None:
    box = inband("hermes", [WEATHER])
    for piece, given in (
        ("So </tool_call>", "So"),
        (" \n", ""),
        ("a", " </tool_call> \na"),
        (" </tool_call", ""),
        ("> b", " </tool_call> b"),
    ):
        assert "".join(event.text for event in box.feed(TextDelta(piece)) if isinstance(event, TextDelta)) == given


def test_many_words_in_a_row_are_read_once() -> None:
    text = "x" + "</tool_call>\n" * 2000 + "y"
    assert read(text, "hermes") == expected(text)


# --- the end of the text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "get_w'),
        ("glm4x", "<tool_call>get_wea"),
        ("glm4x", "<tool_call>get_weather\n"),
        ("glm4x", "<tool_call>get_weather\n<arg_key>ci"),
        ("minimax_m2", '<invoke name="get_weather'),
        ("olmo3", "<function_calls>\nget_weather(city="),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_wea"),
    ],
)
def test_a_text_that_ends_inside_a_call_is_an_error(name: str, text: str) -> None:
    for lead in ("", "I look.\n"):
        found = read_at_every_split(lead + text, name, (WEATHER,), starts_in_reasoning=False)
        assert (found["text"].strip(), found["calls"], found["end"]) == ((lead + text).strip(), [], "tool_call_parse_error")


def test_without_tools_a_half_call_needs_more_than_a_name() -> None:
    assert read("<function_calls>\nlook(city=", "olmo3", None)["end"] == "tool_call_parse_error"
    assert read("<function_calls>\nlook", "olmo3", None) == expected("<function_calls>\nlook")


def test_a_thought_that_ends_with_an_opener_has_ended() -> None:
    assert read_at_every_split("Hm.<tool_call>tool call", "glm4x", None) == expected("<tool_call>tool call", "Hm.")
    assert read_at_every_split("Hm. <tool_call> tag", "glm4x", None) == expected("", "Hm. <tool_call> tag")
    assert read_at_every_split("A <tool_call> tag", "glm4x", None, calls=False) == expected("", "A <tool_call> tag")


def test_markup_of_another_notation_is_text() -> None:
    text = "It was <｜DSML｜tool_calls>\n<｜DSML｜invoke>\n</｜DSML｜tool_calls> before."
    assert read_at_every_split(text, "deepseek_v32", (WEATHER,)) == expected(text)


def test_an_empty_call_in_a_thought_does_not_end_it() -> None:
    thought = "Then <tool_call></tool_call> is empty."
    for name, calls in (("qwen3_coder", True), ("qwen3_coder", False), ("glm4x", True)):
        found = read_at_every_split(f"{thought}</think>Hi", name, (WEATHER,), starts_in_reasoning=True, calls=calls)
        assert found == expected("Hi", thought)


@pytest.mark.parametrize("lead", ["Sure. ", "Let me see: ", "Really? ", "A line.\n"])
def test_a_thought_with_spaces_in_its_tags_follows_a_sentence(lead: str) -> None:
    found = read_at_every_split(f"{lead}<think> hm </think> Yes.", "hermes", TOOLS)
    assert found == expected(f"{lead} Yes.", " hm")


def test_a_second_call_that_breaks_off_is_an_error() -> None:
    text = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name'
    assert read_at_every_split(text, "mistral", TOOLS)["end"] == "tool_call_parse_error"
