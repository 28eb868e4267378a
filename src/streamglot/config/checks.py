"""Rules for a configuration that its types do not express, and whether the gateway requires keys.

A violation is a ``ConfigError`` that names the setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..dialects import DIALECTS
from ..errors import ConfigError, excerpt
from ..inband import find_format
from ..text import fault_of_key_name
from ..upstream.settings import Upstream
from .settings import BatchesConfig, Config, ServerConfig

LARGEST_NUMBER: Final = 2**53
"""The largest integer that a float represents exactly. Limits are compared with floats."""
LARGEST_PORT: Final = 65_535
"""The largest TCP port."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine can reach."""
PUBLIC_PATHS: Final = ("/", "/metrics", "/ready")
"""Pages about the gateway itself that may need no key."""
SCHEMES: Final = ("http://", "https://", "file:")
_HTTP: Final = ("http://", "https://")
_VALKEY: Final = ("valkey://", "valkeys://", "redis://", "rediss://")
_FREE_FORM: Final = ("options", "policies")
"""Tables whose values have their own rules: those of a dialect, and those of each policy."""
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BUCKET: Final = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9](?P<prefix>(?:/[A-Za-z0-9!_.*'()=-]+)*)/?")
"""A bucket and a prefix of characters that need no escaping in an address."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that an HTTP field value may not contain. A tab is allowed."""


def check_config(config: Config) -> None:
    for place, number in _numbers(msgspec.to_builtins(config), ""):
        if not math.isfinite(number) or not 0 <= number <= LARGEST_NUMBER:
            raise ConfigError(f"{place} is {number}: it must be a number from 0 to {LARGEST_NUMBER}")
    for name, upstream in config.upstreams.items():
        _check_upstream(name, upstream)
    _check_server(config.server)
    _check_batches(config.batches)
    _check_valkey(config.valkey.url)


def _numbers(value: object, place: str) -> Iterator[tuple[str, float]]:
    """Every number of the configuration with its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _FREE_FORM:
                yield from _numbers(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _numbers(inner, f"{place}[{position}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, value


def _check_upstream(name: str, upstream: Upstream) -> None:
    if upstream.dialect not in DIALECTS or not DIALECTS[upstream.dialect].has_reader:
        able = ", ".join(entry.name for entry in DIALECTS.usable() if entry.has_reader)
        raise ConfigError(f"upstreams.{name}.dialect is {upstream.dialect!r}; choose one of {able}")
    fault = upstream.abilities.fault()
    if fault:
        raise ConfigError(f"upstreams.{name}.abilities: {fault}")
    if not upstream.base_url.startswith(SCHEMES):
        shown = upstream.place if upstream.base_url else ""
        raise ConfigError(f"upstreams.{name}.base_url is {shown!r}: it must begin with one of {', '.join(SCHEMES)}")
    if upstream.proxy and not upstream.proxy.lower().startswith(_HTTP):  # it is not quoted: it may have a password
        raise ConfigError(f"upstreams.{name}.proxy must begin with http:// or https://; write http://host:port")
    for setting in ("base_url", "proxy"):
        fault = _fault_of_address(getattr(upstream, setting) or "")
        if fault:
            raise ConfigError(f"upstreams.{name}.{setting} is not a valid address: {fault}")
    for field, value in upstream.headers.items():
        if not _FIELD_NAME.fullmatch(field):
            raise ConfigError(f"upstreams.{name}.headers has {excerpt(field)}, which is not the name of an HTTP header")
        if _CONTROL.search(value):
            raise ConfigError(f"upstreams.{name}.headers.{field} has a line break or another control character; remove it")
    if upstream.ca_file:
        _check_certificates(f"upstreams.{name}.ca_file", upstream.ca_file)
    find_format(upstream.inband)
    for setting in ("thinking", "calls"):
        for pair in getattr(upstream.markers, setting):
            if not all(word.strip() for word in pair) or pair[0] == pair[1]:
                raise ConfigError(
                    f"upstreams.{name}.markers.{setting} has {excerpt(pair)}: write two different markers, what stands before and after"
                )


def _check_certificates(setting: str, file: str) -> None:
    import ssl  # few upstreams have certificates of their own

    if not Path(file).is_file():
        raise ConfigError(f"{setting} is {file!r}, but there is no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:
        raise ConfigError(f"{setting} is {file!r}, which has no certificates in PEM form: {error.strerror or error}") from None


def _fault_of_address(address: str) -> str:
    """Why this is not a URL with a host; empty if it is one, or none is needed.

    The message never quotes the URL, which may contain a password.
    """
    if not address.startswith((*_HTTP, *_VALKEY)):
        return ""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "its host or its port is invalid"
    if not host and address.startswith(_HTTP):
        return "it has no host"
    return "it has spaces or control characters" if re.search(r"[\x00-\x20\x7f]", address) else ""


def _check_server(server: ServerConfig) -> None:
    if server.port > LARGEST_PORT:
        raise ConfigError(f"server.port is {server.port}: it must be a number from 0 to {LARGEST_PORT}")
    if server.reasoning == "summary" and not server.reasoning_summary:
        raise ConfigError('server.reasoning is "summary" and no model makes summaries: name one in server.reasoning_summary')
    if server.authentication == "none" and server.keys:
        raise ConfigError(
            'server.authentication is "none" and there are server.keys, which would have no effect: remove one of the two'
        )
    if server.authentication == "none" and server.host not in LOOPBACK:
        raise ConfigError(
            f'server.authentication is "none" and server.host is {server.host!r}, where other machines reach the gateway: listen on '
            "127.0.0.1, or leave server.authentication out and make a key with `streamglot keys add NAME`"
        )
    unknown = [path for path in server.public_paths or () if path not in PUBLIC_PATHS]
    if unknown:
        raise ConfigError(f"server.public_paths has {unknown[0]!r}; it can list {', '.join(PUBLIC_PATHS)}")
    for key in server.keys:
        fault = fault_of_key_name(key.name)
        if fault:
            raise ConfigError(f"server.keys: {fault}")
    if server.redact:
        from ..patterns.expressions import parse

        for pattern in server.redact:
            try:
                parse(pattern)
            except (ConfigError, OverflowError, RecursionError) as error:
                raise ConfigError(f"server.redact has {excerpt(pattern)}, which is not a valid pattern: {error}") from None


def _check_valkey(url: str) -> None:
    if url and not url.startswith((*_VALKEY, "unix://")):
        raise ConfigError(
            "valkey.url must begin with valkey://, valkeys://, redis://, rediss:// or unix://; write valkey://host:port"
        )
    fault = _fault_of_address(url)
    if fault:
        raise ConfigError(f"valkey.url is not a valid address: {fault}")


def _check_batches(batches: BatchesConfig) -> None:
    """Checks the place of uploaded files. The messages never quote it, because it may contain a password by mistake."""
    s3 = batches.s3
    if "://" not in batches.directory:
        if s3.endpoint:
            raise ConfigError("batches.s3.endpoint has no effect unless batches.directory is s3://bucket/prefix: set that too")
        return
    found = _BUCKET.fullmatch(batches.directory)
    if found is None or {".", ".."} & set(found["prefix"].split("/")):
        raise ConfigError(
            "batches.directory is not a path or s3://bucket/prefix; a bucket has 3 to 63 letters, digits, dots and dashes, and a "
            "prefix has letters, digits and !_.*'()=- between slashes"
        )
    if s3.endpoint:
        fault = _fault_of_address(s3.endpoint) if s3.endpoint.startswith(("http://", "https://")) else "it needs http or https"
        if not fault and "@" in urlsplit(s3.endpoint).netloc:
            fault = "credentials belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        if fault:
            raise ConfigError(f"batches.s3.endpoint is not a valid address: {fault}")


_ADD_A_KEY: Final = "make a key with `streamglot keys add NAME`"
_LET_IN: Final = 'or set server.authentication = "none" to let in everybody on this machine'


class Authentication(Struct, frozen=True):
    """Whether keys are required, and why. ``summary`` describes the state, ``step`` the next step. ``usable``: whether any
    request can pass."""

    required: bool
    usable: bool
    summary: str
    step: str = ""


def authentication(
    server: ServerConfig, *, stored: int, revoked: int, had_keys: bool, store: str = "the store"
) -> Authentication:
    """Decides from the settings and the keys: one rule for the gateway, its start, its 401, ``keys list`` and ``doctor``.

    ``stored`` and ``revoked`` are numbers of keys in the store. ``had_keys``: the store or this process ever had some. After the
    first key, requests without one are refused until ``server.authentication`` changes that: a database that was replaced,
    emptied or restored from an old copy must not let everybody in.
    """
    configured = len(server.keys)
    valid = configured + stored
    here = server.host in LOOPBACK
    if server.authentication == "none":
        ignored = f"; {_counted(valid, 'key')} in the store {'is' if valid == 1 else 'are'} ignored" if valid else ""
        return Authentication(False, True, f'keys are not required: server.authentication is "none"{ignored}')
    if valid:
        places = [f"{configured} in the configuration"] if configured else []
        places += [f"{stored} in {store}"] if stored else []
        return Authentication(True, True, f"keys are required: {' and '.join(places)}")
    leave = f"{_ADD_A_KEY}, {_LET_IN}" if here else f"{_ADD_A_KEY}, or add [[server.keys]]"
    if revoked:
        all_of_them = "the only one was" if revoked == 1 else f"all {revoked} were"
        return Authentication(True, False, f"keys are required and none is valid: {all_of_them} revoked", leave)
    if had_keys:
        return Authentication(
            True, False, f"keys are required and none is known: {store} had keys before and has none now", f"restore it, {leave}"
        )
    if server.authentication == "required":
        return Authentication(True, False, 'keys are required and there is none: server.authentication is "required"', leave)
    if not here:
        return Authentication(
            True, False, f"keys are required and there is none: {server.host} can be reached from outside", leave
        )
    return Authentication(False, True, "keys are not required: there is none, and only this machine can reach the gateway")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
