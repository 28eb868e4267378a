"""The configuration: a TOML file, variables that override it, and where each value came from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ..dialects import DIALECTS
from ..errors import ConfigError
from ..upstream.routes import Route
from ..upstream.settings import Upstream

FILE_NAME = "streamglot.toml"
PREFIX = "STREAMGLOT_"
SECRET = ("key", "hash")


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
    """``wait``: how many seconds a request may wait for its turn when the streams are all taken."""

    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    max_body_bytes: int = 32 * 2**20
    body_seconds: float = 60.0
    concurrent: int = 4000
    wait: float = 5.0
    keep_alive_seconds: float = 15.0
    shutdown_seconds: float = 30.0
    default_model: str = ""
    discover: bool = True
    log: bool = True
    log_content: bool = False
    cache_seconds: float = 0.0
    cache_entries: int = 1000
    keys: list[Keys] = field(default_factory=list)


class Config(Struct, forbid_unknown_fields=True, kw_only=True):
    server: Server = field(default_factory=Server)
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)


class Loaded(Struct):
    """The configuration, the file it came from, and the origin of each value by its path."""

    config: Config
    path: Path | None
    origins: dict[str, str]


def load(path: Path | None = None, environment: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None) -> Loaded:
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
            _put(values, place, _value(text))
            origins[".".join(place)] = name
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(values, name.split("."), value)
            origins[name] = "the command line"
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'the configuration'}: {_plain(str(error))}") from None
    _finish(config, environment)
    return Loaded(config, path, origins)


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
        hidden = place.rpartition(".")[2] in SECRET and value
        origin = next((loaded.origins[known] for known in (place, place.partition("[")[0]) if known in loaded.origins), "default")
        rows.append((place, "••••" if hidden else msgspec.json.encode(value).decode(), origin))

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


def _put(values: dict[str, Any], place: list[str], value: Any) -> None:
    for name in place[:-1]:
        values = values.setdefault(name, {})
    values[place[-1]] = value


def _value(text: str) -> Any:
    """A variable as JSON if it is some, else as the text it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _plain(message: str) -> str:
    return message.replace("`", "'").replace("$.", "").replace("Object contains unknown field", "there is no setting")


def _finish(config: Config, environment: Mapping[str, str]) -> None:
    for name, upstream in config.upstreams.items():
        upstream.name = name
        if upstream.dialect not in DIALECTS or not DIALECTS[upstream.dialect].reader_class:
            able = ", ".join(entry.name for entry in DIALECTS.values() if entry.reader_class)
            raise ConfigError(f"upstreams.{name}.dialect is {upstream.dialect!r}; an upstream can speak {able}")
        if not upstream.base_url:
            raise ConfigError(f"upstreams.{name}.base_url is missing: where is it?")
        if upstream.key_env and not upstream.key:
            upstream.key = environment.get(upstream.key_env, "")
