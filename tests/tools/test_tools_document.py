"""The examples of docs/tools.md work as they stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamglot.tools import ToolsConfig
from streamglot.tools.settings import McpOAuth
from tools.chat_model import ChatModel

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.S)


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = ChatModel()
    program = blocks("python")[0]
    try:
        exec(compile(program, "docs/tools.md", "exec"), {"upstream": model.upstream(), "__name__": "example"})
    finally:
        model.close()
    assert capsys.readouterr().out == "20 degrees celsius in Paris and 20 degrees celsius in Rome\n"


class WeatherModel(ChatModel):
    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        return [self.chunk({"content": '{"city":"Paris","degrees":20.5}'}), self.chunk({}, "stop")]


def test_the_program_with_a_typed_answer_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = WeatherModel()
    program = blocks("python")[1]
    try:
        exec(compile(program, "docs/tools.md", "exec"), {"upstream": model.upstream(), "__name__": "example"})
    finally:
        model.close()
    *cities, degrees = capsys.readouterr().out.split()
    assert (set(cities), degrees) == ({"Paris"}, "20.5")


def test_the_configuration_is_valid() -> None:
    first, second = (msgspec.convert(tomllib.loads(text)["tools"], ToolsConfig) for text in blocks("toml"))
    assert first.hosted == {"web_search": "docs.search"}
    assert second.mcp["docs"].oauth == McpOAuth(client_id="streamglot", client_secret_env="DOCS_SECRET")


def test_the_request_is_json() -> None:
    [text] = blocks("json")
    assert msgspec.json.decode(text)["streamglot"] == {"tools": ["weather.*"]}
