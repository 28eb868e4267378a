"""The address of the gateway, as clients on this machine reach it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..config import ServerConfig, load
from ..errors import ConfigError, excerpt

LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Listening addresses that no client can connect to, each with the loopback address to use instead."""


def local_address(server: ServerConfig) -> str:
    """The address under which clients on this machine reach a gateway with these settings."""
    return http_address(reachable_host(server.host), server.port)


def reachable_host(host: str) -> str:
    """Where clients on this machine connect to a gateway that listens on this host."""
    return LOOPBACK.get(host, host)


def http_address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class GatewayAddress(Struct):
    """``url`` is the base address, without ``/v1``."""

    url: str
    key: str = ""


def gateway_address(url: str, key: str) -> GatewayAddress:
    """The given address, or the one of the configuration if none is given."""
    url = url or local_address(load().config.server)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address of a gateway must begin with http:// or https://, not {excerpt(url)}")
    return GatewayAddress(url.rstrip("/").removesuffix("/v1"), key)
