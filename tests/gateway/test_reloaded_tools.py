"""Tools when the configuration is read again."""

from __future__ import annotations

from pathlib import Path

from gateway.running import running

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
            assert gateway.gateway.pool.tools.registry.config.enabled == enabled
