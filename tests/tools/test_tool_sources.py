"""Where tools come from, which of them may run, and what the built-in ones may reach."""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.shell import Shell
from streamglot.config import load
from streamglot.errors import ConfigError
from streamglot.tools import Tool, ToolError, ToolRegistry, ToolsConfig
from streamglot.tools.built_in import _allows, built_in_tools, calculate, current_time
from streamglot.tools.mcp.source import McpSource
from streamglot.tools.processes import run_process
from streamglot.tools.registry import ExecutableTool, by_model_name, python_tools
from streamglot.tools.settings import BuiltIn, Executable, McpServer

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).with_name("mcp_test_server.py"))

MODULE = """
import streamglot

@streamglot.tool
def weather(city: str) -> str:
    "The weather."
    return "sunny in " + city

@streamglot.tool(name="weather.forecast")
def forecast(city: str) -> str:
    return "rain in " + city
"""


async def names(registry: ToolRegistry, *patterns: str) -> list[str]:
    return [tool.name for tool in (await registry.select(patterns))[0]]


async def test_files_folders_and_modules_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "one.py").write_text(MODULE)
    (tmp_path / "module_of_tools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for place in (str(tmp_path / "tools"), str(tmp_path / "tools" / "one.py"), "module_of_tools"):
        assert [tool.name for tool in python_tools([place])] == ["weather", "weather.forecast"]
    sys.modules.pop("module_of_tools", None)
    for place in ("./nowhere", "nowhere.py", "no_such_module_of_tools"):
        with pytest.raises(ConfigError, match=r"tools\.python"):
            python_tools([place])
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        python_tools([str(tmp_path / "broken.py")])


async def test_globs_enable_disable_and_select(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(MODULE)
    config = ToolsConfig(enabled=["time", "weather*"], disabled=["weather.f*"], python=[str(tmp_path)])
    registry = ToolRegistry(config)
    assert await names(registry, "*") == ["time", "weather"]
    assert await names(registry, "wea*") == ["weather"]
    assert await names(registry, "calculator") == []
    assert not ToolRegistry(ToolsConfig(python=[str(tmp_path)]))
    with pytest.raises(ConfigError, match="two tools with the name 'time'"):
        ToolRegistry(config, [Tool("time")])


def test_the_same_function_given_and_configured_is_one_tool(tmp_path: Path) -> None:
    place = tmp_path / "weather.py"
    place.write_text("import streamglot\n@streamglot.tool\ndef forecast(city: str) -> str:\n    return city\n")
    given = python_tools([str(place)])
    config = ToolsConfig(enabled=["forecast"], python=[str(place)])
    registry = ToolRegistry(config, given)
    assert registry.given() == given
    with pytest.raises(ConfigError, match="two tools with the name 'forecast'"):
        ToolRegistry(given=[*given, *given])


def test_names_that_models_take_are_unique() -> None:
    assert list(by_model_name([Tool("a.b"), Tool("a__b"), Tool("c")])) == ["a__b", "a__b_2", "c"]


def test_the_configuration_has_a_table_of_tools(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(
        '[tools]\nenabled = ["time"]\n[tools.mcp.docs]\ncommand = ["python", "docs.py"]\n[tools.limits]\nrounds = 3\nseconds = 5\n'
    )
    tools = load(path, {}).config.tools
    assert (tools.enabled, tools.mcp["docs"].command, tools.limits.rounds) == (["time"], ["python", "docs.py"], 3)


async def test_an_executable_reads_and_writes_json(tmp_path: Path) -> None:
    program = tmp_path / "tool.py"
    program.write_text(
        "import json, sys\ngiven = json.load(sys.stdin)\n"
        "if given.get('fail'): sys.exit('it failed')\n"
        "print(json.dumps({'text': given['city'].upper(), 'is_error': False}) if 'city' in given else 'plain')"
    )
    tool = ExecutableTool("upper", Executable(command=[sys.executable, str(program)]))
    assert (await tool.run({"city": "rome"})).text == "ROME"
    assert (await tool.run({})).text == "plain\n"
    failed = await tool.run({"fail": True})
    assert (failed.is_error, failed.text) == (True, "exit status 1\nit failed")
    with pytest.raises(ToolError, match="cannot be started"):
        await ExecutableTool("none", Executable(command=[str(tmp_path / "nothing")])).run({})


async def test_a_process_that_floods_is_stopped() -> None:
    flood = Executable(command=[sys.executable, "-c", "while True: print('x' * 100000)"])
    with pytest.raises(ToolError, match="more than 4 MiB"):
        await ExecutableTool("flood", flood).run({})


async def test_a_cancelled_process_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    running = asyncio.ensure_future(ExecutableTool("hang", Executable(command=[sys.executable, "-c", code])).run({}))
    async with asyncio.timeout(60):
        while not mark.exists() or not mark.read_text():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while Path(f"/proc/{mark.read_text()}/cmdline").exists() and Path(f"/proc/{mark.read_text()}/cmdline").read_bytes():
            await asyncio.sleep(0.01)


# --- built-in tools


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 4) * 2", "14"),
        ("-2 ** 2", "-4"),
        ("sqrt(16) + min(1, 2)", "5.0"),
        ("7 // 2 % 2", "1"),
        ("+pi", "3.141592653589793"),
        ("round(2.675, 2) + round(5)", "7.67"),
        ("round(5, -10**9) + round(5, 10**9)", "5"),
    ],
)
def test_the_calculator_calculates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "(1).real",
        "1 +",
        "1 / 0",
        "9 ** 9 ** 9",
        "x",
        "True",
        "sqrt(-1)",
        "1" * 2000,
        "'a' * 9",
        "2**4000 * 2**4000",
    ],
)
def test_the_calculator_calculates_nothing_else(expression: str) -> None:
    with pytest.raises(ToolError):
        calculate(expression)


def test_the_time_of_a_zone_is_returned() -> None:
    assert "UTC" in current_time()
    with pytest.raises(ToolError, match="no time zone"):
        current_time("Nowhere/Land")


def built(name: str, allowed: BuiltIn) -> Tool:
    return next(tool for tool in built_in_tools(allowed) if tool.name == name)


async def test_files_are_read_below_the_allowed_directory_only(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("hello")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    allowed = BuiltIn(directory=str(tmp_path / "in"))
    read, listing = built("read_file", allowed), built("list_files", allowed)
    assert (await read.run({"path": "a.txt"})).text == "hello"
    assert (await listing.run({})).text == "a.txt\nlink\nsub/"
    assert (await listing.run({"pattern": "*.md"})).text == "The directory has no such files."
    for path in ("../secret", "link", str(tmp_path / "secret")):
        with pytest.raises(ToolError, match="outside"):
            await read.run({"path": path})
    with pytest.raises(ToolError, match="cannot be read"):
        await read.run({"path": "nothing"})
    with pytest.raises(ToolError, match="cannot be listed"):
        await listing.run({"path": "nothing"})


@pytest.fixture
def page() -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/away":
                self.send_response(302)
                self.send_header("location", "http://example.com/")
            else:
                self.send_response(200 if self.path == "/" else 404)
                self.send_header("content-type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write("grüß dich".encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


async def test_pages_are_fetched_from_allowed_hosts_only(page: str) -> None:
    fetch = built("fetch", BuiltIn(hosts=[page]))
    assert (await fetch.run({"url": f"http://{page}/"})).text == "grüß dich"
    for url, words in [
        (f"http://{page}/missing", "status 404"),
        (f"http://{page}/away", "not allowed"),
        ("http://example.com/", "not allowed"),
        ("file:///etc/passwd", "not allowed"),
        (f"http://{page}@example.com/", "not allowed"),
    ]:
        with pytest.raises(ToolError, match=words):
            await fetch.run({"url": url})


async def test_commands_run_from_the_allowed_list_only() -> None:
    run = built("run_command", BuiltIn(commands=[["echo", "*"], [sys.executable, "-c", "*"]]))
    assert (await run.run({"command": ["echo", "$HOME; ls"]})).text == "$HOME; ls\n"
    assert (await run.run({"command": [sys.executable, "-c", "raise SystemExit(3)"]})).text == "exit status 3\n"
    for command in (["ls"], [], [sys.executable, "-m", "os"]):
        with pytest.raises(ToolError, match="not allowed"):
            await run.run({"command": command})


@pytest.mark.parametrize(
    ("allowed", "command", "runs"),
    [
        (["git", "log"], ["git", "log"], True),
        (["git", "log"], ["git", "log", "--output=/etc/passwd"], False),
        (["git", "log"], ["git", "log", "main"], False),
        (["git", "log", "**"], ["git", "log"], True),
        (["git", "log", "**"], ["git", "log", "main", "docs"], True),
        (["git", "log", "**"], ["git", "log", "main", "--output=x"], False),
        (["git", "log", "**"], ["git", "log", "--", "x"], False),
        (["git", "log", "?--oneline", "**"], ["git", "log", "--oneline", "main"], True),
        (["git", "log", "?--oneline", "**"], ["git", "log", "main"], True),
        (["git", "log", "?--oneline", "*"], ["git", "log", "main"], True),
        (["git", "log", "?--oneline", "*"], ["git", "log", "a", "b"], False),
        (["git", "log", "?--oneline", "*"], ["git", "log", "--oneline"], False),
        (["rm", "-i", "*"], ["rm", "x"], False),
        (["a", "**", "b", "**", "c"], ["a", "b", "b", "b", "c", "c"], True),
        (["a", *["**"] * 20, "b"], ["a", *["b"] * 200, "c"], False),
    ],
)
def test_a_command_has_exactly_the_allowed_words(allowed: list[str], command: list[str], runs: bool) -> None:
    assert _allows(allowed, command) is runs


async def test_programs_get_no_variable_that_they_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    printed = "import os, json; print(json.dumps(dict(os.environ)))"
    allowed = BuiltIn(commands=[[sys.executable, "-c", "*"]], env={"GIVEN": "1"})
    command = {"command": [sys.executable, "-c", printed]}
    executable = ExecutableTool("show", Executable(command=[sys.executable, "-c", printed], env={"GIVEN": "1"}))
    for shown in ((await built("run_command", allowed).run(command)).text, (await executable.run({})).text):
        variables = msgspec.json.decode(shown)
        assert variables["GIVEN"] == "1"
        assert variables["PATH"]
        assert "OPENAI_API_KEY" not in variables
    source = McpSource("docs", McpServer(command=[sys.executable, SERVER]))
    try:
        assert "sk-secret" not in (await source.call("environment", {})).text
        worker = source._worker
        assert worker is not None
        assert worker._process is not None
        assert b"sk-secret" not in Path(f"/proc/{worker._process.pid}/environ").read_bytes()
    finally:
        await source.close()


async def test_a_program_need_not_read_its_input() -> None:
    for _ in range(20):
        done = await run_process(["true"], b"x" * 1_000_000)
        assert done.status == 0
    echo = await run_process(["cat"], b"x" * 1_000_000)
    assert len(echo.stdout) == 1_000_000


def test_tools_that_reach_outside_exist_only_where_something_is_allowed() -> None:
    assert [tool.name for tool in built_in_tools(BuiltIn())] == ["time", "calculator"]
    assert msgspec.json.encode(
        [tool.parameters for tool in built_in_tools(BuiltIn(directory=".", hosts=["a"], commands=[["ls"]]))]
    )


def _plugin(folder: Path, entry: str) -> None:
    """A package as an installer leaves it."""
    (folder / "weatherplugin.py").write_text(
        "import streamglot\n\n@streamglot.tool(read_only=True)\ndef plugged(city: str) -> str:\n    return 'plugged ' + city\n"
    )
    info = folder / "weatherplugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weatherplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[streamglot.tools]\nweather = {entry}\n")


@pytest.mark.parametrize("entry", ["weatherplugin", "weatherplugin:plugged"])
def test_an_installed_package_offers_tools(tmp_path: Path, entry: str) -> None:
    (tmp_path / "site").mkdir()
    _plugin(tmp_path / "site", entry)
    shell = Shell(tmp_path)
    shell.environment["PYTHONPATH"] = str(tmp_path / "site")
    assert b"plugged" in shell.run("tools", "list", "--all").stdout
    done = shell.run("tools", "run", "plugged", "city=Paris")
    assert (done.returncode, done.stdout) == (0, b"plugged Paris\n"), done.stderr


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugin(tmp_path, "weatherplugin:nothing")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"the entry point .weather. of streamglot\.tools cannot be loaded"):
        ToolRegistry(ToolsConfig(enabled=["*"]))
