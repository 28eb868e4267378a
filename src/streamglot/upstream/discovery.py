"""Finds upstreams without configuration: API keys in the environment and servers on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from msgspec import Struct, field

from ..tasks import patient_timeout
from .models import names_in
from .providers import KNOWN_PROVIDERS, Provider
from .settings import Upstream

PROBE_SECONDS = 0.3
"""Seconds to wait for a server on this machine. It answers at once or is not there."""
PROBE_BYTES = 2**20


class Found(Struct):
    """A provider and whether it was found. ``models`` are those that a server on this machine lists."""

    provider: Provider
    there: bool
    because: str
    models: list[str] = field(default_factory=list)

    def upstream(self, environment: Mapping[str, str]) -> Upstream:
        upstream = self.provider.upstream(environment.get(self.provider.key_env, "") if self.provider.key_env else "")
        if self.models:
            upstream.models = [*self.models, *upstream.models]
        return upstream


async def discover(environment: Mapping[str, str], providers: Iterable[Provider] | None = None) -> list[Found]:
    """Every known provider, or each of ``providers``, found or not, with the reason."""

    async def look(provider: Provider) -> Found:
        if provider.key_env:
            there = bool(environment.get(provider.key_env))
            return Found(provider, there, f"{provider.key_env} is {'set' if there else 'not set'}")
        place = urlsplit(provider.probe)
        address = f"{place.hostname}:{place.port}"
        models = await _list_models(place.hostname or "", place.port or 80, place.path)
        if models is None:
            return Found(provider, False, f"no such server answers at {address}")
        return Found(provider, True, f"{address} answers", models)

    return list(
        await asyncio.gather(*(look(provider) for provider in (KNOWN_PROVIDERS.usable() if providers is None else providers)))
    )


async def _list_models(host: str, port: int, path: str) -> list[str] | None:
    """The models that the server lists; None if there is no such server."""
    try:
        async with patient_timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=PROBE_BYTES)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n".encode())
                answer = await reader.read(PROBE_BYTES)
                while piece := await reader.read(PROBE_BYTES - len(answer)):
                    answer += piece
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200" not in head.split(b"\r\n", 1)[0]:
        return None
    return names_in(body[body.find(b"{") : body.rfind(b"}") + 1])
