"""The examples of docs/tools.md work as they stand."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.shell import Shell
from streamglot.tools import ToolsConfig
from streamglot.tools.settings import McpOAuth
from tools.chat_model import ChatModel

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.S)


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = ChatModel()
    program = blocks("python")[1]
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
    program = blocks("python")[2]
    try:
        exec(compile(program, "docs/tools.md", "exec"), {"upstream": model.upstream(), "__name__": "example"})
    finally:
        model.close()
    *cities, degrees = capsys.readouterr().out.split()
    assert (set(cities), degrees) == ({"Paris"}, "20.5")


def test_the_configuration_is_valid() -> None:
    steps, first, second = (msgspec.convert(tomllib.loads(text)["tools"], ToolsConfig) for text in blocks("toml"))
    assert steps.enabled == ["weather"]
    assert first.hosted == {"web_search": "docs.search"}
    assert second.mcp["docs"].oauth == McpOAuth(client_id="streamglot", client_secret_env="DOCS_SECRET")


def test_the_request_is_json() -> None:
    asked, server = map(msgspec.json.decode, blocks("json"))
    assert asked["streamglot"] == {"tools": ["weather.*"]}
    assert server["mcpServers"]["streamglot"]["args"] == ["mcp"]


def test_the_first_steps_work_in_an_empty_folder(tmp_path: Path) -> None:
    model = CalculatingModel()
    shell = Shell(tmp_path)
    config = tmp_path / "streamglot.toml"
    upstream = f'[upstreams.scripted]\nbase_url = "{model.url}"\nmodels = ["m"]\n'
    config.write_text(config.read_text() + upstream)
    (tmp_path / "mytools.py").write_text(blocks("python")[0])
    first, second = blocks("console")
    shown = [_run(shell, line) for line in first.splitlines()]
    assert "calculator" in shown[0]
    assert '"expression"' in shown[1]
    assert shown[2:] == ["42\n", '→ calculator({"expression":"2 * 21"})\n42\n']
    config.write_text(blocks("toml")[0] + config.read_text())
    ran, asked = (_run(shell, line) for line in second.splitlines())
    assert ran == "sunny in Paris\n"
    assert asked.endswith("sunny in Paris and sunny in Rome\n")
    assert _run(shell, "streamglot tools list").startswith("weather ")
    model.close()


def _run(shell: Shell, line: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "streamglot"
    if arguments[0] == "query":
        arguments[1:1] = ["-m", "m"]
    done = shell.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


class CalculatingModel(ChatModel):
    """Asks the calculator, if there is one."""

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        chunks = super().answer(body)
        if body["tools"][0]["function"]["name"] == "calculator" and "tool_calls" in chunks[0]["choices"][0]["delta"]:
            call = {"name": "calculator", "arguments": '{"expression":"2 * 21"}'}
            one = {"index": 0, "id": "call_0", "type": "function", "function": call}
            return [self.chunk({"tool_calls": [one]}), chunks[-1]]
        return chunks
