"""Real MCP servers in processes of their own: every turn ends properly, for any behaviour of the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from streamglot.errors import ConfigError
from streamglot.tools import ToolError, ToolRegistry, ToolsConfig
from streamglot.tools.executor import ToolExecutor
from streamglot.tools.mcp.source import McpSource
from streamglot.tools.settings import McpServer, ToolLimits
from streamglot.tools.tool import TRACE_CONTEXT
from tools.mcp_process import START_SECONDS, mcp_server
from tools.scripted import Model, call, calls, events_of, exchange_of, text

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).with_name("mcp_test_server.py"))
LEGACY = str(Path(__file__).with_name("legacy_mcp_server.py"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server([sys.executable, SERVER], Path(SERVER).parent) as address:
        yield address


@pytest.fixture
async def source() -> AsyncIterator[McpSource]:
    source = McpSource("docs", McpServer(command=[sys.executable, SERVER], start_seconds=START_SECONDS))
    yield source
    await source.close()


async def test_the_tools_of_a_server_are_listed_and_called(source: McpSource) -> None:
    tools = {tool.name: tool for tool in await source.tools()}
    assert tools["docs.echo"].description == "Says it again."
    assert (await tools["docs.echo"].run({"text": "hi"})).text == "hi"
    image = await tools["docs.picture"].run({})
    assert [medium.mime for medium in image.media] == ["image/png"]
    assert "42" in (await tools["docs.structured"].run({})).text
    failed = await tools["docs.fail"].run({})
    assert failed.is_error
    await tools["docs.grow"].run({})
    async with asyncio.timeout(60):
        while "docs.grown" not in [tool.name for tool in await source.tools()]:
            await asyncio.sleep(0.01)


async def test_without_the_package_mcp_the_error_names_the_installation(
    source: McpSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    for _ in range(2):
        with pytest.raises(ToolError, match=r"pip install 'streamglot\[mcp\]'"):
            await source.tools()


async def test_a_call_carries_the_trace_context(source: McpSource) -> None:
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
    assert "traceparent" not in (await source.call("meta", {})).text
    before = TRACE_CONTEXT.set(context)
    try:
        said = msgspec.json.decode((await source.call("meta", {})).text)
    finally:
        TRACE_CONTEXT.reset(before)
    assert {name: said[name] for name in context} == context


async def test_a_cancelled_call_leaves_the_server_usable(source: McpSource) -> None:
    await source.tools()
    hanging = asyncio.ensure_future(source.call("hang", {}))
    assert (await source.call("echo", {"text": "meanwhile"})).text == "meanwhile"
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert (await source.call("echo", {"text": "after"})).text == "after"


async def test_a_server_that_dies_is_started_again(source: McpSource) -> None:
    await source.tools()
    with pytest.raises(ToolError, match="docs"):
        await source.call("die", {})
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await source.call("echo", {"text": "back"})).text == "back"
                break
            except ToolError:
                await asyncio.sleep(0.01)


async def test_a_flood_is_cut(source: McpSource) -> None:
    await source.tools()
    text = (await source.call("flood", {"megabytes": 5})).text
    assert text.endswith(f"[cut here: the result has {5 * 2**20} characters]")


async def test_a_server_over_http(url: str) -> None:
    source = McpSource("web", McpServer(url=url, headers={"x-test": "1"}, start_seconds=START_SECONDS))
    try:
        assert "web.echo" in [tool.name for tool in await source.tools()]
        assert (await source.call("echo", {"text": "hi"})).text == "hi"
    finally:
        await source.close()


async def test_a_server_that_cannot_be_started_is_reported_with_its_reason() -> None:
    for settings in (
        McpServer(command=["/nothing/here"]),
        McpServer(command=[sys.executable, "-c", "pass"], start_seconds=START_SECONDS),
        McpServer(url="http://127.0.0.1:9/mcp"),
        McpServer(command=[sys.executable, "-c", "import time; time.sleep(600)"], start_seconds=3.0),
    ):
        source = McpSource("broken", settings)
        with pytest.raises(ToolError):
            await source.tools()
        await source.close()
    with pytest.raises(ConfigError, match=r"tools\.mcp\.x needs either"):
        McpSource("x", McpServer())


async def test_every_turn_ends_properly() -> None:
    config = ToolsConfig(
        enabled=["docs.*"], mcp={"docs": McpServer(command=[sys.executable, SERVER], start_seconds=START_SECONDS)}
    )
    registry = ToolRegistry(config)
    executor = ToolExecutor(registry, ToolLimits(seconds=15.0))
    blocks = [call("a", "docs__echo", '{"text":"hi"}'), call("b", "docs__hang"), call("c", "docs__echo", '{"word":"hi"}')]
    model = Model([calls(*blocks), calls(call("d", "docs__die")), text("ok")])
    try:
        await events_of(exchange_of(model, executor, patterns=["docs.*"]))
    finally:
        await registry.close()
    first, hung, wrong, died = model.results()
    assert (first.text, first.is_error) == ("hi", False)
    assert "did not finish within" in hung.text
    assert "'text' is missing" in wrong.text
    assert died.is_error


async def test_a_source_that_fails_does_not_take_the_other_tools_with_it() -> None:
    registry = ToolRegistry(ToolsConfig(enabled=["*"], mcp={"broken": McpServer(command=["/nothing/here"])}))
    tools, faults = await registry.select(["*"])
    assert [tool.name for tool in tools] == ["calculator", "time"]
    assert "'broken'" in faults[0]
    await registry.close()


async def test_a_server_of_the_older_protocol() -> None:
    source = McpSource("old", McpServer(command=[sys.executable, LEGACY], start_seconds=START_SECONDS))
    try:
        assert [tool.name for tool in await source.tools()] == ["old.echo", "old.grow"]
        assert (await source.call("echo", {"text": "hi"})).text == "hi"
        assert (await source.call("echo", {})).is_error
        await source.call("grow", {})
        async with asyncio.timeout(60):
            while "old.grown" not in [tool.name for tool in await source.tools()]:
                await asyncio.sleep(0.01)
    finally:
        await source.close()
