"""Tools when the configuration is read again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.running import running
from streamglot.config import Config, LoadedConfig
from streamglot.engine.upstreams import OLD_TOOLS_SECONDS, UpstreamPool
from streamglot.tools import Tool, ToolRegistry, ToolsConfig, tool
from streamglot.tools.settings import ToolLimits
from waiting import soon

pytestmark = pytest.mark.anyio

SERVER = "[server]\ndiscover = false\n"
TOOLS = "[tools]\nenabled = ['*']\n"


def test_tools_that_came_with_a_bad_configuration_are_used_once_it_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(SERVER)
    bad = f"{SERVER}{TOOLS}[[policies]]\nuse = 'nothing'\n"
    with running(path=path) as gateway:
        for config, event, enabled in (
            (bad, "reload_failed", []),
            (SERVER + TOOLS, "reloaded", ["*"]),
            (SERVER, "reloaded", []),
        ):
            path.write_text(config)
            gateway.gateway.reload()
            assert gateway.lines[-1]["event"] == event
            assert gateway.gateway.services.pool.tools.registry.config.enabled == enabled


async def test_tools_of_an_earlier_configuration_are_closed_when_they_are_not_used_any_more() -> None:
    closed: list[ToolRegistry] = []

    class Source:
        name = "source"

        def __init__(self, registry: ToolRegistry) -> None:
            self._registry = registry

        async def tools(self) -> list[Tool]:
            return []

        async def close(self) -> None:
            closed.append(self._registry)

    def configured(rounds: int) -> LoadedConfig:
        return LoadedConfig(Config(tools=ToolsConfig(limits=ToolLimits(rounds=rounds))))

    released = asyncio.Event()

    @tool
    async def slow() -> str:
        """Waits."""
        await released.wait()
        return "done"

    async with UpstreamPool(configured(1), tools=[slow], environment={}, serving=True) as pool:
        old = pool.tools
        old.registry._sources.append(Source(old.registry))
        running = asyncio.ensure_future(old.run(old.registry.given()[0], {}))
        await asyncio.sleep(0)
        pool.configure(configured(2))
        assert pool.tools is not old
        assert pool.tools.mixed is old.mixed
        later = pool.clock() + 2 * OLD_TOOLS_SECONDS
        pool.tick(later)
        assert old in pool._old_tools
        released.set()
        await running
        pool.tick(pool.clock())
        assert old in pool._old_tools
        pool.tick(later)
        await soon(lambda: closed == [old.registry])
    assert closed == [old.registry]
