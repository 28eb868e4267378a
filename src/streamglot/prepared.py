"""``prepare``: a request as it is sent to an upstream, for programs that send it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import msgspec
from msgspec import Struct, structs

from .dialects import dialect
from .dialects.common.options import PrepareOptions, check_options
from .errors import ConfigError, RequestError, did_you_mean, excerpt
from .json_types import JsonObject
from .messages import Request
from .names import ProviderName, SourceName, TargetName
from .upstream.providers import KNOWN_PROVIDERS, VENDORS, Provider, abilities_of
from .upstream.secrets import shown_url
from .upstream.settings import Upstream, is_public


class Prepared(Struct):
    """A request that is ready to be sent: POST ``content`` with ``headers`` to ``url``. ``body`` is the same as a dict, and ``dropped``
    has the names of what the upstream's dialect cannot express. ``dialect`` is the dialect of the answer, and ``provider`` the owner
    of opaque state: pass both to ``read``."""

    url: str
    headers: dict[str, str]
    body: JsonObject
    dropped: list[str]
    dialect: str
    provider: str

    @property
    def content(self) -> bytes:
        """The body as JSON."""
        return msgspec.json.encode(self.body)

    def __repr__(self) -> str:
        """Without the key."""
        headers = {name: value if is_public(name) else "…" for name, value in self.headers.items()}
        return f"Prepared({shown_url(self.url)!r}, {headers}, {self.body}, dropped={self.dropped})"


def prepare(
    request: Request | Mapping[str, object] | bytes | str,
    target: TargetName | str = "",
    *,
    base_url: str = "",
    key: str = "",
    provider: ProviderName | str = "",
    source: SourceName | str = "",
    model: str = "",
    stream: bool | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Unpack[PrepareOptions],
) -> Prepared:
    """Prepares a request for an upstream: its URL, its headers and its body.

        request = streamglot.Request("claude-sonnet-5", "Hello", stream=True)
        ready = streamglot.prepare(request, "anthropic", key=key)
        with httpx.stream("POST", ready.url, headers=ready.headers, content=ready.content) as response:
            for event in streamglot.read(response.iter_bytes(), "anthropic"):
                ...

    Takes:
        ``request``: a ``Request``; or the body of a client, decoded or not, together with ``source``.
        ``target``: the dialect of the upstream. It may be left out for a ``provider``, which has a dialect of its own.
        ``base_url``: the address of the upstream, as the vendor's own clients have it. It may be left out for a known ``provider``, and
        for a dialect whose vendor has one address.
        ``key``: the API key.
        ``provider``: a provider whose address is known, such as ``"openrouter"``; what it does not accept is left out. With a
        ``base_url``, a name of yours for the upstream. Pass the same name to ``read``.
        ``source``: the dialect of the client's body.
        ``model``, ``stream``: used instead of what the request says.
        ``headers``: more headers.
        ``options``: those of the dialect's builder, such as ``max_tokens``.

    Gives a ``Prepared`` with ``url``, ``headers``, ``body`` (a dict), ``content`` (the body as bytes) and ``dropped``.

    Raises ``ConfigError`` for a name that does not exist and for an address that is missing, ``RequestError`` for a body that breaks
    the rules of its dialect, ``Unsupported`` where the dialect cannot do what the request asks for, and ``TypeError`` for an option
    that the dialect does not have.
    """
    made = _request(request, source, model, stream)
    row = _provider(provider, base_url)
    target = target or (row.dialect if row is not None else "")
    if not target:
        raise TypeError("prepare needs the dialect of the upstream, prepare(request, '…'), or a provider that is known")
    wire = dialect(target)
    address = base_url or _address(target, provider, row)
    owner = provider or target
    check_options("request builder", target, wire.build_body, options)
    known = abilities_of(Upstream(dialect=target, base_url=address))
    chosen: PrepareOptions = {**(row.options if row is not None and row.dialect == target else {}), **options}  # type: ignore[typeddict-item]  # a row of the table
    built = wire.build_request(made, abilities=known, provider=owner, **chosen)
    place = wire.endpoint(address, made, key, **chosen)
    sent = {"content-type": "application/json", **place.headers, **(headers or {})}
    return Prepared(place.url, sent, built.body, built.dropped, target, owner)


def _request(request: Request | Mapping[str, object] | bytes | str, source: str, model: str, stream: bool | None) -> Request:
    if isinstance(request, Request):
        changes: dict[str, object] = {"model": model} if model else {}
        if stream is not None:
            changes["stream"] = stream
        return structs.replace(request, **changes) if changes else request
    if not isinstance(request, (Mapping, bytes, bytearray, str)):
        raise TypeError(f"prepare takes a Request or the body of a client, not {type(request).__name__}")
    if not source:
        raise TypeError("the body of a client needs its dialect: prepare(body, target, source='…'); or pass a Request")
    if isinstance(request, (bytes, bytearray, str)):
        try:
            request = msgspec.json.decode(request)
        except msgspec.DecodeError as error:
            raise RequestError(f"the body of the request is not JSON: {error}: {excerpt(request)}") from None
    if not isinstance(request, Mapping):
        raise RequestError(f"the body of the request is not an object: {excerpt(request)}")
    return dialect(source).parse_request(dict(request), model=model, stream=stream)


def _provider(name: str, base_url: str) -> Provider | None:
    """The row of a provider. With an address of its own, any name will do."""
    if not name or (name not in KNOWN_PROVIDERS and base_url):
        return None
    if name not in KNOWN_PROVIDERS:
        raise ConfigError(
            f"the address of the provider {name!r} is not known{did_you_mean(name, KNOWN_PROVIDERS)}; pass base_url. Known: {', '.join(KNOWN_PROVIDERS)}"
        )
    return KNOWN_PROVIDERS[name]


def _address(target: str, provider: str, row: Provider | None) -> str:
    """The address of a known provider, or of the dialect's own vendor."""
    if row is None:
        vendor = VENDORS.get(target)
        if vendor is None:
            raise ConfigError(f"the dialect {target!r} has no address of its own: pass base_url, or a provider")
        return KNOWN_PROVIDERS[vendor].base_url
    if row.dialect != target and VENDORS.get(target) != VENDORS.get(row.dialect):
        raise ConfigError(
            f"the provider {provider!r} speaks {row.dialect!r}: pass base_url with the address where it speaks {target!r}"
        )
    return row.base_url
