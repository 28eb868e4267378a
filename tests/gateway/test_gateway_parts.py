"""The parts of a gateway: each has few attributes, and none of them holds the whole."""

from __future__ import annotations

from streamglot.config import Config, LoadedConfig, ServerConfig, StoreConfig
from streamglot.gateway.app import Gateway

ATTRIBUTES = 10
"""Public attributes of a part, methods included: more of them would be a bag for everything."""


def test_each_part_is_small_and_none_holds_the_whole() -> None:
    gateway = Gateway(LoadedConfig(Config(server=ServerConfig(discover=False), store=StoreConfig(url="none"))), {})
    for part in (gateway.services, gateway.access, gateway.recording, gateway.requests, gateway.lifecycle):
        public = sorted(name for name in dir(part) if not name.startswith("_"))
        assert len(public) <= ATTRIBUTES, (type(part).__name__, public)
        assert not any(held is gateway for held in vars(part).values()), type(part).__name__
