"""Where a request goes: the address and the headers that an upstream of a dialect wants.

What a client says becomes part of an address only through ``encoded``, ``path_segment`` and ``path_segments``.
"""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Struct, field

from ..errors import RequestError, excerpt


class Endpoint(Struct):
    url: str
    headers: dict[str, str] = field(default_factory=dict)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def join(base_url: str, path: str) -> str:
    """The address of a path below a base. Parameters of both are kept, those of the base first."""
    base, _, parameters = base_url.partition("#")[0].partition("?")
    path, _, own = path.partition("?")
    query = "&".join(filter(None, (parameters, own)))
    return f"{base.rstrip('/')}/{path}{f'?{query}' if query else ''}"


def encoded(name: str) -> str:
    """A name as a value in an address: every character that means something there is encoded."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise RequestError(
            f"the name {excerpt(name)} has half a character in it, which no address can have", code="invalid_name"
        ) from None


def path_segment(name: str) -> str:
    """A name as one segment of a path. Names that mean another folder are refused."""
    if name in ("", ".", ".."):
        raise RequestError(
            f"the name {excerpt(name)} cannot stand in the address of an upstream: it would mean another address; name a model",
            code="invalid_name",
        )
    return encoded(name)


def path_segments(name: str) -> str:
    """A name with slashes in it as several segments, each as careful as one."""
    return "/".join(map(path_segment, name.split("/")))
