"""``streamglot config check``: everything that can be wrong with a configuration, without serving it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...config import Config, load
from ...engine.content_log import ContentLog
from ...engine.pool import UpstreamPool
from ...errors import ConfigError
from ..output.terminal import neutral


def run(path: Path | None) -> int:
    """Builds what the gateway builds of the file: routes, policies, stages, tools. It starts nothing and sends no request."""
    loaded = load(path)
    if loaded.path is None:
        raise ConfigError("there is no configuration file to check: name one, or make one with `streamglot config edit`")
    config = loaded.config
    pool = UpstreamPool(loaded, discover=False)
    pool.configure(loaded)
    ContentLog(config.server.redact)
    for warning in _warnings(config, os.environ):
        print(neutral(f"warning: {warning}"))
    counts = (
        (len(config.upstreams), "upstream"),
        (len(config.routes), "route"),
        (len(config.policies), "policy"),
        (len(config.server.keys), "key"),
    )
    print(neutral(f"{loaded.path} is in order: {', '.join(_counted(count, what) for count, what in counts)}"))
    return 0


def _warnings(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Settings that are valid, but perhaps not what the author means."""
    for name, upstream in config.upstreams.items():
        if upstream.key_env and not upstream.key:
            yield f"upstreams.{name}.key_env: the variable {upstream.key_env} is not set, so no key is sent; set it"
        if upstream.key and not upstream.key_env:
            yield f"upstreams.{name}.key: the key is written in the file; name a variable with key_env instead"
    for key in config.server.keys:
        if key.key_env and not environment.get(key.key_env):
            yield f"server.keys: the variable {key.key_env} of the key {key.name!r} is not set; set it where the gateway starts, which refuses to start without it"


def _counted(count: int, what: str) -> str:
    plural = what[:-1] + "ies" if what.endswith("cy") else what + "s"
    return f"{count} {what if count == 1 else plural}"
