"""The request side: tools, calls and results as text."""

from __future__ import annotations

from each import each
from inband.readings import arguments, read
from streamglot.inband import FORMATS, as_prompt
from streamglot.messages import MediaPart, Message, Part, Request, TextPart, ToolCallPart, ToolChoice, ToolResultPart, ToolSpec

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [ToolSpec("get_weather", "The weather.", SCHEMA), ToolSpec("now"), ToolSpec("search", kind="server")]


def request(**more: object) -> Request:
    messages = [
        Message("system", [TextPart("Be brief.")]),
        Message("user", [TextPart("Weather in Paris and Rome?")]),
        Message(
            "assistant",
            [
                TextPart("Let me see."),
                ToolCallPart("a", "get_weather", '{"city": "Paris", "days": 1}'),
                ToolCallPart("b", "get_weather", '{"city": "Rome"}'),
            ],
        ),
        Message("tool", [ToolResultPart("a", [TextPart("sunny")])]),
        Message("tool", [ToolResultPart("b", [TextPart("no such city")], is_error=True)]),
    ]
    return Request(model="m", messages=messages, tools=TOOLS, **more)  # type: ignore[arg-type]  # fields of a Request


@each(name=sorted(name for name, row in FORMATS.items() if row.engines))
def test_earlier_calls_are_written_as_the_parser_reads_them(name: str) -> None:
    made = as_prompt(request(), name)
    written = made.messages[2].parts[1]
    assert isinstance(written, TextPart)
    text = written.text.removeprefix("\n") if name == "functionary_v32" else written.text
    found = read(text, name, TOOLS[:2], starts_in_reasoning=False)
    assert arguments(found) == [("get_weather", {"city": "Paris", "days": 1}), ("get_weather", {"city": "Rome"})]
    assert made.messages[0].text.startswith("Be brief.\n\nYou can call tools.")
    assert "get_weather" in made.messages[0].text


def test_results_are_sent_as_the_user_and_none_is_dropped() -> None:
    made = as_prompt(request(), "hermes")
    assert [message.role for message in made.messages] == ["system", "user", "assistant", "user"]
    text = made.messages[3].text
    assert '<tool_response name="get_weather" id="a">\nsunny\n</tool_response>' in text
    assert '<tool_response name="get_weather" id="b" error="true">\nno such city\n</tool_response>' in text


def test_the_request_has_no_tools_left_but_those_of_the_provider() -> None:
    before = request(tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    made = as_prompt(before, "hermes")
    assert [tool.name for tool in made.tools] == ["search"]
    assert made.tool_choice is None
    assert made.parallel_tool_calls is None
    assert "You must call one of these tools now." in made.messages[0].text
    assert "one call at most" in made.messages[0].text
    assert len(before.tools) == 3
    assert before.messages[0].text == "Be brief."


def test_the_choice_of_tools() -> None:
    assert "You can call tools" not in as_prompt(request(tool_choice=ToolChoice("none")), "hermes").messages[0].text
    only = as_prompt(request(tool_choice=ToolChoice("required", ["now"])), "hermes").messages[0].text
    assert "You must call the tool now now." in only
    assert '"name": "get_weather"' not in only


def test_without_a_system_message_one_is_made() -> None:
    made = as_prompt(Request(messages=[Message("user", [TextPart("Hi")])], tools=TOOLS), "qwen3_coder")
    assert [message.role for message in made.messages] == ["system", "user"]
    assert "<function=get_weather>" in made.messages[0].text
    plain = Request(messages=[Message("user", [TextPart("Hi")])])
    assert as_prompt(plain, "hermes").messages == plain.messages


@each(name=sorted(FORMATS))
def test_the_tools_come_with_an_example_that_the_parser_reads(name: str) -> None:
    text = as_prompt(request(), name).messages[0].text
    for tool in TOOLS[:2]:
        assert f'"name": "{tool.name}"' in text
    assert '"city": {"type": "string"}' in text
    example = text.split("nothing behind it:\n\n")[1].split("\n\nSeveral calls")[0]
    if FORMATS[name].engines:
        found = read(example, name, TOOLS[:2], starts_in_reasoning=False)
        assert arguments(found) == [("get_weather", {"city": "value", "days": 1})]
        assert (found["text"], found["complete"]) == ("", [True])
    else:
        assert example == '{"name": "get_weather", "arguments": {"city": "value", "days": 1}}'


def test_an_example_of_every_type() -> None:
    kinds = ("string", "integer", "number", "boolean", "array", "object", "null", ["string", "null"])
    properties: dict[str, object] = {f"p{number}": {"type": kind} for number, kind in enumerate(kinds)}
    tool = ToolSpec("f", parameters={"type": "object", "properties": {**properties, "any": True}})
    text = as_prompt(Request(messages=[], tools=[tool]), "hermes").messages[0].text
    call = text.split("<tool_call>")[1].split("</tool_call>")[0]
    assert read(f"<tool_call>{call}</tool_call>", "hermes", [tool])["complete"] == [True]
    assert '"p0": "value", "p1": 1, "p2": 1.5, "p3": true, "p4": [], "p5": {}, "p6": null, "p7": "value", "any": "value"' in call


def test_calls_and_text_in_turn_keep_their_order() -> None:
    parts: list[Part] = [
        ToolCallPart("a", "now", ""),
        TextPart("And then"),
        ToolCallPart("s", "search", "{}", kind="server"),
        ToolCallPart("b", "now", "{}"),
    ]
    made = as_prompt(Request(messages=[Message("assistant", parts)], tools=TOOLS), "hermes")
    assert [message.role for message in made.messages] == ["system", "assistant"]
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert made.messages[1].parts == [TextPart(call), TextPart("And then"), parts[2], TextPart(call)]


def test_a_result_keeps_its_images_and_takes_its_name_from_the_call() -> None:
    picture = MediaPart("image/png", url="https://example.org/a.png")
    messages = [
        Message("user", [TextPart("?")]),
        Message("assistant", [ToolCallPart("a", "now", "{}")]),
        Message("user", [ToolResultPart("a", [TextPart("<noon>"), picture]), TextPart("And?")]),
    ]
    made = as_prompt(Request(messages=messages, tools=TOOLS), "hermes")
    assert made.messages[3].parts == [
        TextPart('<tool_response name="now" id="a">\n<noon>\n</tool_response>\n'),
        picture,
        TextPart("And?"),
    ]


def test_the_choice_in_words() -> None:
    def text(**more: object) -> str:
        return as_prompt(request(**more), "hermes").messages[0].text

    assert "Call a tool only if it helps" in text()
    assert "Call a tool only if it helps" in text(tool_choice=ToolChoice("auto"))
    assert "Several calls may follow each other" in text(parallel_tool_calls=True)
    assert "You must call one of these tools now." in text(tool_choice=ToolChoice("required", ["now", "get_weather"]))
    none = as_prompt(request(tool_choice=ToolChoice("none")), "hermes")
    assert "<tool_call>" in none.messages[2].text, "what was called before stays in the conversation"


def test_the_tools_join_the_first_system_message_even_after_the_user() -> None:
    messages = [Message("user", [TextPart("Hi")]), Message("developer", [])]
    made = as_prompt(Request(messages=messages, tools=TOOLS), "hermes")
    assert [message.role for message in made.messages] == ["user", "developer"]
    assert made.messages[1].text.startswith("You can call tools.")
