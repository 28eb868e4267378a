"""The configuration: a TOML file, variables that override it, and where each value came from."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ..callers import fault_of_key_name
from ..dialects import DIALECTS
from ..errors import ConfigError
from ..inband import find_format
from ..upstream.routes import Route
from ..upstream.secrets import HIDDEN
from ..upstream.settings import Upstream, is_secret

FILE_NAME = "streamglot.toml"
PREFIX = "STREAMGLOT_"
NOTHING = "none"
"""The ``store.url`` of who wants nothing kept."""
PLACES = ("http://", "https://", "file:")
_USER_INFO = re.compile(r"//[^/@\s\"]+@")


class Keys(Struct, forbid_unknown_fields=True, kw_only=True):
    """A key that clients may come with: its SHA-256, or the variable that holds it; what it may do, and how often."""

    name: str
    hash: str = ""
    key_env: str = ""
    models: list[str] = field(default_factory=lambda: ["*"])
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0


class Server(Struct, forbid_unknown_fields=True, kw_only=True):
    """``concurrent``: requests at once, and ``wait``: how many seconds one may wait for its turn. ``keep_alive_seconds``:
    the longest silence towards a client. ``stall_seconds``: how long a client may take nothing of what it is sent.
    ``origins``: pages that browsers may use the gateway from, beside those of this machine. ``log_content``: write what was asked and answered into the log, without what ``redact`` (patterns) finds."""

    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    max_body_bytes: int = 32 * 2**20
    body_seconds: float = 60.0
    concurrent: int = 4000
    wait: float = 5.0
    keep_alive_seconds: float = 15.0
    stall_seconds: float = 600.0
    shutdown_seconds: float = 30.0
    default_model: str = ""
    discover: bool = True
    origins: list[str] = field(default_factory=list)
    telemetry: bool = False
    log: bool = True
    log_content: bool = False
    redact: list[str] = field(default_factory=list)
    cache_bytes: int = 64 * 2**20
    keys: list[Keys] = field(default_factory=list)


class Kept(Struct, forbid_unknown_fields=True, kw_only=True):
    """``url``: where turns are kept, empty for a file in the user's data directory, ``none`` to keep nothing. ``content``:
    what was said too, not only that it was; unless told, only where nobody but this machine is served. ``raw``: and the bytes
    of upstreams, with their timing."""

    url: str = ""
    content: bool | None = None
    raw: bool = False


class Valkey(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where streams that can be resumed are held, in place of the store."""

    url: str = ""


class Config(Struct, forbid_unknown_fields=True, kw_only=True):
    server: Server = field(default_factory=Server)
    store: Kept = field(default_factory=Kept)
    valkey: Valkey = field(default_factory=Valkey)
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)


class Loaded(Struct):
    """The configuration, the file it came from, the origin of each value by its path, and what the command line said."""

    config: Config
    path: Path | None = None
    origins: dict[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)


def load(
    path: Path | None = None, environment: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Loaded:
    """The file, then variables such as STREAMGLOT_SERVER__PORT, then what the command line said."""
    environment = os.environ if environment is None else environment
    path = path or _usual_place(environment)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if path is not None:
        values = _read(path)
        _note(values, "", str(path), origins)
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and "__" in name:
            place = name.removeprefix(PREFIX).lower().split("__")
            _put(values, place, _value(text), name)
            origins[".".join(place)] = name
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(values, name.split("."), value, "the command line")
            origins[name] = "the command line"
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        message = _plain(str(error))
        origin = next((origin for place, origin in origins.items() if f"'{place}'" in message), path)
        raise ConfigError(f"{origin or 'the configuration'}: {message}") from None
    _finish(config, environment, origins)
    return Loaded(config, path, origins, overrides or {})


def shown(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Every value with its origin; secrets as dots."""
    rows: list[tuple[str, str, str]] = []

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                walk(inner, f"{place}.{name}" if place else name)
            return
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for number, inner in enumerate(value):
                walk(inner, f"{place}[{number}]")
            return
        hidden = value and is_secret(place.rpartition(".")[2]) and not isinstance(value, (bool, int, float))
        origin = next((loaded.origins[known] for known in (place, place.partition("[")[0]) if known in loaded.origins), "default")
        rows.append((place, HIDDEN if hidden else _USER_INFO.sub(f"//{HIDDEN}@", msgspec.json.encode(value).decode()), origin))

    walk(msgspec.to_builtins(loaded.config), "")
    return rows


def _usual_place(environment: Mapping[str, str]) -> Path | None:
    named = environment.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config")
    return next((path for path in (Path(FILE_NAME), home / "streamglot" / FILE_NAME) if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _note(value: Any, place: str, origin: str, origins: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _note(inner, f"{place}.{name}" if place else name, origin, origins)
    else:
        origins[place] = origin


def _put(values: dict[str, Any], place: list[str], value: Any, origin: str) -> None:
    for name in place[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{origin}: {name!r} in {'.'.join(place)} is no table that could have a {place[-1]!r}")
    values[place[-1]] = value


def _value(text: str) -> Any:
    """A variable as the list or table that it is in JSON, else as text, which becomes a number where one is wanted."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _plain(message: str) -> str:
    return message.replace("`", "'").replace("$.", "").replace("Object contains unknown field", "there is no setting")


def _finish(config: Config, environment: Mapping[str, str], origins: dict[str, str]) -> None:
    for name, upstream in config.upstreams.items():
        upstream.name = name
        if upstream.dialect not in DIALECTS or not DIALECTS[upstream.dialect].reader_class:
            able = ", ".join(entry.name for entry in DIALECTS.values() if entry.reader_class)
            raise ConfigError(f"upstreams.{name}.dialect is {upstream.dialect!r}; an upstream can speak {able}")
        if not upstream.base_url.startswith(PLACES):
            raise ConfigError(
                f"upstreams.{name}.base_url is {upstream.base_url!r}: it must begin with one of {', '.join(PLACES)}"
            )
        find_format(upstream.inband)
        fault = upstream.abilities.fault()
        if fault:
            raise ConfigError(f"upstreams.{name}.abilities: {fault}")
        if upstream.key_env and not upstream.key:
            upstream.key = environment.get(upstream.key_env, "")
            origins[f"upstreams.{name}.key"] = upstream.key_env if upstream.key else f"{upstream.key_env}, which is not set"
    for key in config.server.keys:
        fault = fault_of_key_name(key.name)
        if fault:
            raise ConfigError(f"server.keys: {fault}")
    for pattern in config.server.redact:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"server.redact has {pattern!r}, which is no pattern: {error}") from None
