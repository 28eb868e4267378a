"""The configuration: a TOML file, environment variables that override it, and the origin of each value."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ..errors import FOREIGN_ERRORS, ConfigError
from ..json_types import JsonObject, JsonValue
from ..upstream.secrets import HIDDEN, shown_url
from ..upstream.settings import is_public, is_secret
from .checks import check_config
from .settings import AUTO as AUTO
from .settings import DISABLED as DISABLED
from .settings import BatchesConfig as BatchesConfig
from .settings import Config as Config
from .settings import EngineConfig as EngineConfig
from .settings import KeyConfig as KeyConfig
from .settings import S3Config as S3Config
from .settings import ServerConfig as ServerConfig
from .settings import StoreConfig as StoreConfig
from .settings import ValkeyConfig as ValkeyConfig

FILE_NAME = "streamglot.toml"
FILE_BYTES = 4 * 2**20
"""Maximum bytes of the configuration file: an endless device must not fill the memory."""
PREFIX = "STREAMGLOT_"
PARENT = f"{PREFIX}PARENT"
"""The variable that names a process. The gateway stops when that process ends."""


class LoadedConfig(Struct):
    """The configuration, its file, the origin of each value by its path, and the values from the command line."""

    config: Config
    path: Path | None = None
    origins: dict[str, str] = field(default_factory=dict)
    overrides: Mapping[str, JsonValue] = field(default_factory=dict)


def load(
    path: Path | None = None, environment: Mapping[str, str] | None = None, overrides: Mapping[str, JsonValue] | None = None
) -> LoadedConfig:
    """Reads the file, then variables such as STREAMGLOT_SERVER__PORT, then the values from the command line.

    Every fault is a ``ConfigError``: a server that reloads its configuration must survive any file.
    """
    environment = os.environ if environment is None else environment
    path = path or _usual_place(environment)
    try:
        return _load(path, environment, overrides or {})
    except ConfigError:
        raise
    except FOREIGN_ERRORS as error:
        raise ConfigError(f"{path or 'the configuration'} cannot be used: {type(error).__name__}: {str(error)[:200]}") from None


def _load(path: Path | None, environment: Mapping[str, str], overrides: Mapping[str, JsonValue]) -> LoadedConfig:
    values: JsonObject = {}
    origins: dict[str, str] = {}
    if path is not None:
        values = _read(path)
        _note(values, "", str(path), origins)
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and "__" in name:
            place = name.removeprefix(PREFIX).lower().split("__")
            _put(values, place, _value(text), name)
            origins[".".join(place)] = name
    for name, value in overrides.items():
        if value is not None:
            _put(values, name.split("."), value, "the command line")
            origins[name] = "the command line"
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        message = _plain(str(error))
        origin = next((origin for place, origin in origins.items() if f"'{place}'" in message), path)
        raise ConfigError(f"{origin or 'the configuration'}: {message}") from None
    check_config(config)
    _fill_in(config, environment, origins)
    return LoadedConfig(config, path, origins, overrides)


NAMED_TABLES = ("headers", "env")
"""Tables of headers and environment variables. Their values are secrets unless their names are public."""
TABLES_OF_USERS = ("upstreams", "tools.mcp")
"""Tables whose names the user chooses, and which may therefore have a table of another kind under such a name."""


def shown(loaded: LoadedConfig) -> list[tuple[str, str, str]]:
    """Every value with its origin; secrets as dots."""
    rows: list[tuple[str, str, str]] = []

    def walk(value: object, place: str, hidden: bool = False) -> None:
        if isinstance(value, dict) and value:
            named = place.rpartition(".")[2] in NAMED_TABLES and place.rpartition(".")[0] not in TABLES_OF_USERS
            for name, inner in value.items():
                secret = not is_public(name) if named else is_secret(name) and not isinstance(inner, (bool, int, float))
                walk(inner, f"{place}.{name}" if place else name, secret)
            return
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for number, inner in enumerate(value):
                walk(inner, f"{place}[{number}]")
            return
        origin = next((loaded.origins[known] for known in (place, place.partition("[")[0]) if known in loaded.origins), "default")
        rows.append((place, HIDDEN if hidden and value else msgspec.json.encode(_without_secrets(value)).decode(), origin))

    walk(msgspec.to_builtins(loaded.config), "")
    return rows


def _without_secrets(value: object) -> JsonValue:
    """A value of the configuration; URLs without passwords."""
    if isinstance(value, list):
        return [_without_secrets(element) for element in value]
    return shown_url(value) if isinstance(value, str) and "://" in value else value


def _usual_place(environment: Mapping[str, str]) -> Path | None:
    named = environment.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config")
    return next((path for path in (Path(FILE_NAME), home / "streamglot" / FILE_NAME) if path.is_file()), None)


def _read(path: Path) -> JsonObject:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES:
        raise ConfigError(f"{path} is larger than {FILE_BYTES // 2**20} MiB: it is not a configuration file")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _note(value: object, place: str, origin: str, origins: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _note(inner, f"{place}.{name}" if place else name, origin, origins)
    else:
        origins[place] = origin


def _put(values: JsonObject, place: list[str], value: object, origin: str) -> None:
    for name in place[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{origin}: {name!r} in {'.'.join(place)} is not a table and cannot have a {place[-1]!r}")
    values[place[-1]] = value


def _value(text: str) -> JsonValue:
    """A variable's value: the list or table that its JSON describes, else its text. Text becomes a number if needed."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _plain(message: str) -> str:
    return message.replace("`", "'").replace("$.", "").replace("Object contains unknown field", "there is no setting")


def _fill_in(config: Config, environment: Mapping[str, str], origins: dict[str, str]) -> None:
    """Gives each upstream its name, and its key from the environment."""
    for name, upstream in config.upstreams.items():
        upstream.name = name
        if upstream.key_env and not upstream.key:
            upstream.key = environment.get(upstream.key_env, "")
            origins[f"upstreams.{name}.key"] = upstream.key_env if upstream.key else f"{upstream.key_env}, which is not set"
