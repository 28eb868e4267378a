"""Calls as tags that are cut at each of their last characters, with each end of the stream: a value that was cut is no complete
call."""

from __future__ import annotations

import json

import pytest

from each import each
from inband.notations import CALLS
from inband.readings import put_together, run
from streamglot.events import BareEvent, StreamEnd, StreamError, StreamStart, TextDelta, TextEnd, TextStart
from streamglot.inband import FORMATS, inband
from streamglot.inband.engines import FormatEngine, WrittenCall
from streamglot.inband.engines.channels import TokenElements
from streamglot.inband.engines.tag_calls import NestedTags, ToolTags
from streamglot.inband.engines.xml_calls import XmlCalls

WRITE = {"name": "write", "parameters": {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}
ENGINES: dict[str, FormatEngine] = {
    name: engine
    for name, row in FORMATS.items()
    for engine in row.engines
    if isinstance(engine, (XmlCalls, ToolTags, NestedTags, TokenElements))
}
ENDS: dict[str, BareEvent] = {
    "stop": StreamEnd("end", "stop"),
    "tool_calls": StreamEnd("tool_calls", "tool_calls"),
    "length": StreamEnd("length", "length"),
    "none": StreamError("upstream_truncated", "The stream ended early."),
}


def written(format: str, content: str) -> str:
    return CALLS.get(format, "{}").format(
        FORMATS[format].write([WrittenCall("write", json.dumps({"path": "/a", "content": content}))])
    )


def closing(format: str) -> str:
    """The end of a call in this notation, from the end tag of its last value on."""
    return written(format, "§").partition("§")[2].strip()


def values(format: str) -> list[str]:
    """Values that mention the end tags."""
    words = [*ENGINES[format].closers, *(f"{tag}>".strip() for tag in closing(format).removesuffix(">").split(">"))]
    return [
        "last",
        *(text for word in dict.fromkeys(words) for text in (f"It ends with {word}, or {word} so.", f"first\n {word}\n")),
    ]


@each(bad_call=["incomplete", "text"])
@each(end=ENDS)
@pytest.mark.parametrize("format", ENGINES)
def test_a_value_that_was_cut_is_no_complete_call(format: str, end: str, bad_call: str) -> None:
    for content in values(format):
        text = written(format, content)
        for size in range(text.rindex("/a") + 2, len(text) + 1):
            box = inband(format, [WRITE], starts_in_reasoning=False, bad_call=bad_call)  # type: ignore[arg-type]  # a word
            found = put_together(run(box, [StreamStart(), TextStart(), TextDelta(text[:size]), TextEnd(), ENDS[end]]))
            for (_, given), complete in zip(found["calls"], found["complete"], strict=True):
                if complete:
                    assert json.loads(given)["content"].strip() == content.strip(), (text[:size], given)
                elif end in ("stop", "tool_calls"):
                    assert found["end"] == "tool_call_parse_error"
