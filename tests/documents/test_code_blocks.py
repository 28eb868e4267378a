"""The code on the pages works: Python, shell and JavaScript run, TOML is a valid configuration, JSON is JSON, options exist."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from docs.code_blocks import (
    COMMANDS,
    RUN_ELSEWHERE,
    RUNNABLE,
    CodeBlock,
    all_blocks,
    blocks_of,
    command_lines,
    pages,
    shell_lines,
)

import streamglot
from batch.mock import mock_upstream
from clients.node import FOLDER, missing
from gateway.running import running
from streamglot.cli.app import app
from streamglot.cli.setup.recipes import recipe
from streamglot.config import Config
from streamglot.config.checks import check_config
from streamglot.events import encode

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
ADDRESS = "127.0.0.1:8484"
"""The address of the gateway on the pages. In a test it is that of a gateway with a mock upstream."""
CONFIG = """
[server]
discover = false
[upstreams.mock]
base_url = "{url}"
models = ["*", "local"]
attempts = 1
"""
GIVEN: dict[str, Mapping[str, Any]] = {"docs/command-line.md": {"draw_a_frame": lambda: None}}
"""Names that the blocks of a page take from the reader's own program."""
SHELL_SECONDS = 300
"""A block that takes longer hangs."""


def named(blocks: list[CodeBlock]) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in blocks]


def in_language(language: str) -> list[CodeBlock]:
    return [block for block in all_blocks() if block.language == language and not block.not_run]


def python_pages() -> list[str]:
    own = [page for page in pages() if page not in RUN_ELSEWHERE]
    return [page for page in own if any(block.language == "python" and not block.not_run for block in blocks_of(page))]


class Reader:
    """The machine of somebody who reads the pages: a home, a folder, and a gateway that runs. ``address`` is the gateway's."""

    def __init__(self, folder: Path, address: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.address = address
        self.environment = environment

    def text(self, block: str) -> str:
        return block.replace(ADDRESS, self.address)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a gateway and of its mock upstream."""
    folder = tmp_path_factory.mktemp("gateway")
    with mock_upstream() as upstream:
        config = folder / "streamglot.toml"
        config.write_text(CONFIG.format(url=upstream.url))
        with running(path=config, environment={"STREAMGLOT_LOCAL": "off"}) as gateway:
            yield f"127.0.0.1:{gateway.port}", upstream.url


@pytest.fixture
def reader(served: tuple[str, str], tmp_path: Path) -> Reader:
    address, upstream = served
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    recorded_turn(folder / "tests" / "corpus" / "anthropic")
    (tmp_path / ".curlrc").write_text("fail-with-body\n")  # an HTTP error is a failed command
    config = tmp_path / "reader.toml"
    config.write_text(CONFIG.format(url=upstream))
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "STREAMGLOT_CONFIG": str(config),
        "STREAMGLOT_LOCAL": "off",
        "LANG": "C.UTF-8",
    }
    return Reader(folder, address, environment)


def recorded_turn(folder: Path) -> None:
    """The two files that ``streamglot logs export --as-test`` makes of a stored turn."""
    folder.mkdir(parents=True)
    body = (ROOT / "examples" / "anthropic.sse").read_bytes()
    box = streamglot.reader("anthropic")
    events = box.feed(body) + box.close()
    (folder / "turn_1.sse").write_bytes(body)
    (folder / "turn_1.events.jsonl").write_bytes(b"\n".join(encode(event) for event in events))


@pytest.mark.parametrize("page", python_pages())
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in reader.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(reader.folder)
    names = {"__name__": "example", **GIVEN.get(page, {})}
    for block in blocks_of(page):
        if block.language == "python" and not block.not_run:
            exec(compile("\n" * (block.line - 1) + reader.text(block.text), page, "exec", dont_inherit=True), names)


@pytest.mark.parametrize("block", named([block for block in in_language("sh") if shell_lines(block).strip()]))
def test_the_commands_of_a_block_succeed(block: CodeBlock, reader: Reader) -> None:
    script = reader.text(shell_lines(block))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=reader.folder,
        env=reader.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SHELL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    if "curl -N" in script or "curl -sN" in script:
        written = done.stdout.replace('"error":null', "")
        assert "error" not in written.lower(), written  # inside a stream, in any dialect


@pytest.mark.parametrize("block", named(in_language("js")))
def test_the_javascript_of_a_block_runs(block: CodeBlock, reader: Reader) -> None:
    """With the packages of tests/clients. What the block prints is the answer of the mock upstream."""
    if why := missing():
        warnings.warn(f"NOT CHECKED: {block.place}: {why}", stacklevel=1)
        pytest.skip(why)
    (reader.folder / "node_modules").symlink_to((FOLDER / "node_modules").resolve())
    program = reader.folder / "block.mjs"
    program.write_text(reader.text(block.text))
    done = subprocess.run(
        ["node", program], cwd=reader.folder, capture_output=True, text=True, timeout=SHELL_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), done.stderr


@pytest.mark.parametrize("block", named(in_language("toml")))
def test_a_toml_block_is_a_valid_configuration(block: CodeBlock) -> None:
    values = tomllib.loads(block.text)
    for upstream in values.get("upstreams", {}).values():
        upstream.setdefault("base_url", "http://127.0.0.1")  # a block may show only the settings that it is about
    check_config(msgspec.convert(values, Config, strict=False))


@pytest.mark.parametrize("block", named(in_language("json")))
def test_a_json_block_is_json(block: CodeBlock) -> None:
    assert isinstance(msgspec.json.decode(block.text), dict)


@pytest.mark.parametrize(
    "block", named([each for each in all_blocks() if each.language in COMMANDS and list(command_lines(each))])
)
def test_command_lines_name_commands_and_options_that_exist(block: CodeBlock) -> None:
    for words in command_lines(block):
        parse(words)


def parse(words: list[str]) -> None:
    """Finds the command and its options. Values, such as files of the reader, are not looked at."""
    command: click.Command = app
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        inner = command.get_command(context, words[0])
        assert inner is not None, f"there is no command {words[0]!r}; there are {', '.join(command.list_commands(context))}"
        command, words = inner, words[1:]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"-h", "--help"}
    for word in words[: words.index("--")] if "--" in words else words:
        name = word.partition("=")[0]
        if name.startswith("-") and len(name) > 1 and " " not in word:
            assert name in options, f"{command.name} has no option {name}"


def test_pages_whose_python_is_run_elsewhere_have_that_test() -> None:
    there = {page: test for page, test in RUN_ELSEWHERE.items() if (ROOT / page).exists()}
    assert [test for test in there.values() if not (TESTS / test).exists()] == []


def test_blocks_are_found_and_most_of_them_are_run() -> None:
    blocks = [block for block in all_blocks() if block.language in RUNNABLE]
    assert {block.language for block in blocks} == set(RUNNABLE)
    assert sum(not block.not_run for block in blocks) > 4 * sum(bool(block.not_run) for block in blocks)


SHOWN = (
    ("docs/guides/claude-code.md", "json", "claude-code", "gpt-5.5"),
    ("docs/guides/codex.md", "toml", "codex", "gpt-5.5"),
    ("docs/guides/open-webui.md", "text", "open-webui", "local"),
    ("docs/guides/langchain.md", "python", "langchain", "local"),
)
"""The guides that show what ``streamglot setup`` prints: page, language of the block, client and model."""


@pytest.mark.parametrize(("page", "language", "client", "model"), SHOWN)
def test_a_guide_shows_the_settings_that_setup_prints(page: str, language: str, client: str, model: str) -> None:
    shown = next(block.text for block in blocks_of(page) if block.language == language)
    assert shown == recipe(client, f"http://{ADDRESS}", model, "streamglot").text


def test_make_targets_on_the_pages_exist() -> None:
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    for block in in_language("sh"):
        for line in block.text.splitlines():
            if line.startswith("make "):
                assert set(line.partition("#")[0].split()[1:]) <= targets, line
