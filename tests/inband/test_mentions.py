"""Text that mentions the markup of its own format: it arrives unchanged, in the answer and in the reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from each import each
from inband.notations import CALLS, markup
from inband.readings import PYTHON, WEATHER, read, read_all_ways
from streamglot.events import StreamStart, TextDelta, ToolCallStart
from streamglot.inband import FORMATS, inband
from streamglot.inband.engines import WrittenCall
from streamglot.inband.prose import MAX_QUOTED_MARKERS
from streamglot.inband.scan import MAX_TRAIL_CHARS, SPECIAL_TOKENS

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


@each(tools=[TOOLS, (WEATHER,), None])
@pytest.mark.parametrize("name", ROWS)
def test_a_sentence_with_a_marker_is_unchanged_text(name: str, tools: Any) -> None:
    for word in words(name):
        if tools is TOOLS and word in CODE.get(name, ()):
            continue
        for sentence in SENTENCES:
            text = sentence.replace("{}", word)
            for more in ({}, {"calls": False}, {"reasoning": False}, {"bad_call": "text"}):
                assert read(text, name, tools, starts_in_reasoning=False, **more) == expected(text), (text, more)


@each(name=ROWS)
def test_a_sentence_with_a_marker_is_unchanged_at_every_split(name: str) -> None:
    for word in markup(name):
        text = SENTENCES[0].replace("{}", word)
        assert read_at_every_split(text, name, (WEATHER,), starts_in_reasoning=False) == expected(text)


@each(tools=[(WEATHER,), None])
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


# --- calls in quotes

MARKS = [("`", "`"), ("``", "``"), ("`` ", " ``"), ("```", "```"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’")]
WRITTEN = {
    name: CALLS.get(name, "{}").format(row.write([WrittenCall("get_weather", '{"city": "Paris"}')]))
    for name, row in FORMATS.items()
    if any(engine.openers for engine in row.engines) or name == "tool_tags"
}
"""A call in each notation."""


def call_of(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["calls"], found["complete"]


CALLED = ([["get_weather", '{"city": "Paris"}']], [True])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_quoted_call_is_unchanged_text(name: str) -> None:
    for opening, closing in MARKS:
        for text in (f"Write {opening}{WRITTEN[name]}{closing} to call it.", f"({opening}{WRITTEN[name]}{closing})"):
            if opening.endswith("`") and WRITTEN[name].startswith("`"):
                continue
            for more in ({}, {"calls": False}, {"bad_call": "text"}, {"bad_call": "error"}):
                assert read_all_ways(text, name, starts_in_reasoning=False, **more) == expected(text), (text, more)


@each(name=[name for name in WRITTEN if not WRITTEN[name].startswith("`")])
def test_a_quoted_call_is_unchanged_at_every_split(name: str) -> None:
    text = f"Write `{WRITTEN[name]}` to call it."
    assert read_at_every_split(text, name, (WEATHER,), starts_in_reasoning=False) == expected(text)


@each(calls=[True, False])
@pytest.mark.parametrize("name", [name for name in WRITTEN if FORMATS[name].think.openers])
def test_a_quoted_call_does_not_end_a_thought(name: str, calls: bool) -> None:
    think = FORMATS[name].think
    for opening, closing in MARKS:
        thought = f"I write {opening}{WRITTEN[name]}{closing} now."
        text = f"{think.openers[0]}{thought}{think.closers[0]}Hi"
        found = read_all_ways(text, name, starts_in_reasoning=False, calls=calls)
        assert found == expected("Hi", thought), text


@each(name=WRITTEN)
def test_a_call_after_an_apostrophe_or_a_single_mark_is_a_call(name: str) -> None:
    for lead in ("I don'", 'I look up "Paris"', "I run `look`", 'It is 5"', "So `", "So ``", 'So "'):
        if lead.endswith("`") and WRITTEN[name].startswith("`"):
            continue
        for behind in ("", " Well."):
            found = read_all_ways(lead + WRITTEN[name] + behind, name, starts_in_reasoning=False)
            assert call_of(found) == CALLED, (lead, behind)
            assert found["text"].startswith(lead)
            assert found["end"] == "tool_calls"


@pytest.mark.parametrize(
    ("before", "behind"), [("``", "`"), ("`", "``"), ("`", '"'), ("“", "“"), ("`x` ", " `"), ("`" * 16, "`" * 16), ("(", ")")]
)
def test_marks_that_do_not_match_quote_nothing(before: str, behind: str) -> None:
    found = read_at_every_split(f"So {before}{WRITTEN['hermes']}{behind} Well.", "hermes", (WEATHER,))
    assert call_of(found) == CALLED
    assert found["text"] == f"So {before}{behind} Well."


@pytest.mark.parametrize("before", ["I change `main.py`", 'It is "main.py"', "the users'", "Done.'"])
def test_a_call_after_a_closing_mark_streams_from_its_beginning(before: str) -> None:
    box = inband("hermes", tools=[WEATHER], starts_in_reasoning=False)
    events = box.feed(StreamStart())
    events += box.feed(TextDelta(before + '<tool_call>{"name": "get_weather", "arguments": {"city": "Par'))
    assert any(isinstance(event, ToolCallStart) for event in events)


@pytest.mark.parametrize("mark", ["`", "``", '"'])
def test_a_quoted_call_that_is_the_whole_answer_is_a_call(mark: str) -> None:
    call = FORMATS["hermes"].write([WrittenCall("get_weather", '{"city": "Paris"}', "0")])
    found = read_at_every_split(f"{mark}{call}{mark}", "hermes", TOOLS, starts_in_reasoning=False)
    assert found["calls"] == [["get_weather", '{"city": "Paris"}']]
    text = f"{mark}{call}{mark} is a call."
    assert read_at_every_split(text, "hermes", TOOLS, starts_in_reasoning=False)["text"] == text


def test_several_calls_in_one_quotation_are_text() -> None:
    calls = "\n".join([WRITTEN["hermes"]] * MAX_QUOTED_MARKERS)
    assert read_all_ways(f"So `{calls}` is long.", "hermes") == expected(f"So `{calls}` is long.")
    found = read_all_ways(f"So `{calls}{WRITTEN['hermes']}` is too long.", "hermes")
    assert len(found["calls"]) == MAX_QUOTED_MARKERS + 1


def test_words_around_a_quoted_call_are_text() -> None:
    text = f"So `<|tool_call|>{WRITTEN['phi4_mini']}<|/tool_call|>` is written."
    assert read_at_every_split(text, "phi4_mini", (WEATHER,)) == expected(text)
    text = f"So `<|tool_call|>{WRITTEN['phi4_mini']}<|/tool_call|> is written."
    assert call_of(read_at_every_split(text, "phi4_mini", (WEATHER,))) == CALLED


@pytest.mark.parametrize(
    ("name", "markup"),
    [
        ("hermes", '`<tool_call>{"name": "get_weather", "arguments": ...}</tool_call>`'),
        ("hermes", '`` <tool_call>{"name": "get_weather", "arguments": `...`}</tool_call> ``'),
        ("hermes", '"<tool_call>{"name": "get_weather", "arguments": ...}</tool_call>"'),
        ("llama_function", "“<function=get_weather>…</function>”"),
        ("harmony", '"<|channel|>commentary to=functions.get_weather<|message|>{...}<|call|>"'),
        ("mistral", "`[TOOL_CALLS]get_weather[ARGS]{...}`"),
        ("deepseek_v32", "`<｜DSML｜tool_calls>...</｜DSML｜tool_calls>`"),
    ],
)
def test_a_quoted_call_that_is_not_whole_is_text(name: str, markup: str) -> None:
    text = f"It writes {markup} then."
    for more in ({}, {"bad_call": "error"}):
        assert read_at_every_split(text, name, (WEATHER,), starts_in_reasoning=False, **more) == expected(text)


@pytest.mark.parametrize("behind", [" Well.", "\n\nSee `x`.", " " + "x" * 3000 + "`", "<tool_call>`", "x`", "``"], ids=range(6))
def test_a_call_that_breaks_after_a_mark_without_an_end_is_an_error(behind: str) -> None:
    before = "So:`" if behind == "x`" else "So `"
    found = read_all_ways(f'{before}<tool_call>{{"name": "get_weather", "arguments": oops}}{behind}', "hermes")
    assert (found["complete"], found["end"]) == ([False], "tool_call_parse_error")


@each(name=[name for name in WRITTEN if "`" not in WRITTEN[name]])
def test_half_a_call_in_an_open_code_span_is_text(name: str) -> None:
    call = WRITTEN[name]
    for at in range(call.index("get_weather"), call.index("Paris") + 3):
        text = f"It writes `{call[:at]}"
        found = read_all_ways(text, name, starts_in_reasoning=False)
        assert (found["text"], found["calls"], found["end"]) == (text, [], "end")


def test_half_a_call_after_another_mark_is_an_error() -> None:
    half = '<tool_call>{"name": "get_weather", "arguments": {"ci'
    for lead in ("I don'", 'It writes "', "I run `look`"):
        assert read_all_ways(lead + half, "hermes")["end"] == "tool_call_parse_error"


def test_the_text_before_a_quoted_call_flows_and_the_call_waits() -> None:
    box = inband("hermes", [WEATHER])
    call = WRITTEN["hermes"]
    for piece, given in ((f"It is `{call[:40]}", "It is `"), (call[40:], ""), ("`", ""), (" so", f"{call}` so")):
        assert "".join(event.text for event in box.feed(TextDelta(piece)) if isinstance(event, TextDelta)) == given


def test_a_quoted_call_that_is_too_long_to_hold_is_a_call() -> None:
    text = f"So `{WRITTEN['hermes'].replace('Paris', 'x' * MAX_TRAIL_CHARS)}` here."
    for pieces in (text, [text[at : at + 50_000] for at in range(0, len(text), 50_000)]):
        found = read(pieces, "hermes")
        assert (found["complete"], found["text"]) == ([True], "So `` here.")


def test_a_quotation_at_the_end_of_a_message_does_not_hide_the_next_one() -> None:
    text = '<|channel|>analysis<|message|>I say "Hi"<|end|><|start|>assistant<|channel|>final<|message|>"Hi" it is.<|return|>'
    assert read_at_every_split(text, "harmony", (WEATHER,)) == expected('"Hi" it is.', 'I say "Hi"')


def test_a_quoted_call_in_a_message_to_the_user_is_text() -> None:
    markup = WRITTEN["muse_glimmer"].partition("<|message|>")[2].removesuffix("<|eom|>")
    text = f"<|start|>assistant to=user<|message|>So `{markup}` is one.<|eot|>"
    assert read_at_every_split(text, "muse_glimmer", (WEATHER,)) == expected(f"So `{markup}` is one.")


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
