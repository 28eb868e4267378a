"""The request side: tools, calls and results in words."""

from __future__ import annotations

import pytest
from readings import arguments, read

from streamglot.inband import FORMATS, as_prompt
from streamglot.messages import Message, Request, TextPart, ToolCallPart, ToolChoice, ToolResultPart, ToolSpec

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
    return Request(model="m", messages=messages, tools=TOOLS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(name for name, row in FORMATS.items() if row.engines))
def test_earlier_calls_are_written_as_the_parser_reads_them(name: str) -> None:
    made = as_prompt(request(), name)
    written = made.messages[2].parts[1]
    assert isinstance(written, TextPart)
    text = written.text.removeprefix("\n") if name == "functionary_v32" else written.text
    found = read(text, name, TOOLS[:2], starts_in_reasoning=False)
    assert arguments(found) == [("get_weather", {"city": "Paris", "days": 1}), ("get_weather", {"city": "Rome"})]
    assert made.messages[0].text.startswith("Be brief.\n\nYou can call tools.")
    assert "get_weather" in made.messages[0].text


def test_results_speak_as_the_user_and_none_is_dropped() -> None:
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
