"""Where a request goes: the address and the headers that an upstream of a dialect wants."""

from __future__ import annotations

from msgspec import Struct, field


class Endpoint(Struct):
    url: str
    headers: dict[str, str] = field(default_factory=dict)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def join(base_url: str, path: str) -> str:
    return f"{base_url.rstrip('/')}/{path}"
