"""The request that the options of a command line give."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from streamglot import ConfigError
from streamglot.cli.question import Question, attached
from streamglot.messages import MediaPart, TextPart


def test_options_become_fields(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]')
    question = Question(model="m", system="Be brief.", schema='{"type":"object"}', tools_file=tools, max_tokens=9, effort="low")
    request = question.request([question.message("hi")])
    assert [message.role for message in request.messages] == ["system", "user"]
    assert request.output is not None
    assert (request.output.kind, request.output.schema) == ("json_schema", {"type": "object"})
    assert [tool.name for tool in request.tools] == ["weather"]
    assert request.reasoning is not None
    assert (request.max_tokens, request.reasoning.effort, request.stream) == (9, "low", True)


def test_attachments(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# note")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\x00")
    (tmp_path / "blob").write_bytes(b"\xff\xfe\x00")
    assert attached(str(tmp_path / "note.md")) == TextPart("note.md:\n\n# note\n\n")
    picture = attached(str(tmp_path / "dot.png"))
    assert isinstance(picture, MediaPart)
    assert (picture.mime, base64.b64decode(picture.data), picture.filename) == ("image/png", b"\x89PNG\x00", "dot.png")
    blob = attached(str(tmp_path / "blob"))
    assert isinstance(blob, MediaPart)
    assert blob.mime == "application/octet-stream"
    address = attached("https://example.com/a.jpg?x=1")
    assert isinstance(address, MediaPart)
    assert (address.mime, address.url) == ("image/jpeg", "https://example.com/a.jpg?x=1")


@pytest.mark.parametrize(
    "question",
    [
        Question(effort="heroic"),
        Question(schema="[]"),
        Question(schema="{"),
        Question(schema="nowhere.json"),
        Question(tools_file=Path("nowhere.json")),
        Question(attachments=["nowhere.png"]),
    ],
)
def test_invalid_options_are_refused(question: Question) -> None:
    with pytest.raises(ConfigError):
        question.request([question.message("hi")])
