"""The base of the engines: split markers, incremental JSON, and its cost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from streamglot.events import TextDelta, ToolCallEnd, ToolCallStart
from streamglot.inband import inband
from streamglot.inband.literals import PYTHON, Notation, decoded_string, value
from streamglot.inband.scan import Malformed, Markers, Source, Unfinished

BRACES = Notation(quotes=('<|"|>', '"'), bare_keys=True, bare_strings=True)


def run(steps: Any, source: Source, pieces: list[str]) -> str:
    """Feeds the pieces to a grammar, and returns what it left unread."""
    for piece in pieces:
        source.push(piece)
        try:
            next(steps)
        except StopIteration:
            return source.text[source.at :]
    source.closed = True
    for _ in steps:
        raise AssertionError("it waits for ever")
    return source.text[source.at :]


def written(text: str, notation: Any = None, pieces: list[str] | None = None) -> str:
    source = Source()
    parts: list[str] = []
    run(value(source, parts.append, *([notation] if notation else [])), source, pieces or [text])
    return "".join(parts)


def test_only_the_beginning_of_a_marker_is_held_back() -> None:
    markers = Markers(("<tool_call>", "</think>", "Here is", "Here is my response:"))
    assert markers.tail("a < b", 0) == 5
    assert markers.tail("a <to", 0) == 2
    assert markers.tail("a </thin", 0) == 2
    assert markers.undecided("Here is", 0)
    assert not markers.undecided("Here is it", 0)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stream_hands_on_what_is_not_a_marker(size: int) -> None:
    text = "one <two> <tool_call> three <tool_"
    source = Source()
    parts: list[str] = []
    found = []

    def grammar() -> Any:
        while True:
            marker = yield from source.stream(Markers(("<tool_call>",)), parts.append)
            found.append(marker)
            if not marker:
                return

    run(grammar(), source, [text[start : start + size] for start in range(0, len(text), size)])
    assert "".join(parts) == "one <two>  three <tool_"
    assert found == ["<tool_call>", ""]


@pytest.mark.parametrize(
    ("text", "notation", "expected"),
    [
        ('{"a": [1, 2.50, -3e5, true, null], "b": {"c": "x\\n\\u00e9"}}', None, '{"a": [1, 2.50, -3e5, true, null], "b": {"c": "x\\n\\u00e9"}}'),
        ('{"a": "line\nbreak\tand \\d"}', None, '{"a": "line\\nbreak\\tand \\\\d"}'),
        ('{"a": [1, 2,], }', None, '{"a": [1, 2] }'),
        ('{{"a": {{"b": 1}}}}', None, '{"a": {"b": 1}}'),
        ("{'a': (1, 'it\\'s', \"q\"), 'b': None}", PYTHON, '{"a": [1, "it\'s", "q"], "b": null}'),
        ("[0x10, 1_000, 007, .5]", PYTHON, "[16, 1000, 7, 0.5]"),
        ('{k:<|"|>a "b" c<|"|>,n:[1,two words,true]}', BRACES, '{"k":"a \\"b\\" c","n":[1,"two words",true]}'),
    ],
)  # fmt: skip
def test_values_become_json(text: str, notation: Any, expected: str) -> None:
    assert written(text, notation) == expected
    assert written(text, notation, list(text)) == expected
    json.loads(expected)


@pytest.mark.parametrize("text", ["{1: 2}", '{"a" 1}', '{"a": oops}', '["a"}', "[1 2]"])
def test_text_that_is_not_a_value(text: str) -> None:
    with pytest.raises(Malformed):
        written(text)


def test_a_value_that_was_cut_and_one_with_text_after_it() -> None:
    with pytest.raises(Unfinished):
        written('{"a": "b')
    source = Source()
    assert run(value(source, lambda _: None), source, ['{"a": 1} and more']) == " and more"


def test_arguments_inside_a_string() -> None:
    text = json.dumps(json.dumps({"a": 'q"\\ \n 🎉', "b": "\\u00e9" * 30}))
    for pieces in ([text], list(text)):
        source = Source()
        parts: list[str] = []
        run(decoded_string(source, parts.append), source, pieces)
        assert json.loads("".join(parts)) == json.loads(json.loads(text))


def test_a_call_is_complete_as_soon_as_the_next_one_starts() -> None:
    box = inband("hermes")
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    events = []
    for piece in [*call, *call]:
        events += box.feed(TextDelta(piece))
        kinds = [type(event) for event in events]
        assert kinds.count(ToolCallStart) - kinds.count(ToolCallEnd) in (0, 1)
    assert kinds.count(ToolCallEnd) == 2


@pytest.mark.parametrize(
    ("format", "before"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n"),
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"arguments": {"a": "'),
        ("generic_json", '{"arguments": '),
        ("tool_tags", "<f><a>"),
    ],
)
def test_the_cost_grows_with_the_length(format: str, before: str) -> None:
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}]

    def seconds(size: int) -> float:
        best = 9.9
        for _ in range(3):
            box = inband(format, tools, starts_in_reasoning=False)
            box.feed(TextDelta(before))
            start = time.process_time()
            for _ in range(size):
                box.feed(TextDelta("a <b"))
            box.close()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(20_000) < 40 * max(seconds(2_000), 0.001)


def test_nothing_accumulates_after_a_call_that_never_comes() -> None:
    box = inband("hermes")
    box.feed(TextDelta('<tool_call>{"arguments": {"a": "'))
    events = []
    for _ in range(300):
        events += box.feed(TextDelta("x" * 8192))
    assert sum(len(event.text) for event in events if isinstance(event, TextDelta)) > 2_000_000
