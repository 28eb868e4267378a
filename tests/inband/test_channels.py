"""Formats whose answer is a sequence of messages with headers."""

from __future__ import annotations

from typing import Any

import pytest

from inband.readings import PYTHON, WEATHER, arguments, outcome, read_all_ways

PARIS = ("get_weather", '{"city": "Paris"}')
CODE = ("python", '{"code": "print(1)"}')
HARMONY_CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
OTHER_CALL = '<|channel|>commentary to=functions.other <|constrain|>json<|message|>{"a": 1}<|call|>'
K3_ARGUMENT = '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
K3_ONE = f'<|open|>call tool="get_weather" index="1"<|sep|>{K3_ARGUMENT}<|close|>call<|sep|>'
K3_CALL = f"<|open|>tools<|sep|>{K3_ONE}<|close|>tools<|sep|>"
K3_NAMELESS = K3_ONE.replace("tool=", "tol=")


@pytest.mark.parametrize(
    ("format", "text", "reasoning", "answer", "calls"),
    [
        ("harmony", f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY_CALL}", "Hm.", "", [PARIS]),
        ("harmony", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b", []),
        ("harmony", "analysisHm.<|channel|>final<|message|>Yes.", "Hm.", "Yes.", []),
        ("harmony", "<|start|>assistant to=user<|channel|>commentary<|message|>One moment.<|end|>", "", "One moment.", []),
        ("harmony", f"{HARMONY_CALL}commentary{HARMONY_CALL}", "", "", [PARIS, PARIS]),
        ("harmony", f"{HARMONY_CALL}commentary follows", "", "commentary follows", [PARIS]),
        ("harmony", "<|start|>assistant to=get_weather<|channel|>analysis<|message|>{}<|call|>", "", "", [("get_weather", "{}")]),
        ("harmony", "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|><|call|>", "", "", [("get_weather", "{}")]),
        ("harmony", "<|channel|>commentary to=get_weather<|message|> <|call|><|channel|>final<|message|>Yes.", "", "Yes.",
         [("get_weather", "{}")]),
        ("harmony", "<|channel|>analysis to=other<|message|>{}<|call|>x", "{}", "x", []),
        ("harmony", "<|channel|>commentary to=get_weather<|message|>words<|end|>", "", "words", []),
        ("harmony", "<|channel|>analysis to=python code<|message|>print(1)<|call|>Yes.", "", "Yes.", [CODE]),
        ("harmony", "<|channel|>analysis to=python code<|message|>print(1)", "", "", [CODE]),
        ("harmony", "plain words", "", "plain words", []),
        ("harmony", "plain <|channel|>half a hea", "", "plain <|channel|>half a hea", []),
        ("harmony", "Yes.<|channel|>analysis<|message|>Hm.", "Hm.", "Yes.", []),
        # the recipient before the channel, where the prompt ended behind the role
        ("harmony", ' to=functions.get_weather<|channel|>analysis<|message|>{"city": "Paris"}<|call|>', "", "", [PARIS]),
        ("harmony", ' to=functions.get_weather<|channel|>commentary code<|message|>{"city": "Paris"}<|call|>', "", "", [PARIS]),
        ("harmony", f"{HARMONY_CALL} to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
                    '{"city": "Paris"}<|call|>', "", "", [PARIS, PARIS]),
        ("harmony", ' to=functions.get_weather<|channel|>commentary json{"city": "Paris"}<|call|>', "", "", [PARIS]),
        ("harmony", "to=sunny days", "", "to=sunny days", []),
        # a header that begins with a word of another one
        ("harmony", "commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         "Hm.", "Yes.", []),
        ("harmony", "<|channel|>analysis<|message|>Hm.<|end|>commentary to=assistant<|channel|>analysis<|message|>Hm?<|end|>",
         "Hm.Hm?", "", []),
        ("harmony", "analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>Yes.", "Hm.", "Yes.", []),
        ("harmony", "<|start|>assistant{x<|message|>Yes.", "", "<|start|>assistant{x<|message|>Yes.", []),
        # special tokens inside a header
        ("harmony", "<|channel|><eos>analysis<|message|>Hm.<|end|>", "Hm.", "", []),
        ("harmony", "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>", "Hm.", "", []),
        # without special tokens
        ("harmony", "analysisHm.assistantfinalYes.", "Hm.", "Yes.", []),
        ("harmony", "analysis Hm. assistantanalysis So. assistantfinal Yes.", "Hm.  So.", " Yes.", []),
        ("harmony", "assistantfinalYes.", "", "Yes.", []),
        ("harmony", 'analysisHm.assistantcommentary to=functions.get_weather json{"city": "Paris"}assistantfinalYes.',
         "Hm.", "Yes.", [PARIS]),
        ("harmony", 'commentary to=functions.get_weather json{"city": "Paris"}', "", "", [PARIS]),
        ("harmony", "analysisHm.assistantcommentaryOne moment.", "Hm.", "One moment.", []),
        ("harmony", "<|channel|>final<|message|>We say assistantfinal here.", "", "We say assistantfinal here.", []),
        ("harmony", " commentary on it", "", " commentary on it", []),
        ("harmony", "analysis", "", "analysis", []),
        ("harmony", "Yes.<|start|>assist", "", "Yes.", []),
        ("harmony", "Yes.<|channel|> fin", "", "Yes.", []),
        ("harmony", "Yes. <|channel|> Zzz", "", "Yes. <|channel|> Zzz", []),
        ("harmony", "Yes. <|start|>word", "", "Yes. <|start|>word", []),
        # a call of an undeclared tool is text, from its header to its end
        ("harmony", f"{OTHER_CALL}<|start|>assistant<|channel|>final<|message|>Yes.<|return|>", "", f"{OTHER_CALL}Yes.", []),
        ("harmony", f"{OTHER_CALL.removesuffix('<|call|>')}<|start|>assistant<|channel|>final<|message|>Yes.<|return|>", "",
         f"{OTHER_CALL.removesuffix('<|call|>')}Yes.", []),
        ("harmony", f"{OTHER_CALL}{HARMONY_CALL}", "", OTHER_CALL, [PARIS]),
        ("harmony", OTHER_CALL.replace("commentary", "analysis"), '{"a": 1}', "", []),
        ("harmony", "Yes.<|start|>assistant<|channe", "", "Yes.", []),
        # markup in a message to the user is not a call
        ("muse_glimmer", f"<|start|>assistant to=user<|message|>Like this: {ATEM} So.<|eot|>", "", f"Like this: {ATEM} So.", []),
        ("muse_glimmer", f"to=user<|message|>Hi.<|eom|><|start|>assistant to=get_weather<|message|>{ATEM}<|eot|>", "", "Hi.", [PARIS]),
        ("muse_glimmer", f"<|start|>assistant to=self<|message|>Hm.<|eom|>{ATEM}", "Hm.", "", [PARIS]),
        ("muse_glimmer", f" to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|>{ATEM}<|eot|>", "Hm.", "", [PARIS]),
        ("muse_glimmer", "to=user<|message|>Hello.<|eot|>", "", "Hello.", []),
        ("muse_glimmer", "to=infinity and beyond", "", "to=infinity and beyond", []),
        ("muse_glimmer", f"to=self<|message|>I would write {ATEM}<|eom|>", f"I would write {ATEM}", "", []),
        ("kimi_k3", f"<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>{K3_CALL}",
         "Hm.", "Yes.", [PARIS]),
        ("kimi_k3", "<|open|>message role=\"a\"<|sep|>Yes.<|close|>message<|sep|>", "", "Yes.", []),
        ("kimi_k3", "<|open|>tools<|open|>response<|sep|>Yes.", "", "Yes.", []),
        ("kimi_k3", "<|open|>other<|sep|>Yes.", "", "<|open|>other<|sep|>Yes.", []),
        ("kimi_k3", "<|open|><|sep|>Yes.", "", "<|open|><|sep|>Yes.", []),
        ("kimi_k3", "Yes.<|open|>resp", "", "Yes.", []),
        ("kimi_k3", "Yes.<|open|>words", "", "Yes.<|open|>words", []),
        ("kimi_k3", "<|open|>response and more<|sep|>Yes.", "", "<|open|>response and more<|sep|>Yes.", []),
        # what belongs to no call is text
        ("kimi_k3", f"{K3_ARGUMENT} So.", "", f"{K3_ARGUMENT} So.", []),
        ("kimi_k3", f"Yes.<|open|>tools<|sep|>{K3_NAMELESS}<|close|>tools<|sep|>", "", f"Yes.{K3_NAMELESS}", []),
        ("kimi_k3", f"{K3_NAMELESS}{K3_CALL}<|close|>call<|sep|>", "", K3_NAMELESS, [PARIS]),
        ("inkling", '<|message_model|>f<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>',
         "Hm.", "Yes.", []),
        ("inkling", "<|content_text|>A <|message_model|> opens it.<|end_message|>", "", "A <|message_model|> opens it.", []),
        ("inkling", '<|content_text|>A "<|content_thinking|>" so.<|end_message|>', "", 'A "<|content_thinking|>" so.', []),
        ("inkling", "Yes.<|message_model|>get_weather<|cont", "", "Yes.", []),
        ("inkling", "Yes.<|message_model|>cut", "", "Yes.<|message_model|>cut", []),
        ("inkling", "Yes.<|message_model|>get_weather", "", "Yes.", []),
        ("cohere_command3", "<|START_RESPONSE|>a <co>b</co: 0:[1]> c<|END_RESPONSE|>", "", "a b c", []),
        ("cohere_command3", "a <co>b</co: 0", "", "a b", []),
    ],
)  # fmt: skip
def test_messages(format: str, text: str, reasoning: str, answer: str, calls: list[Any]) -> None:
    found = read_all_ways(text, format, [WEATHER, PYTHON])
    assert (found["reasoning"], found["text"], [tuple(call) for call in found["calls"]]) == (reasoning, answer, calls)


@pytest.mark.parametrize(
    ("format", "text", "left", "written"),
    [
        ("harmony", "<|channel|>commentary to=get_weather<|message|>", "", ""),
        ("harmony", '<|channel|>commentary to=get_weather<|message|>{"city": oops}', "oops}", '{"city": '),
        ("kimi_k3", '<|open|>call tool="get_weather"<|sep|>', "", ""),
        ("kimi_k3", '<|open|>call tool="get_weather"<|sep|>words', "words", ""),
        ("kimi_k3", '<|open|>call tool="get_weather"<|sep|><|open|>other<|sep|>x', "<|open|>other<|sep|>x", ""),
        ("kimi_k3", '<|open|>call tool="get_weather"<|sep|><|open|>argument key="city"<|sep|>Par', "", '{"city": "Par'),
        ("kimi_k3", K3_CALL.replace("<|close|>argument<|sep|>", "") + "Yes.", "Yes.", '{"city": "Paris'),
        ("kimi_k3", '<|open|>call tool="get_weather"<|sep|><|close|>all<|sep|>Yes.', "<|close|>all<|sep|>Yes.", ""),
    ],
)
def test_calls_that_break(format: str, text: str, left: str, written: str) -> None:
    assert outcome(text, format) == (left, [("get_weather", written)], [False])


def test_types_in_attributes_and_calls_without_arguments() -> None:
    head = '<|open|>call tool="f" index="1"<|sep|>'
    argument = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
    inside = argument.format("n", "integer", "5") + argument.format("a&quot;", "boolean", "true") + argument.format("s", "", "5")
    found = read_all_ways(f"{head}{inside}<|close|>call<|sep|>", "kimi_k3", None)
    assert arguments(found) == [("f", {"n": 5, 'a"': True, "s": "5"})]
    assert outcome(f"{head}<|close|>call<|sep|>", "kimi_k3", None) == ("", [("f", "{}")], [True])
    found = read_all_ways(
        head.replace("f", "get_weather", 1) + argument.format("days", "string", "5") + "<|close|>call<|sep|>", "kimi_k3"
    )
    assert arguments(found) == [("get_weather", {"days": 5})], "what was declared counts more than what the model says"


@pytest.mark.parametrize(
    ("format", "text", "left"),
    [
        ("harmony", HARMONY_CALL, HARMONY_CALL),
        ("harmony", f"<|channel|>analysis<|message|>Hm.<|end|>{HARMONY_CALL}", HARMONY_CALL),
        ("muse_glimmer", f"to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|>{ATEM}<|eot|>",
         f"<|start|>assistant to=get_weather<|message|>{ATEM}<|eot|>"),
        ("kimi_k3", f"<|open|>think<|sep|>Hm.<|close|>think<|sep|>{K3_CALL}", K3_CALL),
        ("inkling", '<|message_model|>f<|content_invoke_tool_json|>{"name": "get_weather"}<|end_message|>',
         '<|message_model|>f<|content_invoke_tool_json|>{"name": "get_weather"}<|end_message|>'),
    ],
)  # fmt: skip
def test_calls_that_are_not_wanted_are_text(format: str, text: str, left: str) -> None:
    found = read_all_ways(text, format, [WEATHER], calls=False)
    assert (found["text"], found["calls"]) == (left, [])
    assert found["reasoning"] in ("", "Hm.")


def test_a_broken_call_is_text_with_the_headers_of_its_arguments() -> None:
    text = K3_ONE.replace("key=", "kei=")
    assert outcome(text, "kimi_k3", bad_call="text") == (text, [], [])
    left = text[text.index("<|open|>argument") :]
    assert outcome(text, "kimi_k3") == (left, [("get_weather", "")], [False])


@pytest.mark.parametrize(
    "value", ["a<|close|>argument<|sep|>", "<|close|>argument<|sep|>b", "<|close|>call<|sep|>", "<|open|>call"]
)
def test_a_value_may_contain_the_notation(value: str) -> None:
    found = read_all_ways(K3_CALL.replace("Paris", value), "kimi_k3", starts_in_reasoning=False)
    assert (arguments(found), found["complete"]) == ([("get_weather", {"city": value})], [True])
