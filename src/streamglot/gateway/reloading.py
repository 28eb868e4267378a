"""Reads the configuration of a running gateway again. Some settings can only change at a start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..config import LoadedConfig, load
from ..errors import ConfigError

FIXED_SERVER: Final = ("port", "workers", "shutdown_seconds", "max_connections", "discover")
"""Settings of the server that are used at the start."""
FIXED_SECTIONS: Final = ("store", "valkey", "batches")
"""Sections that are used at the start: all workers must have the same database, and queues are opened once."""


def load_again(running: LoadedConfig, environment: Mapping[str, str]) -> tuple[LoadedConfig, list[str]]:
    """The new configuration, and the settings in it that need a restart. Those settings keep their current values.

    Refuses another ``server.host``: who may use the gateway without a key depends on where it listens.
    """
    loaded = load(running.path, environment, running.overrides)
    before, after = running.config, loaded.config
    if after.server.host != before.server.host:
        raise ConfigError(
            f"server.host is {after.server.host!r}, and the gateway listens on {before.server.host!r}; restart it to change that"
        )
    changed = [f"server.{name}" for name in FIXED_SERVER if getattr(after.server, name) != getattr(before.server, name)]
    for name in FIXED_SERVER:
        setattr(after.server, name, getattr(before.server, name))
    for section in FIXED_SECTIONS:
        old, new = getattr(before, section), getattr(after, section)
        changed += [f"{section}.{name}" for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
        setattr(after, section, old)
    return loaded, changed
