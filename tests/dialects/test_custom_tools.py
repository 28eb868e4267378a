"""Custom tools emulated by functions: the calls come back as custom calls, wherever their arguments are split."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_checks import feed_all
from streamglot import Event, PerChoice, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, ToolCallDelta, ToolCallEnd
from streamglot.dialects.common.custom_tools import CustomCalls, as_function, with_functions_only
from streamglot.events import BareEvent, Choice, Echo, KeepAlive, ToolCallStart
from streamglot.messages import Message, Request, TextPart, ToolCallPart, ToolResultPart, ToolSpec

PATCH = '*** Begin Patch\n*** Add File: a.txt\n+say "hi"\\n\t\u2028 \U0001f600 é\n*** End Patch'
NAMES = frozenset(("apply_patch",))


def events(*pieces: str, complete: bool = True, name: str = "apply_patch") -> list[BareEvent]:
    return [ToolCallStart("c", name), *map(ToolCallDelta, pieces), ToolCallEnd(complete=complete)]


def restored(*pieces: str, complete: bool = True) -> str:
    """The text of the custom call that these pieces of arguments become."""
    given = feed_all(CustomCalls(NAMES), events(*pieces, complete=complete))
    assert given[0] == ToolCallStart("c", "apply_patch", "custom")
    assert given[-1] == ToolCallEnd(complete=complete)
    assert all(isinstance(event, ToolCallDelta) and event.args for event in given[1:-1])
    return "".join(event.args for event in given[1:-1])


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("spaces", ["", " ", "\n\t"])
def test_every_cut_of_the_arguments_gives_the_same_text(ascii_only: bool, spaces: str) -> None:
    text = json.dumps(PATCH, ensure_ascii=ascii_only)
    arguments = f'{spaces}{{{spaces}"input"{spaces}:{spaces}{text}{spaces}}}{spaces}'
    assert restored(arguments) == PATCH
    assert restored(*arguments) == PATCH
    for cut in range(len(arguments)):
        assert restored(arguments[:cut], arguments[cut:]) == PATCH, cut


@given(st.text(), st.data())
def test_any_text_in_any_cuts(text: str, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=6)))
    places = [0, *cuts, len(arguments)]
    whole = "".join(char if not "\ud800" <= char <= "\udfff" else "\ufffd" for char in text)
    assert restored(*(arguments[a:b] for a, b in pairwise(places))) == whole


def test_the_text_flows_before_the_arguments_end() -> None:
    box = CustomCalls(NAMES)
    start, *rest = events('{"input": "*** Beg', "in\\n+a", '"}')
    assert box.feed(start) == [ToolCallStart("c", "apply_patch", "custom")]
    assert [box.feed(event) for event in rest] == [
        [ToolCallDelta("*** Beg")],
        [ToolCallDelta("in\n+a")],
        [],
        [ToolCallEnd()],
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ("null", ""),
        ('{"input": ""}', ""),
        ('{"patch": "p"}', "p"),
        ('{"reason": "r", "input": "p"}', "p"),
        ('{"input": "p", "reason": "r"}', "p"),
        ('"p"', "p"),
        ('{"input": {"a": 1}}', '{"a":1}'),
        ('{"input": null}', ""),
        ('{"a": 1, "b": 2}', '{"a":1,"b":2}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input":' + " " * 500 + '"p"}', "p"),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"input": "\\ud83dx"}', "\ufffdx"),
        ('{"input": "\\ud83d\\n"}', "\ufffd\n"),
        ('{"input": "\\ud83d\\u0041"}', "\ufffdA"),
        ('{"input": "\\udc00"}', "\ufffd"),
        ('{"input": "\\q\\/\\uzzzz"}', "q/\ufffd"),
    ],
)
def test_arguments_of_other_forms(arguments: str, text: str) -> None:
    assert restored(arguments) == text
    assert restored(*arguments) == text


@pytest.mark.parametrize("end", ["", "\\", "\\u", "\\u00", "\\ud83d", "\\ud83d\\", "\\ud83d\\ude"])
def test_half_an_input_stays_half(end: str) -> None:
    text = restored(f'{{"input": "ab{end}', complete=False)
    assert text in ("ab", "ab\ufffd")
    assert restored(*f'{{"input": "ab{end}', complete=False) == text


def test_other_calls_and_events_pass() -> None:
    native = Echo("p", {"id": "x"})
    others: list[Event] = [
        StreamStart("a"),
        *events('{"input": "x"}', name="other"),
        ToolCallStart("d", "apply_patch", "custom"),
        ToolCallDelta("as it is"),
        ToolCallEnd(),
        ToolCallStart("s", "apply_patch", "server"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        TextStart(),
        TextDelta("t"),
        TextEnd(),
        StreamEnd("tool_calls"),
    ]
    assert feed_all(CustomCalls(NAMES), others) == others
    box = CustomCalls(NAMES)
    assert box.feed(ToolCallStart("c", "apply_patch", native=native)) == [ToolCallStart("c", "apply_patch", "custom", native)]
    assert box.feed(KeepAlive()) == [KeepAlive()]


def test_each_choice_has_a_call_of_its_own() -> None:
    box = PerChoice(lambda: CustomCalls(NAMES))
    both: list[Event] = []
    for event in events('{"input":', '"x"}'):
        both += [event, Choice(1, event)]
    given = feed_all(box, [StreamStart("a"), *both])
    assert [event for event in given if isinstance(event, ToolCallDelta)] == [ToolCallDelta("x")]
    assert [event.event for event in given if isinstance(event, Choice)][1] == ToolCallDelta("x")


# --- the upstream request


def test_a_grammar_stands_in_the_description() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: PATCH"}}
    tool = as_function(ToolSpec("apply_patch", "Patches files.", kind="custom", format=grammar))
    assert (tool.kind, tool.format) == ("function", None)
    assert tool.description.startswith("Patches files.\n\n")
    assert tool.description.endswith("start: PATCH")
    assert tool.parameters == {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    for form in (None, {"type": "text"}, {"type": "grammar", "grammar": {}}):
        assert "grammar" not in as_function(ToolSpec("x", kind="custom", format=form)).description


def test_a_request_with_functions_only() -> None:
    plain = Request("m", [Message("user", [TextPart("a")])], [ToolSpec("f")])
    assert with_functions_only(plain) is plain
    calls: list[Any] = [TextPart("t"), ToolCallPart("c", "apply_patch", 'x"', "custom"), ToolCallPart("d", "f", "{}")]
    messages = [Message("assistant", calls), Message("tool", [ToolResultPart("c", [], kind="custom")])]
    request = with_functions_only(Request("m", messages, [ToolSpec("apply_patch", kind="custom"), ToolSpec("f")]))
    assert [tool.kind for tool in request.tools] == ["function", "function"]
    first, second = request.messages
    assert first.parts == [TextPart("t"), ToolCallPart("c", "apply_patch", '{"input":"x\\""}'), ToolCallPart("d", "f", "{}")]
    assert second.parts == [ToolResultPart("c", [])]
    assert messages[0].parts[1] == ToolCallPart("c", "apply_patch", 'x"', "custom"), "the request itself is not changed"
