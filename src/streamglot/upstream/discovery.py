"""What is there without a word of configuration: keys in the environment, servers on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from .providers import PROVIDERS, Provider
from .settings import Upstream

PROBE_SECONDS = 0.3
"""A server on this machine answers at once or is not there."""


class Found(Struct):
    provider: Provider
    there: bool
    because: str

    def upstream(self, environment: Mapping[str, str]) -> Upstream:
        return self.provider.upstream(environment.get(self.provider.key_env, "") if self.provider.key_env else "")


async def discover(environment: Mapping[str, str], probe: bool = True) -> list[Found]:
    """Every provider that we know, found or not, and why."""

    async def look(provider: Provider) -> Found:
        if provider.key_env:
            there = bool(environment.get(provider.key_env))
            return Found(provider, there, f"{provider.key_env} is {'set' if there else 'not set'}")
        place = urlsplit(provider.base_url)
        address = f"{place.hostname}:{place.port}"
        if not probe:
            return Found(provider, False, f"{address} was not tried")
        there = await _listens(place.hostname or "", place.port or 80)
        return Found(provider, there, f"{address} {'answers' if there else 'does not answer'}")

    return list(await asyncio.gather(*(look(provider) for provider in PROVIDERS)))


async def _listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
